//! The engine's thread, in real time. These tests wait for conditions only.

use portolan_model::catalog::UdpService;

use super::*;

/// Commits follow each other at once. A collection, which a slow machine would come to meanwhile, is out of the way.
fn prompt() -> Timing {
    Timing { min_interval: Duration::ZERO, collect_after: 3600 * SECOND, ..Timing::default() }
}

#[test]
fn the_thread_does_what_is_requested_until_it_is_stopped() {
    let recorder = Recorder::at("here");
    let (sender, reports) = mpsc::channel();
    let dataplanes: Vec<(Settings, Boxed)> = vec![(Settings::plain(Family::Ipv4), recorder.boxed())];
    let report = move |report| drop(sender.send(report));
    let (handle, thread) = spawn(dataplanes, prompt(), report).unwrap();
    handle.work(Family::Ipv4, work(&["a"]));
    handle.start();
    assert!(reports.recv().unwrap().full);
    handle.work(Family::Ipv4, work(&["b"]));
    // The wait for the next commit is over at once, so the thread has to wake up by itself.
    assert_eq!(reports.recv().unwrap().changed.len(), 1);
    let (sender, snapshots) = mpsc::channel();
    handle.snapshot(move |snapshot| drop(sender.send(snapshot)));
    assert_eq!(snapshots.recv().unwrap()[0].table.len(), 2);
    handle.stop();
    thread.join().unwrap();
    assert_eq!(recorder.calls(), [compared(&["demo/a"]), applied(&["demo/b"])]);
}

#[test]
fn the_thread_ends_with_the_last_handle() {
    let recorder = Recorder::at("here");
    let dataplanes: Vec<(Settings, Boxed)> = vec![(Settings::plain(Family::Ipv4), recorder.boxed())];
    let (handle, thread) = spawn(dataplanes, Timing::default(), |_| {}).unwrap();
    drop(handle.clone());
    drop(handle);
    thread.join().unwrap();
    assert!(recorder.calls().is_empty());
}

#[test]
fn a_million_changes_during_a_commit_take_memory_for_their_service_ports_only() {
    let recorder = Recorder::at("here");
    let (sender, reports) = mpsc::channel();
    let dataplanes: Vec<(Settings, Boxed)> = vec![(Settings::plain(Family::Ipv4), recorder.boxed())];
    let report = move |report| drop(sender.send(report));
    let (handle, thread) = spawn(dataplanes, prompt(), report).unwrap();
    handle.start();
    assert!(reports.recv().unwrap().full);
    let (begun, release) = recorder.hold_apply();
    handle.work(Family::Ipv4, work(&["a"]));
    begun.recv().unwrap();
    let names: Vec<String> = (0..10).map(|number| format!("web-{number}")).collect();
    for number in 0..1_000_000 {
        let name = &names[number % names.len()];
        let work = work(&[name]);
        let name_of_port = work.changes[0].name.clone();
        let udp = vec![UdpService::new(name_of_port, Vec::new(), Vec::new())];
        let health_checks = vec![check_port(name, Some(30_000))];
        handle.work(Family::Ipv4, Work { health_checks, udp, ..work });
    }
    handle.sender.put(|pending| {
        assert_eq!(pending.families.ipv4.changes(), names.len());
        assert_eq!(pending.families.ipv4.others(), [crate::work::TRIGGERS_MAX, names.len(), names.len()]);
    });
    assert!(reports.try_recv().is_err(), "the commit goes on");
    release.send(()).unwrap();
    assert_eq!(reports.recv().unwrap().changed.len(), 1, "what was committed meanwhile");
    let report = reports.recv().unwrap();
    let sizes = (report.changed.len(), report.udp.len(), report.triggers.len());
    assert_eq!(sizes, (names.len(), names.len(), crate::work::TRIGGERS_MAX));
    assert_eq!(report.objects.services, 1_000_000);
    handle.stop();
    thread.join().unwrap();
    assert!(reports.recv().is_err(), "one commit for all of them");
}
