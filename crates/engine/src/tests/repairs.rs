//! Repairs of what other programs change.

use super::*;

#[test]
fn drift_is_repaired_at_once_and_no_more_than_five_times_a_second() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.handle.compare(Family::Ipv6);
    bench.settle();
    assert!(recorder.calls().is_empty(), "another family");
    bench.handle.compare(Family::Ipv4);
    let report = bench.one_report();
    assert!(report.full && !report.repaired, "nothing had to be written");
    recorder.writes(3);
    bench.work(&["a"]);
    bench.handle.compare(Family::Ipv4);
    assert_eq!(bench.advance_to_next(), 200 * MILLISECOND, "before the change would be due");
    assert!(bench.one_report().repaired);
    assert_eq!(recorder.calls(), [compared(&[]), compared(&["demo/a"])]);
}

#[test]
fn a_repair_whose_first_attempt_failed_counts_as_one() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.writes(3);
    recorder.fails(1);
    bench.handle.compare(Family::Ipv4);
    bench.settle();
    bench.advance_to_next();
    let drift = bench.snapshot().drift;
    assert_eq!((drift.noticed, drift.repaired, drift.last_repaired.is_some()), (1, 1, true));
    bench.handle.compare(Family::Ipv4);
    assert_eq!(bench.advance_to_next(), 200 * MILLISECOND, "a pause follows it");
}

#[test]
fn drift_that_is_noticed_after_a_failed_commit_is_repaired_by_its_retry() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.fails(1);
    bench.work(&["a"]);
    bench.settle();
    recorder.writes(3);
    for _ in 0..2 {
        bench.handle.compare(Family::Ipv4);
        bench.settle();
    }
    assert_eq!(bench.advance_to_next(), 100 * MILLISECOND, "when the retry is due");
    let reports = bench.reports();
    assert!(reports.last().is_some_and(|report| report.full && report.repaired), "{reports:?}");
    let drift = bench.snapshot().drift;
    assert_eq!((drift.noticed, drift.repaired), (1, 1));
}

#[test]
fn changes_do_not_wait_for_the_next_repair() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, Timing { min_interval: Duration::ZERO, ..timing() });
    bench.handle.compare(Family::Ipv4);
    bench.settle();
    for _ in 0..3 {
        bench.handle.compare(Family::Ipv4);
        bench.settle();
    }
    bench.work(&["a"]);
    bench.settle();
    assert_eq!(recorder.take_calls(), [compared(&[]), applied(&["demo/a"])], "one repair, then the change");
    assert_eq!(bench.advance_to_next(), 200 * MILLISECOND);
    assert_eq!(recorder.take_calls(), [compared(&[])], "the drift noted meanwhile");
    bench.handle.compare(Family::Ipv4);
    bench.settle();
    // A comparison for another reason mends the drift, too.
    bench.handle.configure(Settings { masquerade_bit: 7, ..Settings::plain(Family::Ipv4) });
    bench.settle();
    bench.advance(SECOND);
    assert_eq!(recorder.take_calls(), [compared(&[])]);
}
