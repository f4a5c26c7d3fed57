//! The end of the engine in sync.

use super::*;

/// Returns the calls at the end of an engine in sync, to which `last` has been requested, too.
fn end(is_watched: bool, last: impl FnOnce(&Bench, &Recorder)) -> Vec<Call> {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, Timing::default());
    bench.work(&["a"]);
    if is_watched {
        bench.handle.watched();
    }
    bench.settle();
    recorder.take_calls();
    last(&bench, &recorder);
    bench.handle.stop_in_sync(7);
    assert!(!bench.engine.receive());
    recorder.take_calls()
}

#[test]
fn a_data_plane_in_sync_keeps_what_its_next_start_can_use() {
    assert_eq!(end(true, |_, _| {}), [Call::Leave(7)]);
    assert_eq!(end(false, |_, _| {}), [], "changes of other programs are not reported");
    assert_eq!(
        end(false, |bench, _| bench.handle.watched()),
        [Call::Leave(7)],
        "nothing was committed before"
    );
}

#[test]
fn a_request_that_comes_with_the_end_leaves_the_rules_behind() {
    let settings = || Settings { counters: true, ..Settings::plain(Family::Ipv4) };
    assert_eq!(end(true, |bench, _| bench.work(&["b"])), []);
    assert_eq!(end(true, |bench, _| bench.handle.compare(Family::Ipv4)), []);
    assert_eq!(end(true, |bench, _| bench.handle.configure(settings())), []);
    assert_eq!(end(true, |bench, _| bench.handle.retire(Family::Ipv4, Recorder::at("there").boxed())), []);
    let replace =
        |bench: &Bench, _: &Recorder| bench.handle.replace(Family::Ipv4, Recorder::at("there").boxed());
    assert_eq!(end(true, replace), []);
    assert_eq!(
        end(true, |bench, _| bench.handle.compare(Family::Ipv6)),
        [Call::Leave(7)],
        "the other family"
    );
}

#[test]
fn a_data_plane_that_is_not_in_sync_keeps_nothing() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, Timing::default());
    bench.handle.watched();
    bench.settle();
    recorder.fails(1);
    bench.work(&["a"]);
    bench.settle();
    recorder.take_calls();
    bench.handle.stop_in_sync(7);
    assert!(!bench.engine.receive());
    assert_eq!(recorder.take_calls(), []);
}
