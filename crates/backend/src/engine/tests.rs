//! The engine with a data plane that records calls and fails on demand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_model::{ExternalPolicy, Forwarding, InternalPolicy, Protocol, ServicePortName};

use super::*;
use crate::Chains;

mod replace;

/// A call of the data plane.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Apply(Vec<String>),
    Compare(Vec<String>),
    OpenHealthCheckPorts(Option<u16>),
    Configure,
    Check,
    Retire,
}

#[derive(Clone, Default)]
struct Recorder {
    calls: Arc<Mutex<Vec<Call>>>,
    failures: Arc<Mutex<usize>>,
    place: &'static str,
    table: HashMap<Arc<ServicePortName>, Arc<Forwarding>>,
    /// Number of parts of its removal.
    parts: usize,
    /// Time between the parts, if the removal waits.
    pause: Option<Duration>,
    /// Its rules were removed by another program, without a notification.
    gone: Arc<AtomicBool>,
    checked: bool,
    /// Collections fail.
    has_garbage: bool,
    /// What the first comparison waits for.
    released: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Recorder {
    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn at(place: &'static str) -> Self {
        Self { place, ..Self::default() }
    }

    fn fails(&self, times: usize) {
        *self.failures.lock().unwrap_or_else(PoisonError::into_inner) = times;
    }

    fn remember(&mut self, changes: &[Change]) {
        for change in changes {
            match &change.new {
                Some(new) => self.table.insert(change.name.clone(), new.clone()),
                None => self.table.remove(&change.name),
            };
        }
    }

    fn note(&self, call: Call) -> Result<Commit, Error> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if *failures > 0 {
            *failures -= 1;
            return Err(Error::Contended { mode: "test", attempts: 1 });
        }
        Ok(Commit::default())
    }
}

impl Dataplane for Recorder {
    fn mode(&self) -> &'static str {
        "test"
    }

    fn place(&self) -> &'static str {
        self.place
    }

    fn needs_checks(&self) -> bool {
        self.checked
    }

    fn is_intact(&mut self) -> Result<bool, Error> {
        self.note(Call::Check).map(|_| !self.gone.swap(false, Ordering::Relaxed))
    }

    fn retire(&mut self, _kept: Option<Chains>) -> Result<bool, Error> {
        self.note(Call::Retire)?;
        self.parts = self.parts.saturating_sub(1);
        Ok(self.parts > 0)
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.pause.map(|pause| Instant::now() + pause)
    }

    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        self.remember(changes);
        self.note(Call::Apply(names(changes)))
    }

    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        self.remember(changes);
        let noted = self.note(Call::Compare(names(changes)));
        if let Some(released) = self.released.take() {
            let _ = released.lock().unwrap_or_else(PoisonError::into_inner).recv();
        }
        noted.map(|commit| Commit { full: true, ..commit })
    }

    fn open_health_check_ports(&mut self, health_checks: &[HealthCheckPort]) -> bool {
        for check in health_checks {
            let _ = self.note(Call::OpenHealthCheckPorts(check.port));
        }
        true
    }

    fn configure(&mut self, _settings: Settings) {
        let _ = self.note(Call::Configure);
    }

    fn collect(&mut self) -> Result<bool, Error> {
        self.has_garbage = false;
        Err(Error::Contended { mode: "test", attempts: 1 })
    }

    fn needs_collection(&self) -> bool {
        self.has_garbage
    }

    fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.table.iter())
    }
}

fn names(changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| change.name.to_string()).collect()
}

fn work(names: &[&str]) -> Work {
    let change = |name: &&str| Change {
        name: Arc::new(ServicePortName {
            namespace: "demo".into(),
            service: (*name).into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        }),
        family: Family::Ipv4,
        old: None,
        new: Some(Arc::new(Forwarding {
            family: Family::Ipv4,
            protocol: Protocol::Tcp,
            frontends: Box::default(),
            cluster: Box::default(),
            local: Box::default(),
            has_endpoints: false,
            internal_policy: InternalPolicy::Cluster,
            external_policy: ExternalPolicy::Cluster,
            affinity: None,
            ipvs_scheduler: None,
            keep_client_address: false,
            source_ranges: Box::default(),
        })),
    };
    Work {
        changes: names.iter().map(change).collect(),
        triggers: vec![1],
        udp: Vec::new(),
        health_checks: Vec::new(),
        objects: ObjectChanges { services: 1, endpoint_slices: 2 },
    }
}

fn engine(recorder: &Recorder, timing: Timing) -> (Handle, JoinHandle<()>, Receiver<Report>) {
    let (sender, reports) = mpsc::channel();
    let lanes: Vec<(Family, Box<dyn Dataplane + Send>)> = vec![(Family::Ipv4, Box::new(recorder.clone()))];
    let (handle, thread) = spawn(lanes, timing, move |report| drop(sender.send(report))).unwrap();
    (handle, thread, reports)
}

fn next(reports: &Receiver<Report>) -> Report {
    reports.recv_timeout(Duration::from_secs(120)).expect("a report in time")
}

fn quick() -> Timing {
    Timing { min_interval: Duration::ZERO, max_retry: Duration::from_millis(10), ..Timing::default() }
}

/// Waits for a condition that no report announces.
fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} in time");
        std::thread::yield_now();
    }
}

#[test]
fn nothing_is_committed_before_the_start() {
    let recorder = Recorder::default();
    let (handle, thread, reports) = engine(&recorder, quick());
    handle.work(Family::Ipv4, work(&["a"]));
    handle.start();
    let report = next(&reports);
    assert!(report.full);
    assert_eq!(report.triggers, [1]);
    assert_eq!(recorder.calls(), [Call::Apply(vec!["demo/a".into()]), Call::Compare(Vec::new())]);
    handle.stop();
    thread.join().unwrap();
}

/// An engine that has begun its first comparison.
struct Busy {
    recorder: Recorder,
    handle: Handle,
    thread: JoinHandle<()>,
    reports: Receiver<Report>,
    /// Ends the comparison.
    release: mpsc::Sender<()>,
}

fn busy() -> Busy {
    let (release, released) = mpsc::channel();
    let recorder = Recorder { released: Some(Arc::new(Mutex::new(released))), ..Recorder::default() };
    let (handle, thread, reports) = engine(&recorder, quick());
    handle.start();
    until("the first comparison has begun", || recorder.calls() == [Call::Compare(Vec::new())]);
    Busy { recorder, handle, thread, reports, release }
}

#[test]
fn a_million_changes_during_a_commit_take_memory_for_their_service_ports_only() {
    let Busy { handle, thread, reports, release, .. } = busy();
    let names: Vec<String> = (0..10).map(|number| format!("web-{number}")).collect();
    for number in 0..1_000_000 {
        let mut work = work(&[&names[number % names.len()]]);
        work.health_checks = vec![HealthCheckPort {
            namespace: "demo".into(),
            service: names[number % names.len()].as_str().into(),
            port: Some(30_000),
        }];
        handle.work(Family::Ipv4, work);
    }
    handle.sender.put(|pending| {
        assert_eq!(pending.families.ipv4.changes(), names.len());
        assert_eq!(pending.families.ipv4.others(), [TRIGGERS_MAX, 0, names.len()]);
    });
    release.send(()).unwrap();
    next(&reports);
    let report = next(&reports);
    assert_eq!((report.changed.len(), report.objects.services), (names.len(), 1_000_000));
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn settings_that_come_after_a_replacement_are_the_replacement_s_too() {
    let Busy { recorder, handle, thread, reports, release } = busy();
    let (given_up, successor) = (Recorder::at("nowhere"), Recorder::at("elsewhere"));
    // One after each replacement: the active data plane gets the first, the last replacement only the second.
    handle.replace(Family::Ipv4, Box::new(given_up.clone()));
    handle.configure(replace::neutral());
    handle.replace(Family::Ipv4, Box::new(successor.clone()));
    handle.configure(replace::neutral());
    release.send(()).unwrap();
    until("it is replaced", || successor.calls().contains(&Call::Compare(Vec::new())));
    let configured = |plane: &Recorder| plane.calls().iter().filter(|call| **call == Call::Configure).count();
    assert_eq!([&recorder, &given_up, &successor].map(configured), [2, 0, 1]);
    drop(reports);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_replacement_right_after_the_start_replaces_a_data_plane_that_has_written() {
    let (first, successor) = (Recorder::at("here"), Recorder::at("elsewhere"));
    let (handle, thread, reports) = engine(&first, quick());
    handle.sender.put(|pending| {
        pending.families.ipv4.work(work(&["a"]));
        pending.start = true;
        let is_after_start = pending.start;
        assert!(pending.families.ipv4.replace(Box::new(successor.clone()), is_after_start).is_none());
    });
    let steps = std::iter::repeat_with(|| next(&reports).step).find(|step| *step == Step::Replacement);
    assert_eq!(steps, Some(Step::Replacement));
    until("the first one is retired", || first.calls().contains(&Call::Retire));
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_failed_collection_is_reported() {
    let recorder = Recorder { has_garbage: true, ..Recorder::default() };
    let timing = Timing { collect_after: Duration::ZERO, ..quick() };
    let (handle, thread, reports) = engine(&recorder, timing);
    handle.start();
    next(&reports);
    let report = next(&reports);
    assert!(report.step == Step::Collection && report.outcome.is_err(), "{report:?}");
    assert!(next(&reports).full, "everything is compared");
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn the_second_of_two_quick_changes_waits_and_the_first_does_not() {
    let recorder = Recorder::default();
    let (handle, thread, reports) = engine(&recorder, quick());
    handle.start();
    next(&reports);
    // The wait before the next change is over; the one after it takes an hour, so that pending changes are not
    // committed.
    handle.set_timing(Timing { min_interval: Duration::from_secs(3600), ..quick() });
    handle.work(Family::Ipv4, work(&["a"]));
    next(&reports);
    handle.work(Family::Ipv4, work(&["b"]));
    handle.work(Family::Ipv4, work(&["c", "b"]));
    assert!(reports.recv_timeout(Duration::from_millis(50)).is_err(), "it waits for an hour");
    handle.set_timing(quick());
    next(&reports);
    let last = recorder.calls().pop();
    assert_eq!(last, Some(Call::Apply(vec!["demo/b".into(), "demo/c".into()])), "coalesced, each once");
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_shorter_interval_ends_a_wait_that_is_under_way() {
    let recorder = Recorder::default();
    let (handle, thread, reports) =
        engine(&recorder, Timing { min_interval: Duration::from_secs(60), ..quick() });
    handle.start();
    next(&reports);
    handle.work(Family::Ipv4, work(&["a"]));
    assert!(reports.recv_timeout(Duration::from_millis(50)).is_err(), "it waits for a minute");
    handle.set_timing(quick());
    assert!(next(&reports).outcome.is_ok());
    assert_eq!(recorder.calls().pop(), Some(Call::Apply(vec!["demo/a".into()])));
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_failure_is_retried_with_everything_compared_and_loses_no_trigger() {
    let recorder = Recorder::default();
    let (handle, thread, reports) = engine(&recorder, quick());
    handle.start();
    next(&reports);
    *recorder.failures.lock().unwrap() = 2;
    handle.work(Family::Ipv4, work(&["a"]));
    let failed = next(&reports);
    assert!(failed.outcome.is_err() && failed.triggers.is_empty());
    assert_eq!(failed.objects, ObjectChanges::default());
    assert!(next(&reports).outcome.is_err());
    let mended = next(&reports);
    assert!(mended.outcome.is_ok() && mended.full);
    assert_eq!(mended.triggers, [1]);
    assert_eq!(mended.objects, ObjectChanges { services: 1, endpoint_slices: 2 });
    assert_eq!(
        recorder.calls()[1..],
        [Call::Apply(vec!["demo/a".into()]), Call::Compare(Vec::new()), Call::Compare(Vec::new())]
    );
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn drift_is_compared_and_other_families_are_left_alone() {
    let recorder = Recorder::default();
    let (handle, thread, reports) = engine(&recorder, quick());
    handle.start();
    next(&reports);
    handle.compare(Family::Ipv6);
    handle.compare(Family::Ipv4);
    let report = next(&reports);
    assert!(report.full && !report.repaired, "nothing had to be written");
    assert_eq!(recorder.calls(), [Call::Compare(Vec::new()), Call::Compare(Vec::new())]);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn drift_while_changes_wait_is_one_comparison_with_them() {
    let recorder = Recorder::default();
    let (handle, thread, reports) =
        engine(&recorder, Timing { min_interval: Duration::from_millis(300), ..quick() });
    handle.start();
    next(&reports);
    handle.work(Family::Ipv4, work(&["a"]));
    handle.compare(Family::Ipv4);
    let report = next(&reports);
    assert!(report.outcome.is_ok() && report.full);
    assert_eq!(recorder.calls()[1..], [Call::Compare(vec!["demo/a".into()])]);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn a_health_check_port_alone_is_a_reason_to_commit() {
    let recorder = Recorder::default();
    let (handle, thread, reports) = engine(&recorder, quick());
    handle.start();
    next(&reports);
    let check = HealthCheckPort { namespace: "demo".into(), service: "a".into(), port: Some(32222) };
    handle.work(Family::Ipv4, Work { health_checks: vec![check], ..Work::default() });
    next(&reports);
    assert_eq!(recorder.calls()[1..], [Call::OpenHealthCheckPorts(Some(32222)), Call::Apply(Vec::new())]);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn rules_without_notifications_are_checked_and_repaired() {
    let recorder = Recorder { checked: true, ..Recorder::default() };
    let timing = Timing { check_interval: Duration::from_millis(20), ..quick() };
    let (handle, thread, reports) = engine(&recorder, timing);
    handle.start();
    next(&reports);
    let checks = || recorder.calls().iter().filter(|call| **call == Call::Check).count();
    until("two checks that find everything there", || checks() >= 2);
    assert!(reports.try_recv().is_err(), "nothing to mend");
    recorder.gone.store(true, Ordering::Relaxed);
    assert!(next(&reports).full);
    assert_eq!(recorder.calls().iter().filter(|call| matches!(call, Call::Compare(_))).count(), 2);
    handle.stop();
    thread.join().unwrap();
}
