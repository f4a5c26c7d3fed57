//! Changes that arrive during a comparison.

use portolan_model::catalog::UdpService;

use super::*;

fn follow(names: &[&str]) -> Call {
    Call::Follow(texts(names))
}

/// Returns a step that queues changes.
fn arrive(bench: &Bench, names: &'static [&'static str]) -> impl FnOnce() + Send + 'static {
    let handle = bench.handle.clone();
    move || handle.work(Family::Ipv4, work(names))
}

/// Returns a step that moves the clock.
fn wait(bench: &Bench, time: Duration) -> impl FnOnce() + Send + 'static {
    let hands = bench.hands.clone();
    move || hands.advance(time)
}

#[test]
fn they_are_reported_before_the_comparison_and_are_in_the_table_after_it() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    bench.work(&["a"]);
    bench.handle.start();
    recorder.during_comparison(arrive(&bench, &["b"]));
    bench.settle();
    let [early, full] = <[Report; 2]>::try_from(bench.reports()).expect("two reports");
    assert!(early.step == Step::DuringComparison && !early.full && early.cause.changed == 1);
    assert_eq!((early.triggers.len(), early.objects), (1, ObjectChanges::default()));
    let both = ObjectChanges { services: 2, endpoint_slices: 4 };
    assert!(full.step == Step::Commit && full.full);
    assert_eq!((full.triggers.len(), full.objects), (1, both), "the triggers of the early one are reported");
    assert_eq!(recorder.take_calls(), [compared(&["demo/a"]), follow(&["demo/b"])]);
    assert_eq!(bench.snapshot().table.len(), 2);
    assert_eq!((bench.snapshot().commits.len(), bench.snapshot().pending), (2, 0));
    bench.advance(SECOND);
    assert!(recorder.take_calls().is_empty(), "nothing is left to write");
    bench.work(&["b"]);
    bench.settle();
    assert_eq!(recorder.take_calls(), [applied(&["demo/b"])], "its former state is what had arrived");
}

#[test]
fn they_wait_for_the_interval_between_two_commits() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.during_comparison(arrive(&bench, &["a"]));
    recorder.during_comparison(arrive(&bench, &["b"]));
    recorder.during_comparison(wait(&bench, SECOND / 2));
    recorder.during_comparison(arrive(&bench, &["c"]));
    recorder.during_comparison(wait(&bench, SECOND / 2));
    bench.handle.compare(Family::Ipv4);
    bench.settle();
    let full = bench.reports().pop().expect("a report");
    assert_eq!((full.duration, full.taken_before), (SECOND, Duration::ZERO), "nothing waits");
    assert_eq!(recorder.take_calls(), [compared(&[]), follow(&["demo/a"]), follow(&["demo/b", "demo/c"])]);
    assert_eq!(bench.snapshot().table.len(), 3);
}

#[test]
fn what_is_left_to_the_comparison_is_reported_with_it() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, Timing { min_interval: Duration::ZERO, ..timing() });
    recorder.leaves(1);
    bench.handle.start();
    recorder.during_comparison(arrive(&bench, &["a"]));
    recorder.during_comparison(arrive(&bench, &["b"]));
    bench.settle();
    let [early, full] = <[Report; 2]>::try_from(bench.reports()).expect("two reports");
    assert_eq!(early.changed.len(), 1);
    assert_eq!((early.triggers.len(), full.triggers.len()), (1, 1));
    assert_eq!(recorder.calls(), [compared(&[]), follow(&["demo/a"]), follow(&["demo/b"])]);
}

#[test]
fn after_a_failure_they_are_in_the_table_of_the_next_comparison() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    recorder.fails(1);
    recorder.leaves(1);
    bench.handle.start();
    recorder.during_comparison(arrive(&bench, &["a"]));
    bench.settle();
    let failed = bench.one_report();
    assert!(failed.outcome.is_err() && failed.triggers.is_empty());
    bench.advance_to_next();
    let done = bench.one_report();
    assert!(done.outcome.is_ok() && done.triggers.len() == 1);
    assert_eq!(recorder.calls(), [compared(&[]), follow(&["demo/a"]), compared(&[])]);
    assert_eq!(bench.snapshot().table.len(), 1);
}

#[test]
fn a_successor_gets_them() {
    let (recorder, successor) = (Recorder::at("here"), Recorder::at("there"));
    let mut bench = Bench::new(&recorder, timing());
    successor.fails(1);
    recorder.during_comparison(arrive(&bench, &["a"]));
    bench.handle.start();
    bench.handle.replace(Family::Ipv4, successor.boxed());
    bench.advance(SECOND);
    assert_eq!(successor.known(), ["demo/a"]);
    assert_eq!(bench.snapshot().table.len(), 1);
}

#[test]
fn a_report_has_the_health_checks_of_its_commit() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    let check = |local_ready| HealthCheckPort { local_ready, ..check_port("a", Some(32222)) };
    let ready = |count, names: &[&str]| Work { health_checks: vec![check(count)], ..work(names) };
    bench.handle.work(Family::Ipv4, ready(1, &["a"]));
    bench.handle.start();
    let (handle, later) = (bench.handle.clone(), ready(2, &["a"]));
    recorder.during_comparison(move || handle.work(Family::Ipv4, later));
    bench.settle();
    let [early, full] = <[Report; 2]>::try_from(bench.reports()).expect("two reports");
    assert_eq!((early.health_checks, full.health_checks), (vec![], vec![check(1)]));
    recorder.fails(1);
    bench.advance(SECOND);
    assert_eq!(bench.one_report().health_checks, [], "it failed");
    bench.advance_to_next();
    assert_eq!(bench.one_report().health_checks, [check(2)]);
    bench.handle.work(Family::Ipv4, Work { health_checks: vec![check(3)], ..Work::default() });
    bench.advance(SECOND);
    assert_eq!(bench.one_report().health_checks, [check(3)], "without another change");
}

#[test]
fn flows_are_checked_again_after_settings_that_the_comparison_does_not_have() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    let change = change("a", 80);
    let flows = vec![UdpService::new(change.name.clone(), Vec::new(), Vec::new())];
    let handle = bench.handle.clone();
    let with_flows = Work { udp: flows.clone(), ..Work::default() };
    recorder.during_comparison(move || {
        handle.configure(Settings { masquerade_bit: 7, ..Settings::plain(Family::Ipv4) });
        handle.work(Family::Ipv4, with_flows);
        handle.work(Family::Ipv4, Work { changes: vec![change], ..Work::default() });
    });
    bench.handle.compare(Family::Ipv4);
    bench.advance(SECOND);
    let (before, after): (Vec<Report>, Vec<Report>) =
        bench.reports().into_iter().partition(|report| report.cause.changed > 0);
    assert!(!before.is_empty() && after.iter().any(|report| report.full && report.udp == flows), "{after:?}");
    let last = after.last().expect("a report");
    assert!(last.full && last.udp == flows, "the settings are in the kernel: {last:?}");
}
