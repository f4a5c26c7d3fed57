//! Verification: comparisons until one finds no difference.

use super::*;

#[test]
fn a_first_comparison_that_finds_everything_verifies() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    bench.handle.verify(Family::Ipv4);
    bench.settle();
    assert!(recorder.calls().is_empty(), "not before the start");
    bench.handle.start();
    assert!(bench.one_report().verified);
    bench.advance(60 * SECOND);
    assert!(bench.reports().iter().all(|report| !report.verified), "once");
}

#[test]
fn without_a_request_nothing_is_verified() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    bench.handle.start();
    assert!(!bench.one_report().verified);
}

#[test]
fn a_comparison_that_writes_is_followed_by_another() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    recorder.writes(3);
    bench.handle.verify(Family::Ipv4);
    bench.handle.start();
    assert!(!bench.one_report().verified);
    assert_eq!(bench.advance_to_next(), SECOND, "min_interval");
    assert!(!bench.one_report().verified, "another program changes the rules");
    recorder.writes(0);
    assert_eq!(bench.advance_to_next(), SECOND);
    let report = bench.one_report();
    assert!(report.verified && report.full && !report.repaired);
    assert_eq!(recorder.calls(), vec![compared(&[]); 3]);
}

#[test]
fn changes_are_committed_before_the_comparison() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.work(&["a"]);
    bench.handle.verify(Family::Ipv4);
    bench.settle();
    let verified: Vec<bool> = bench.reports().iter().map(|report| report.verified).collect();
    assert_eq!(verified, [false, true]);
    assert_eq!(recorder.calls(), [applied(&["demo/a"]), compared(&[])]);
}

#[test]
fn a_failure_delays_the_verification() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.fails(2);
    bench.handle.verify(Family::Ipv4);
    bench.advance(SECOND);
    let verified: Vec<bool> = bench.reports().iter().map(|report| report.verified).collect();
    assert_eq!(verified, [false, false, true]);
}
