//! Verification: comparisons until one finds no difference.

use super::*;

/// Returns a data plane whose first comparison wrote something, and its engine, which has to verify it.
fn verifying() -> (Recorder, Bench) {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    recorder.writes(3);
    bench.handle.verify(Family::Ipv4);
    bench.handle.start();
    assert!(!bench.one_report().verified);
    (recorder, bench)
}

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
    let (recorder, mut bench) = verifying();
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

#[test]
fn a_program_that_always_writes_delays_neither_the_thread_nor_a_removal() {
    let (recorder, retired) = (Recorder::at("here"), Recorder::at("there").waiting(&[SECOND; 3]));
    let mut bench = Bench::new(&recorder, Timing { min_interval: Duration::ZERO, ..timing() });
    recorder.writes(3);
    bench.handle.retire(Family::Ipv4, retired.boxed());
    bench.handle.verify(Family::Ipv4);
    bench.handle.start();
    let mut pauses = Vec::new();
    let mut last = bench.hands.now();
    while pauses.len() < 12 {
        bench.advance_to_next();
        // A periodic check is no comparison.
        if !bench.reports().is_empty() {
            pauses.push((bench.hands.now() - last).as_millis());
            last = bench.hands.now();
        }
    }
    assert_eq!(
        pauses,
        [1000, 1000, 1000, 1000, 1000, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000],
        "at least a second, growing"
    );
    assert!(retired.is_removed());
}

#[test]
fn changes_without_end_delay_no_verification() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, Timing { min_interval: Duration::ZERO, ..timing() });
    bench.handle.verify(Family::Ipv4);
    for name in ["a", "b", "c"] {
        bench.turn_with(name);
    }
    let verified: Vec<bool> = bench.reports().iter().map(|report| report.verified).collect();
    assert_eq!(verified, [false, true, false, false]);
    assert_eq!(
        recorder.calls(),
        [applied(&["demo/a"]), compared(&[]), applied(&["demo/b"]), applied(&["demo/c"])]
    );
}

#[test]
fn changes_without_end_delay_no_removal() {
    let (recorder, retired) = (Recorder::at("here"), Recorder::at("there"));
    let mut bench = Bench::in_sync(&recorder, Timing { min_interval: Duration::ZERO, ..timing() });
    bench.handle.retire(Family::Ipv4, retired.boxed());
    bench.turn_with("a");
    assert!(!retired.is_removed(), "the change comes first");
    bench.turn_with("b");
    assert!(retired.is_removed());
    bench.turn_with("c");
    assert_eq!(recorder.calls(), [applied(&["demo/a"]), applied(&["demo/b", "demo/c"])]);
}

#[test]
fn a_verification_that_is_not_wanted_ends() {
    let (recorder, mut bench) = verifying();
    bench.handle.stop_verifying(Family::Ipv4);
    bench.advance(60 * SECOND);
    assert!(bench.reports().is_empty());
    bench.handle.verify(Family::Ipv4);
    recorder.writes(0);
    assert!(bench.one_report().verified, "it starts again at once");
}
