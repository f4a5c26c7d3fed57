//! The engine with data planes that record their calls, on a paused clock. A test moves the clock, and the engine does
//! what is due at each moment, on the test's thread.

mod arrivals;
mod leave;
mod put_off;
mod random;
mod recorder;
mod repairs;
mod replace;
mod thread;
mod verify;

use std::sync::mpsc::{self, Receiver};

use portolan_model::{Change, Forwarding, Protocol};

use super::clock::Hands;
use super::*;
use crate::{Condition, HealthCheckPort};
use recorder::{Call, Recorder};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// An engine without a thread.
struct Bench {
    handle: Handle,
    engine: Engine<Box<dyn FnMut(Report)>>,
    hands: Hands,
    reports: Receiver<Report>,
}

impl Bench {
    fn new(recorder: &Recorder, timing: Timing) -> Self {
        let (clock, hands) = Clock::paused();
        let (sender, reports) = mpsc::channel();
        let report: Box<dyn FnMut(Report)> = Box::new(move |report| sender.send(report).unwrap());
        let dataplanes: Vec<(Settings, Boxed)> = vec![(Settings::plain(Family::Ipv4), recorder.boxed())];
        let (handle, engine) = Engine::new(dataplanes, timing, report, &clock);
        Self { handle, engine, hands, reports }
    }

    /// Returns an engine in sync, at a time at which no commit has to wait. Its first calls and reports are gone.
    fn in_sync(recorder: &Recorder, timing: Timing) -> Self {
        let mut bench = Self::new(recorder, timing);
        bench.handle.start();
        bench.settle();
        bench.advance(timing.min_interval);
        assert!(bench.state().is_in_sync());
        bench.reports();
        recorder.take_calls();
        bench
    }

    /// Takes the requests and does what is due at this moment.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if let Some(pending) = self.engine.receiver.take() {
                self.engine.take(pending);
            }
            match self.engine.due() {
                Some(due) if due <= self.hands.now() => self.engine.turn(),
                _ => return,
            }
        }
        panic!("the engine does not come to rest");
    }

    /// Takes a change and does one turn, as if the change had come during the former turn's commit.
    fn turn_with(&mut self, name: &str) {
        self.work(&[name]);
        if let Some(pending) = self.engine.receiver.take() {
            self.engine.take(pending);
        }
        self.engine.turn();
    }

    /// Moves the clock, and does what is due on the way.
    fn advance(&mut self, by: Duration) {
        let end = self.hands.now() + by;
        self.settle();
        while let Some(due) = self.engine.due().filter(|due| *due <= end) {
            self.hands.advance(due - self.hands.now());
            self.settle();
        }
        self.hands.advance(end - self.hands.now());
        self.settle();
    }

    /// Moves the clock to the next deadline, and returns how far that was.
    fn advance_to_next(&mut self) -> Duration {
        self.settle();
        let wait = self.engine.due().expect("something to wait for") - self.hands.now();
        self.advance(wait);
        wait
    }

    /// Returns the reports since the last time.
    fn reports(&self) -> Vec<Report> {
        self.reports.try_iter().collect()
    }

    /// Does what is due at this moment, and returns its only report.
    fn one_report(&mut self) -> Report {
        self.settle();
        let mut reports = self.reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    }

    fn state(&self) -> State {
        self.snapshot().state
    }

    fn snapshot(&self) -> FamilySnapshot {
        self.engine.lanes[0].snapshot()
    }

    fn work(&self, names: &[&str]) {
        self.handle.work(Family::Ipv4, work(names));
    }
}

fn work(names: &[&str]) -> Work {
    let change = |name: &&str| change(name, 80);
    Work {
        changes: names.iter().map(change).collect(),
        triggers: vec![1],
        objects: ObjectChanges { services: 1, endpoint_slices: 2 },
        ..Work::default()
    }
}

fn change(name: &str, port: u16) -> Change {
    let (namespace, service) = ("demo".into(), name.into());
    let name = ServicePortName { namespace, service, port: "".into(), protocol: Protocol::Tcp };
    let new = Forwarding::plain(([10, 96, 0, 1], port).into(), Protocol::Tcp, Box::default());
    Change { name: Arc::new(name), family: Family::Ipv4, old: None, new: Some(Arc::new(new)) }
}

fn check_port(service: &str, port: Option<u16>) -> HealthCheckPort {
    HealthCheckPort { namespace: "demo".into(), service: service.into(), port, local_ready: 0 }
}

/// Every wait has another length, and the long ones are out of the way.
fn timing() -> Timing {
    Timing {
        min_interval: SECOND,
        max_retry: 500 * MILLISECOND,
        full_interval: 3600 * SECOND,
        check_interval: 30 * SECOND,
        collect_after: 10 * SECOND,
    }
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn applied(names: &[&str]) -> Call {
    Call::Apply(texts(names))
}

fn compared(names: &[&str]) -> Call {
    Call::Compare(texts(names))
}

#[test]
fn requests_for_a_snapshot_are_bounded() {
    let bench = Bench::new(&Recorder::at("test"), timing());
    let (sender, receiver) = mpsc::channel();
    for number in 0..=SNAPSHOTS_MAX {
        let sender = sender.clone();
        bench.handle.snapshot(move |_| sender.send(number).unwrap());
    }
    let mut bench = bench;
    bench.settle();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), (1..=SNAPSHOTS_MAX).collect::<Vec<_>>());
}

#[test]
fn changes_that_cancel_each_other_out_are_reported() {
    let recorder = Recorder::at("test");
    let mut bench = Bench::new(&recorder, timing());
    bench.handle.start();
    bench.settle();
    bench.advance(SECOND);
    bench.reports();
    bench.handle.work(Family::Ipv4, work(&["a"]));
    let removal = Change { new: None, ..change("a", 80) };
    bench.handle.work(Family::Ipv4, Work { changes: vec![removal], ..Work::default() });
    assert!(bench.one_report().outcome.is_ok());
}

#[test]
fn before_the_start_the_data_plane_is_not_called() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::new(&recorder, timing());
    bench.work(&["a"]);
    bench.handle.configure(Settings { masquerade_all: true, ..Settings::plain(Family::Ipv4) });
    bench.handle.compare(Family::Ipv4);
    bench.advance(3600 * SECOND);
    assert!(recorder.calls().is_empty() && bench.state() == State::Waiting);
    assert_eq!(bench.snapshot().pending, 1);
    bench.handle.start();
    let report = bench.one_report();
    assert!(report.full && report.outcome.is_ok() && !report.repaired);
    assert_eq!((&*report.triggers, report.changed.len()), (&[1][..], 0));
    assert_eq!(recorder.calls(), [compared(&["demo/a"])], "the whole table");
    assert!(bench.snapshot().table.settings().masquerade_all);
    assert_eq!(bench.state(), State::InSync { since: bench.hands.now() });
}

#[test]
fn a_family_begins_with_a_table() {
    for starts_from_table in [false, true] {
        let recorder = Recorder::at("here");
        let recorder = if starts_from_table { recorder.starting_from_table() } else { recorder };
        let mut bench = Bench::new(&recorder, timing());
        let entries = ["a", "b"].map(|name| change(name, 80)).map(|it| (it.name, it.new.unwrap()));
        bench.handle.begin_with(Table::with(Settings::plain(Family::Ipv4), entries));
        bench.work(&["c"]);
        recorder.fails(1);
        bench.handle.start();
        bench.settle();
        // A failed comparison has been given the table, too.
        bench.work(&["d"]);
        bench.advance(SECOND);
        let first: &[&str] = if starts_from_table { &[] } else { &["demo/a", "demo/b", "demo/c"] };
        assert_eq!(recorder.take_calls()[..2], [compared(first), compared(&["demo/d"])]);
        let snapshot = bench.snapshot();
        assert_eq!((snapshot.table.len(), snapshot.table.counts().services), (4, 4));
        assert_eq!(snapshot.failures[0].cause.changed, 3);
        // What comes after the first call is added.
        let entries = [change("e", 80)].map(|it| (it.name, it.new.unwrap()));
        bench.handle.begin_with(Table::with(Settings::plain(Family::Ipv4), entries));
        bench.advance(SECOND);
        assert_eq!(
            (recorder.take_calls()[0].clone(), bench.snapshot().table.len()),
            (applied(&["demo/e"]), 5)
        );
    }
}

#[test]
fn the_first_change_is_committed_at_once_and_later_ones_wait_and_are_merged() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.work(&["a"]);
    assert_eq!(bench.one_report().changed.len(), 1);
    bench.work(&["b"]);
    bench.settle();
    bench.work(&["c", "b"]);
    bench.advance(999 * MILLISECOND);
    assert_eq!(recorder.take_calls(), [applied(&["demo/a"])]);
    assert_eq!(bench.snapshot().pending, 2);
    bench.advance(MILLISECOND);
    assert_eq!(recorder.take_calls(), [applied(&["demo/b", "demo/c"])], "each once");
    let report = bench.one_report();
    assert_eq!((report.triggers.len(), report.objects.services), (2, 2));
}

#[test]
fn a_shorter_interval_ends_a_wait_that_is_under_way() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.work(&["a"]);
    bench.settle();
    bench.work(&["b"]);
    bench.advance(100 * MILLISECOND);
    bench.handle.set_timing(Timing { min_interval: 300 * MILLISECOND, ..timing() });
    assert_eq!(bench.advance_to_next(), 300 * MILLISECOND);
    assert_eq!(recorder.calls(), [applied(&["demo/a"]), applied(&["demo/b"])]);
}

#[test]
fn a_failure_is_retried_with_everything_compared_and_loses_nothing() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.fails(5);
    bench.handle.work(Family::Ipv4, Work { health_checks: vec![check_port("a", Some(1))], ..work(&["a"]) });
    let failed = bench.one_report();
    let failed_at = bench.hands.now();
    assert!(failed.outcome.is_err() && !failed.full && failed.triggers.is_empty());
    assert_eq!(failed.objects, ObjectChanges::default());
    assert_eq!(bench.state(), State::Unknown { since: failed_at, reason: Reason::Failure });
    // A change that comes meanwhile is compared, too.
    bench.work(&["b"]);
    let waits: Vec<Duration> = (0..5).map(|_| bench.advance_to_next()).collect();
    assert_eq!(waits, [100, 200, 400, 500, 500].map(|wait| wait * MILLISECOND), "at most max_retry");
    let calls = recorder.calls();
    assert_eq!(calls[..2], [applied(&["demo/a", "a Some(1)"]), compared(&["demo/b"])]);
    assert_eq!(calls[2..], [compared(&[]), compared(&[]), compared(&[]), compared(&[])]);
    let reports = bench.reports();
    let (mended, failed) = reports.split_last().unwrap();
    assert!(failed.iter().all(|report| report.outcome.is_err() && report.full));
    assert!(mended.outcome.is_ok() && mended.full && !mended.repaired);
    assert_eq!(mended.triggers, [1, 1]);
    assert_eq!(mended.objects, ObjectChanges { services: 2, endpoint_slices: 4 });
    let snapshot = bench.snapshot();
    assert_eq!((snapshot.failures.len(), snapshot.commits.len()), (5, 2));
    assert!(snapshot.failures[0].outcome.is_err() && snapshot.failures[0].at == failed_at);
    // The back-off begins anew.
    recorder.fails(1);
    bench.advance(SECOND);
    bench.work(&["c"]);
    bench.settle();
    assert_eq!(bench.advance_to_next(), 100 * MILLISECOND);
}

#[test]
fn an_attempt_names_what_it_was_for() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.work(&["a", "b", "c", "d"]);
    bench.settle();
    recorder.fails(1);
    bench.handle.compare(Family::Ipv4);
    bench.advance(SECOND);
    bench.settle();
    let snapshot = bench.snapshot();
    let cause = |attempt: &Attempt| {
        let first: Vec<String> = attempt.cause.first.iter().map(ToString::to_string).collect();
        (attempt.cause.reason, attempt.cause.changed, first.join(" "))
    };
    let commits: Vec<_> = snapshot.commits.iter().map(cause).collect();
    let want = [
        (Some(Reason::Start), 0, String::new()),
        (None, 4, "demo/a demo/b demo/c".to_owned()),
        (Some(Reason::Failure), 0, String::new()),
    ];
    assert_eq!(commits, want);
    assert_eq!(
        snapshot.failures.iter().map(cause).collect::<Vec<_>>(),
        [(Some(Reason::Drift), 0, String::new())]
    );
    assert_eq!(
        snapshot.commits.iter().map(|attempt| attempt.objects.services).collect::<Vec<_>>(),
        [0, 1, 0]
    );
    assert_eq!((snapshot.drift.noticed, snapshot.drift.repaired, snapshot.drift.last_repaired), (1, 0, None));
    assert!(snapshot.drift.last.is_some());
}

#[test]
fn new_settings_are_compared_and_are_no_repair() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.writes(3);
    bench.handle.configure(Settings { masquerade_bit: 7, ..Settings::plain(Family::Ipv4) });
    bench.handle.compare(Family::Ipv4);
    let report = bench.one_report();
    assert!(report.full && !report.repaired);
    assert_eq!(bench.snapshot().table.settings().masquerade_bit, 7);
}

#[test]
fn a_health_check_port_alone_is_committed() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    let open = Work { health_checks: vec![check_port("a", Some(32222))], ..Work::default() };
    bench.handle.work(Family::Ipv4, open.clone());
    bench.settle();
    assert_eq!(recorder.take_calls(), [applied(&["a Some(32222)"])]);
    bench.handle.work(Family::Ipv4, open);
    bench.advance(SECOND);
    assert_eq!(recorder.calls(), [applied(&[])], "it has it, and a report follows");
}

#[test]
fn rules_without_notifications_are_checked_and_repaired() {
    let recorder = Recorder::at("here").without_notifications();
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.advance(60 * SECOND);
    let is_check = |call: &Call| *call == Call::Check;
    assert_eq!(recorder.take_calls().into_iter().filter(is_check).count(), 2, "every 30 seconds");
    assert!(bench.reports().is_empty(), "nothing to repair");
    recorder.is_found(Condition::Changed);
    recorder.writes(1);
    bench.advance(30 * SECOND);
    assert!(bench.one_report().repaired);
    assert_eq!(recorder.calls(), [Call::Check, compared(&[])]);
}

#[test]
fn rules_that_the_node_makes_outdated_are_compared_and_are_no_drift() {
    let recorder = Recorder::at("here").without_notifications();
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.writes(1);
    recorder.is_found(Condition::Outdated);
    bench.advance(30 * SECOND);
    let report = bench.one_report();
    assert!(report.full && !report.repaired);
    assert_eq!(report.cause.reason, Some(Reason::Node));
    assert_eq!(recorder.calls(), [Call::Collect, Call::Check, compared(&[])]);
    assert_eq!(bench.snapshot().drift, Drift::default());
}

#[test]
fn a_collection_follows_a_commit_and_goes_on_each_second() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.advance(10 * SECOND);
    assert_eq!(recorder.take_calls(), [Call::Collect], "after the first commit");
    recorder.has_garbage(3);
    bench.work(&["a"]);
    bench.settle();
    let waits: Vec<Duration> = (0..3).map(|_| bench.advance_to_next()).collect();
    assert_eq!(waits, [10 * SECOND, SECOND, SECOND]);
    assert_eq!(recorder.take_calls(), [applied(&["demo/a"]), Call::Collect, Call::Collect, Call::Collect]);
    bench.advance(60 * SECOND);
    assert!(recorder.calls().is_empty(), "nothing is left");
}

#[test]
fn a_failed_collection_is_reported_and_everything_compared() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.fails(1);
    bench.advance(10 * SECOND);
    let [collection, comparison] = &bench.reports()[..] else { panic!("two reports") };
    assert!(collection.step == Step::Collection && collection.outcome.is_err());
    assert!(comparison.step == Step::Commit && comparison.full && comparison.outcome.is_ok());
    assert_eq!(recorder.calls(), [Call::Collect, compared(&[])]);
}

#[test]
fn everything_is_compared_once_an_hour() {
    let recorder = Recorder::at("here");
    let mut bench = Bench::in_sync(&recorder, timing());
    recorder.writes(1);
    bench.advance(3600 * SECOND);
    assert_eq!(recorder.take_calls(), [Call::Collect, compared(&[])]);
    let report = bench.one_report();
    assert!(report.full && !report.repaired, "it may be our own fault");
}

#[test]
fn a_snapshot_shows_the_table_and_what_waits() {
    let (recorder, next) = (Recorder::at("here"), Recorder::at("there"));
    let mut bench = Bench::in_sync(&recorder, timing());
    bench.work(&["a"]);
    bench.settle();
    bench.work(&["b"]);
    let (sender, snapshots) = mpsc::channel();
    bench.handle.snapshot(move |snapshot| sender.send(snapshot).unwrap());
    bench.settle();
    let before = snapshots.recv().unwrap().remove(0);
    assert_eq!((before.family, before.mode, before.place), (Family::Ipv4, "test", "here"));
    assert!(before.state.is_in_sync() && before.successor.is_none() && before.retired.is_empty());
    assert_eq!((before.table.len(), before.pending, before.commits.len()), (2, 1, 2));
    next.fails(1);
    bench.handle.replace(Family::Ipv4, next.boxed());
    bench.work(&["c"]);
    bench.settle();
    assert_eq!(before.table.len(), 2, "it does not change");
    let snapshot = bench.snapshot();
    assert_eq!((snapshot.successor, snapshot.table.len()), (Some("test"), 3));
    assert_eq!(snapshot.failures[0].step, Step::Replacement);
    for _ in 0..2 * COMMITS_KEPT {
        bench.work(&["d"]);
        bench.advance(SECOND);
    }
    let last = bench.snapshot();
    assert!(last.commits.len() == COMMITS_KEPT && last.place == "there", "the last ones");
    let happened: Vec<_> = last.events.iter().map(|event| &event.what).collect();
    assert!(
        matches!(
            happened[..],
            [
                Happening::Compared(Reason::Start),
                Happening::Failed(Step::Replacement, _),
                Happening::Replaced
            ]
        ),
        "{happened:?}"
    );
    assert_eq!((last.totals.failures, last.table.counts().service_ports), (1, last.table.len()));
}
