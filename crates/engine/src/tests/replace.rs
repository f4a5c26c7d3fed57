//! Replacing one data plane with another.

use super::*;

/// An engine in sync, with a Service and a health-check node port.
fn running(old: &Recorder) -> Bench {
    let bench = Bench::new(old, timing());
    bench
        .handle
        .work(Family::Ipv4, Work { health_checks: vec![check_port("a", Some(32222))], ..work(&["a"]) });
    let mut bench = bench;
    bench.handle.start();
    bench.settle();
    bench.advance(SECOND);
    bench.reports();
    old.take_calls();
    bench
}

fn replace(bench: &Bench, new: &Recorder) {
    bench.handle.replace(Family::Ipv4, new.boxed());
}

#[test]
fn a_new_data_plane_has_everything_before_the_old_one_is_removed() {
    let waits = [Duration::ZERO, 300 * MILLISECOND];
    let (old, new) = (Recorder::at("old").waiting(&waits), Recorder::at("new"));
    let mut bench = running(&old);
    replace(&bench, &new);
    let report = bench.one_report();
    assert!(report.step == Step::Replacement && report.full && report.outcome.is_ok());
    assert_eq!(new.take_calls(), [compared(&["demo/a", "a Some(32222)"])]);
    assert_eq!(bench.snapshot().retired, ["old"]);
    bench.advance(SECOND);
    let elapsed = [0, 10, 310].map(|elapsed| Call::Remove(elapsed * MILLISECOND));
    assert_eq!(old.take_calls(), elapsed, "at least 10 ms between two parts");
    assert!(old.is_removed() && bench.snapshot().retired.is_empty());
    bench.work(&["b"]);
    assert!(bench.one_report().step == Step::Commit);
    assert_eq!(new.take_calls(), [applied(&["demo/b"])]);
    assert!(old.calls().is_empty());
}

#[test]
fn a_replacement_that_fails_does_not_keep_the_rules_of_an_earlier_mode() {
    let waits = [SECOND, SECOND];
    let (old, new) = (Recorder::at("old").waiting(&waits), Recorder::at("new"));
    let mut bench = running(&old);
    replace(&bench, &new);
    bench.settle();
    assert_eq!(bench.snapshot().retired, ["old"]);
    old.take_calls();
    // Data planes that cannot write: one at the place of the retired one, and then one of a third place.
    let again = Recorder::at("old");
    again.fails(1000);
    replace(&bench, &again);
    bench.advance(10 * SECOND);
    assert!(old.take_calls().is_empty(), "they have the same names");
    let third = Recorder::at("third");
    third.fails(1000);
    replace(&bench, &third);
    again.fails(0);
    bench.advance(10 * SECOND);
    assert!(old.is_removed() && again.is_removed());
    assert_eq!(bench.snapshot().retired, [""; 0]);
    assert!(!new.is_removed(), "it is the active one");
}

/// Returns settings that differ in the bit, in which modes differ, too.
fn with_bit(masquerade_bit: u8) -> Settings {
    Settings { masquerade_bit, ..Settings::plain(Family::Ipv4) }
}

#[test]
fn new_settings_reach_the_active_data_plane_and_the_pending_one_each_with_its_own() {
    let (old, new) = (Recorder::at("old"), Recorder::at("new"));
    let mut bench = running(&old);
    let bit = |bench: &Bench| bench.snapshot().table.settings().masquerade_bit;
    new.fails(3);
    bench.handle.replace_with(with_bit(7), new.boxed());
    bench.settle();
    bench.handle.configure_both(with_bit(3), with_bit(8));
    bench.settle();
    assert_eq!(bit(&bench), 3);
    assert_eq!(old.take_calls(), [compared(&[])], "with its own settings");
    bench.advance(10 * SECOND);
    assert_eq!(bit(&bench), 8, "those of the one that has taken over");
    // The request crossed the end of the replacement.
    bench.handle.configure_both(with_bit(4), with_bit(9));
    bench.settle();
    assert_eq!(bit(&bench), 9);
    // All requests at once.
    let third = Recorder::at("third");
    third.fails(1);
    bench.handle.replace_with(with_bit(10), third.boxed());
    bench.handle.configure_both(with_bit(5), with_bit(11));
    bench.settle();
    assert_eq!(bit(&bench), 5);
    bench.advance(10 * SECOND);
    assert_eq!(bit(&bench), 11);
}

#[test]
fn settings_of_a_new_data_plane_are_used_when_it_has_written_them() {
    let (old, new) = (Recorder::at("old"), Recorder::at("new"));
    let mut bench = running(&old);
    new.fails(1);
    let masquerade_bit = 7;
    let settings = Settings { masquerade_bit, ..Settings::plain(Family::Ipv4) };
    bench.handle.replace_with(settings, new.boxed());
    assert!(bench.one_report().outcome.is_err());
    assert_ne!(bench.snapshot().table.settings().masquerade_bit, masquerade_bit);
    bench.work(&["b"]);
    bench.settle();
    assert_eq!(old.take_calls(), [applied(&["demo/b"])], "no comparison with settings of the new one");
    bench.advance(SECOND);
    assert!(bench.reports().iter().any(|report| report.step == Step::Replacement && report.outcome.is_ok()));
    assert_eq!(bench.snapshot().table.settings().masquerade_bit, masquerade_bit);
}

#[test]
fn while_a_new_data_plane_fails_the_old_one_stays_active() {
    let (old, new) = (Recorder::at("old"), Recorder::at("new"));
    let mut bench = running(&old);
    new.fails(usize::MAX);
    replace(&bench, &new);
    assert!(bench.one_report().outcome.is_err());
    bench.work(&["b"]);
    let done = bench.one_report();
    assert!(done.step == Step::Commit && done.outcome.is_ok(), "by the old one");
    assert_eq!((done.triggers.len(), old.take_calls()), (1, vec![applied(&["demo/b"])]));
    bench.handle.configure(Settings { masquerade_bit: 7, ..Settings::plain(Family::Ipv4) });
    bench.advance(2 * SECOND);
    assert_eq!(old.take_calls(), [compared(&[])], "with the new settings");
    assert!(bench.reports().iter().any(|report| report.step == Step::Replacement));
    bench.work(&["c"]);
    bench.settle();
    new.fails(0);
    new.take_calls();
    bench.advance(SECOND);
    let last = bench.reports().pop().unwrap();
    assert!(last.step == Step::Replacement && last.outcome.is_ok());
    assert_eq!(new.known(), ["demo/a", "demo/b", "demo/c"]);
    assert_eq!((old.removed_parts(), old.is_removed()), (1, true));
}

#[test]
fn what_waits_is_written_by_the_new_data_plane() {
    let (old, new) = (Recorder::at("old"), Recorder::at("new"));
    let mut bench = running(&old);
    bench.work(&["b"]);
    bench.settle();
    bench.reports();
    bench.work(&["c"]);
    replace(&bench, &new);
    let report = bench.one_report();
    assert!(report.step == Step::Replacement && report.outcome.is_ok());
    assert_eq!((report.triggers.len(), report.objects.services), (1, 1));
    bench.advance(5 * SECOND);
    assert_eq!(new.take_calls(), [compared(&["demo/a", "demo/b", "demo/c", "a Some(32222)"])]);
    assert_eq!(old.take_calls(), [applied(&["demo/b"]), Call::Remove(Duration::ZERO)]);
    assert!(bench.reports().is_empty());
}

#[test]
fn of_several_replacements_the_last_one_is_used() {
    let [old, first, unseen, last] = ["old", "first", "unseen", "last"].map(Recorder::at);
    let mut bench = running(&old);
    first.fails(3);
    replace(&bench, &first);
    assert!(bench.one_report().outcome.is_err());
    replace(&bench, &unseen);
    replace(&bench, &last);
    let done = bench.one_report();
    assert!(done.step == Step::Replacement && done.outcome.is_ok());
    assert_eq!(last.known(), ["demo/a"]);
    assert!(unseen.calls().is_empty(), "it has written nothing");
    // The one that was given up may have written something. Its removal fails twice.
    bench.advance(SECOND);
    assert!(first.is_removed() && old.is_removed());
    assert_eq!((first.removed_parts(), old.removed_parts()), (3, 1));
}

/// A removal that runs in a thread could remove what the successor finds and keeps.
#[test]
fn a_removal_is_suspended_while_a_successor_compares() {
    let (old, new) = (Recorder::at("old").waiting(&[SECOND; 3]), Recorder::at("new"));
    let mut bench = running(&old);
    replace(&bench, &new);
    bench.settle();
    for place in ["third", "old"] {
        assert!(old.is_removing(), "it continues after the comparison");
        let next = Recorder::at(place);
        let seen = old.clone();
        next.during_comparison(move || assert!(!seen.is_removing()));
        replace(&bench, &next);
        bench.advance(SECOND);
        assert_eq!(next.take_calls(), [compared(&["demo/a", "a Some(32222)"])]);
    }
    assert!(!old.is_removing() && !old.is_removed() && bench.snapshot().retired.is_empty());
}

#[test]
fn a_data_plane_of_the_same_place_is_not_removed() {
    let [old, same, new, back] = ["old", "old", "new", "old"].map(Recorder::at);
    let mut bench = running(&old);
    replace(&bench, &same);
    assert!(bench.one_report().step == Step::Replacement);
    // Its removal fails until its place is used again.
    same.fails(usize::MAX);
    replace(&bench, &new);
    assert!(bench.one_report().step == Step::Replacement);
    bench.advance(SECOND);
    let attempts = same.removed_parts();
    assert!(attempts > 1 && !same.is_removed());
    replace(&bench, &back);
    assert!(bench.one_report().step == Step::Replacement);
    bench.advance(60 * SECOND);
    assert!(new.is_removed() && bench.snapshot().retired.is_empty());
    assert_eq!([&old, &back, &same].map(Recorder::removed_parts), [0, 0, attempts]);
}

#[test]
fn before_the_start_the_last_data_plane_is_the_only_one() {
    let (old, new) = (Recorder::at("old"), Recorder::at("new"));
    let mut bench = Bench::new(&old, timing());
    bench.work(&["a"]);
    replace(&bench, &new);
    bench.handle.start();
    assert!(bench.one_report().step == Step::Commit);
    bench.advance(60 * SECOND);
    assert!(old.calls().is_empty());
    assert_eq!(new.calls()[0], compared(&["demo/a"]));
}

#[test]
fn a_replacement_right_after_the_start_replaces_a_data_plane_that_may_have_written() {
    let (first, second) = (Recorder::at("first"), Recorder::at("second"));
    let mut bench = Bench::new(&first, timing());
    bench.work(&["a"]);
    bench.handle.start();
    replace(&bench, &second);
    bench.advance(SECOND);
    assert!(bench.reports().iter().any(|report| report.step == Step::Replacement));
    assert!(first.is_removed() && second.known() == ["demo/a"]);
}

#[test]
fn rules_of_an_earlier_run_are_removed_after_the_first_success() {
    let [current, former, same] = ["new", "old", "new"].map(Recorder::at);
    let mut bench = Bench::new(&current, timing());
    bench.handle.retire(Family::Ipv4, former.boxed());
    bench.handle.retire(Family::Ipv4, same.boxed());
    current.fails(3);
    bench.handle.start();
    bench.settle();
    for _ in 0..2 {
        bench.advance_to_next();
    }
    assert!(former.calls().is_empty() && bench.reports().iter().all(|report| report.outcome.is_err()));
    bench.advance(SECOND);
    assert!(former.is_removed() && same.calls().is_empty() && !current.is_removed());
}

#[test]
fn a_removal_that_waits_delays_neither_commits_nor_another_removal() {
    let current = Recorder::at("new");
    let busy = Recorder::at("busy").waiting(&[Duration::ZERO; 4]);
    let slow = Recorder::at("slow").waiting(&[3600 * SECOND]);
    let mut bench = Bench::in_sync(&current, timing());
    bench.handle.retire(Family::Ipv4, slow.boxed());
    bench.handle.retire(Family::Ipv4, busy.boxed());
    bench.work(&["a"]);
    bench.settle();
    assert_eq!(current.take_calls(), [applied(&["demo/a"])]);
    bench.advance(SECOND);
    assert!(busy.is_removed() && busy.removed_parts() == 5);
    assert_eq!(slow.removed_parts(), 1);
    bench.advance(3599 * SECOND);
    assert!(slow.is_removed());
}

#[test]
fn packets_come_first_nothing_is_removed_while_a_comparison_is_due() {
    let (old, new) = (Recorder::at("old").waiting(&[SECOND]), Recorder::at("new"));
    let mut bench = running(&old);
    replace(&bench, &new);
    bench.settle();
    assert_eq!(old.removed_parts(), 1);
    new.fails(usize::MAX);
    bench.handle.compare(Family::Ipv4);
    bench.advance(10 * SECOND);
    assert_eq!(old.removed_parts(), 1);
    new.fails(0);
    bench.advance(SECOND);
    assert!(old.is_removed());
}
