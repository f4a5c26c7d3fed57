//! The engine's thread, in real time. These tests wait for conditions only.

use super::*;

#[test]
fn the_thread_does_what_is_requested_until_it_is_stopped() {
    let recorder = Recorder::at("here");
    let (sender, reports) = mpsc::channel();
    let dataplanes: Vec<(Settings, Boxed)> = vec![(Settings::plain(Family::Ipv4), recorder.boxed())];
    let timing = Timing { min_interval: Duration::ZERO, ..Timing::default() };
    let report = move |report| drop(sender.send(report));
    let (handle, thread) = spawn(dataplanes, timing, report).unwrap();
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
