//! Periodic comparisons that other programs disturb.

use super::*;

/// Returns the calls that write or compare.
fn written(recorder: &Recorder) -> Vec<Call> {
    let calls = recorder.take_calls().into_iter();
    calls.filter(|call| matches!(call, Call::Apply(_) | Call::Compare(_))).collect()
}

#[test]
fn a_disturbed_periodic_comparison_is_put_off_and_changes_are_written() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    let before = bench.state();
    recorder.is_disturbed(3);
    bench.advance(3599 * SECOND);
    let put_off = |bench: &Bench| bench.reports().iter().filter(|report| report.step == Step::PutOff).count();
    assert_eq!((put_off(&bench), written(&recorder)), (1, vec![compared(&[])]));
    assert_eq!(bench.state(), before, "in sync since the last comparison that succeeded");
    bench.work(&["a"]);
    let report = bench.one_report();
    assert!(report.outcome.is_ok() && !report.full);
    assert_eq!(written(&recorder), [applied(&["demo/a"])]);
    // The waits are 0.5 s, 1 s and 2 s. The first one is longer here: a commit is followed by a pause.
    bench.advance(2 * SECOND);
    assert_eq!((put_off(&bench), written(&recorder)), (2, vec![compared(&[]); 2]));
    bench.advance(2 * SECOND);
    assert_eq!((put_off(&bench), written(&recorder)), (0, vec![compared(&[])]));
    assert_eq!(bench.state(), State::InSync { since: bench.hands.now() });
    bench.advance(3599 * SECOND);
    assert_eq!(written(&recorder), []);
    bench.advance(SECOND);
    assert_eq!(written(&recorder), [compared(&[])], "the next one");
}

#[test]
fn with_changes_a_disturbed_periodic_comparison_is_a_failure() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.is_disturbed(1);
    // A change comes in the pause after a commit, in which the comparison is due.
    bench.advance(3598 * SECOND + 500 * MILLISECOND);
    bench.work(&["a"]);
    bench.settle();
    bench.work(&["b"]);
    bench.settle();
    recorder.take_calls();
    bench.advance(500 * MILLISECOND);
    bench.advance(500 * MILLISECOND);
    assert_eq!(written(&recorder), [compared(&["demo/b"])]);
    assert_eq!(bench.state().reason(), Some(Reason::Failure));
    assert!(bench.reports().iter().all(|report| report.step != Step::PutOff));
    bench.advance(SECOND);
    assert_eq!(written(&recorder), [compared(&[])]);
    assert!(bench.state().is_in_sync());
}
