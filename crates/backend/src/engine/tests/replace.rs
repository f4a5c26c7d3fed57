//! Replacing one data plane with another.

use super::*;

const OLD: &str = "old";
const NEW: &str = "new";

/// An engine in sync, with a Service and a health-check node port.
fn running(old: &Recorder, timing: Timing) -> (Handle, JoinHandle<()>, Receiver<Report>) {
    let (handle, thread, reports) = engine(old, timing);
    let check = HealthCheckPort { namespace: "demo".into(), service: "a".into(), port: Some(32222) };
    handle.work(Family::Ipv4, Work { health_checks: vec![check], ..work(&["a"]) });
    handle.start();
    next(&reports);
    (handle, thread, reports)
}

fn replace(handle: &Handle, new: &Recorder) {
    handle.replace(Family::Ipv4, Box::new(new.clone()));
}

fn retired_parts(recorder: &Recorder) -> usize {
    recorder.calls().iter().filter(|call| **call == Call::Retire).count()
}

#[test]
fn a_new_data_plane_has_everything_before_the_old_one_is_retired() {
    let old = Recorder { parts: 3, ..Recorder::at(OLD) };
    let new = Recorder::at(NEW);
    let (handle, thread, reports) = running(&old, quick());
    replace(&handle, &new);
    let report = next(&reports);
    assert!(report.step == Step::Replacement && report.full && report.outcome.is_ok());
    let received = [
        Call::Apply(vec!["demo/a".into()]),
        Call::OpenHealthCheckPorts(Some(32222)),
        Call::Compare(Vec::new()),
    ];
    assert_eq!(new.calls(), received);
    until("a removal in three parts", || retired_parts(&old) == 3);
    let before = old.calls();
    handle.work(Family::Ipv4, work(&["b"]));
    let report = next(&reports);
    assert!(report.step == Step::Commit && report.outcome.is_ok());
    assert_eq!(new.calls().pop(), Some(Call::Apply(vec!["demo/b".into()])));
    assert_eq!(old.calls(), before, "it has nothing to do with it any more");
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn while_a_new_data_plane_fails_the_old_one_stays_active() {
    let (old, new) = (Recorder::at(OLD), Recorder::at(NEW));
    let (handle, thread, reports) = running(&old, quick());
    new.fails(usize::MAX);
    replace(&handle, &new);
    let failed = next(&reports);
    assert!(failed.step == Step::Replacement && failed.outcome.is_err());
    handle.work(Family::Ipv4, work(&["b"]));
    let settings = neutral();
    handle.configure(settings);
    let done = std::iter::repeat_with(|| next(&reports)).find(|report| report.outcome.is_ok()).unwrap();
    assert!(done.step == Step::Commit, "by the old one");
    assert_eq!(done.triggers, [1], "its packets are forwarded");
    assert_eq!(retired_parts(&old), 0);
    new.fails(0);
    let done = std::iter::repeat_with(|| next(&reports))
        .find(|report| report.step == Step::Replacement && report.outcome.is_ok());
    assert!(done.is_some());
    let received = new.calls();
    assert!(received.contains(&Call::Compare(vec!["demo/b".into()])), "{received:?}");
    assert!(received.contains(&Call::Configure), "{received:?}");
    until("the old one gives way", || retired_parts(&old) == 1);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn pending_changes_go_to_the_new_data_plane() {
    let (old, new) = (Recorder::at(OLD), Recorder::at(NEW));
    let (handle, thread, reports) =
        running(&old, Timing { min_interval: Duration::from_secs(60), ..quick() });
    handle.work(Family::Ipv4, work(&["b"]));
    replace(&handle, &new);
    let report = next(&reports);
    assert!(report.step == Step::Replacement && report.outcome.is_ok());
    assert_eq!((report.triggers.len(), report.objects.services), (1, 1), "what waited is done");
    assert!(new.calls().contains(&Call::Compare(vec!["demo/b".into()])));
    let received = old.calls();
    assert!(!received.contains(&Call::Apply(vec!["demo/b".into()])), "it had to wait: {received:?}");
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn of_several_replacements_the_last_one_is_used() {
    let (old, first, second) = (Recorder::at(OLD), Recorder::at("first"), Recorder::at("second"));
    let (handle, thread, reports) = running(&old, quick());
    first.fails(usize::MAX);
    replace(&handle, &first);
    assert!(next(&reports).outcome.is_err());
    replace(&handle, &second);
    let done = std::iter::repeat_with(|| next(&reports)).find(|report| report.outcome.is_ok()).unwrap();
    assert!(done.step == Step::Replacement);
    assert!(second.calls().contains(&Call::Compare(Vec::new())));
    first.fails(2);
    until("the one that was given up gives way, and the old one", || {
        retired_parts(&first) == 3 && retired_parts(&old) == 1
    });
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_data_plane_of_the_same_place_is_not_removed() {
    let (old, new, back) = (Recorder::at(OLD), Recorder::at(NEW), Recorder::at(OLD));
    let (handle, thread, reports) = running(&old, quick());
    let same = Recorder::at(OLD);
    replace(&handle, &same);
    assert!(next(&reports).step == Step::Replacement);
    // Its removal fails until its place is used again.
    same.fails(usize::MAX);
    replace(&handle, &new);
    assert!(next(&reports).step == Step::Replacement);
    until("an attempt to remove it", || retired_parts(&same) > 0);
    replace(&handle, &back);
    assert!(next(&reports).step == Step::Replacement);
    until("the other one gives way", || retired_parts(&new) == 1);
    let attempts = retired_parts(&same);
    handle.work(Family::Ipv4, work(&["b"]));
    next(&reports);
    assert_eq!((retired_parts(&old), retired_parts(&back), retired_parts(&same)), (0, 0, attempts));
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn before_the_start_neither_data_plane_writes() {
    let (old, new) = (Recorder::at(OLD), Recorder::at(NEW));
    let (handle, thread, reports) = engine(&old, quick());
    handle.work(Family::Ipv4, work(&["a"]));
    replace(&handle, &new);
    handle.start();
    assert!(next(&reports).step == Step::Commit);
    assert_eq!(new.calls(), [Call::Apply(vec!["demo/a".into()]), Call::Compare(Vec::new())]);
    assert_eq!(old.calls(), [Call::Apply(vec!["demo/a".into()])]);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn rules_of_an_earlier_run_are_removed_after_the_first_success() {
    let (current, former) = (Recorder::at(NEW), Recorder::at(OLD));
    let (handle, thread, reports) = engine(&current, quick());
    handle.retire(Family::Ipv4, Box::new(former.clone()));
    handle.retire(Family::Ipv4, Box::new(Recorder::at(NEW)));
    current.fails(3);
    handle.start();
    for _ in 0..3 {
        assert!(next(&reports).outcome.is_err());
        assert_eq!(former.calls(), []);
    }
    assert!(next(&reports).outcome.is_ok());
    until("it is removed", || retired_parts(&former) == 1);
    assert_eq!(retired_parts(&current), 0);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_removal_that_waits_does_not_delay_another_one() {
    let current = Recorder::at(NEW);
    let busy = Recorder { parts: 5, ..Recorder::at("busy") };
    let waits = Recorder { parts: 5, pause: Some(Duration::from_secs(3600)), ..Recorder::at(OLD) };
    let (handle, thread, reports) = engine(&current, quick());
    handle.retire(Family::Ipv4, Box::new(waits.clone()));
    handle.retire(Family::Ipv4, Box::new(busy.clone()));
    handle.start();
    assert!(next(&reports).outcome.is_ok());
    until("the other one is removed", || retired_parts(&busy) == 5);
    assert_eq!(retired_parts(&waits), 1);
    handle.stop();
    thread.join().unwrap();
}

pub(super) fn neutral() -> Settings {
    Settings {
        family: Family::Ipv4,
        local_detector: portolan_model::LocalDetector::None,
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: portolan_model::NodePortAddresses::MatchAll,
        node_ip: None,
        service_cidrs: Vec::new(),
    }
}
