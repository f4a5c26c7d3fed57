//! The example mode of `docs/adding-a-mode.md`, run by the engine. The tests wait for conditions only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "adding_a_mode/recording.rs"]
mod recording;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{JoinHandle, yield_now};
use std::time::Duration;

use portolan_engine::{About, Changes, Commit, Dataplane, Error, Removal, Table, Takeover};
use portolan_engine::{Boxed, Handle, Report, Step, Timing, Work, spawn};
use portolan_model::{Backend, Change, Family, Forwarding, Protocol, ServicePortName, Settings};
use recording::{Recording, Refused};

/// A Service port at port 80 of `10.96.0.NUMBER` with one endpoint.
fn service(number: u8, protocol: Protocol, endpoint: u8) -> Change {
    let backend = Backend { address: [10, 244, 0, endpoint].into(), port: 8080, may_hairpin: false };
    let forwarding = Forwarding::plain(([10, 96, 0, number], 80).into(), protocol, Box::new([backend]));
    let (namespace, service) = ("demo".into(), format!("s{number}").into());
    let name = ServicePortName { namespace, service, port: "".into(), protocol };
    Change { name: Arc::new(name), family: Family::Ipv4, old: None, new: Some(Arc::new(forwarding)) }
}

/// The same mode in another place.
#[derive(Clone, Default)]
struct Other(Recording);

impl Dataplane for Other {
    fn about(&self) -> About {
        About { is_notified: false, ..About::of("other") }
    }

    fn apply(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        self.0.apply(table, changes)
    }

    fn compare(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        self.0.compare(table, changes)
    }

    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Removal, Error> {
        self.0.remove_part(takeover)
    }
}

/// A running engine, with two Services.
struct Running {
    handle: Handle,
    thread: JoinHandle<()>,
    reports: Receiver<Report>,
}

impl Running {
    fn new(recording: &Recording) -> Self {
        let timing = Timing { min_interval: Duration::ZERO, ..Timing::default() };
        let (sender, reports) = channel();
        let dataplanes: Vec<(Settings, Boxed)> =
            vec![(Settings::plain(Family::Ipv4), Box::new(recording.clone()))];
        let (handle, thread) = spawn(dataplanes, timing, move |report| drop(sender.send(report))).unwrap();
        let running = Self { handle, thread, reports };
        running.work(&[service(1, Protocol::Tcp, 1), service(2, Protocol::Sctp, 2)]);
        assert!(recording.kernel().messages.is_empty(), "nothing is written before the start");
        running.handle.start();
        let report = running.report();
        assert!(report.full && report.outcome.unwrap().refused.len() == 1, "SCTP");
        running
    }

    fn work(&self, changes: &[Change]) {
        self.handle.work(Family::Ipv4, Work { changes: changes.to_vec(), ..Work::default() });
    }

    fn report(&self) -> Report {
        self.reports.recv().expect("the engine runs")
    }

    fn end(self) {
        self.handle.stop();
        self.thread.join().unwrap();
    }
}

fn messages(recording: &Recording) -> Vec<String> {
    std::mem::take(&mut recording.kernel().messages)
}

#[test]
fn it_starts_and_writes_what_changes() {
    let recording = Recording::default();
    let running = Running::new(&recording);
    assert_eq!(messages(&recording), ["put ClusterIp(10.96.0.1, 80)/TCP demo/s1 10.244.0.1:8080", "lead in"]);
    running.work(&[service(1, Protocol::Tcp, 9), service(3, Protocol::Udp, 3)]);
    assert_eq!(running.report().changed.len(), 2);
    running.work(&[Change { new: None, ..service(1, Protocol::Tcp, 9) }]);
    running.report();
    assert_eq!(
        messages(&recording),
        [
            "put ClusterIp(10.96.0.1, 80)/TCP demo/s1 10.244.0.9:8080",
            "put ClusterIp(10.96.0.3, 80)/UDP demo/s3 10.244.0.3:8080",
            "remove ClusterIp(10.96.0.1, 80)/TCP",
        ]
    );
    running.end();
}

#[test]
fn after_a_failure_everything_is_compared() {
    let recording = Recording::default();
    let running = Running::new(&recording);
    recording.kernel().refuses = 2;
    running.work(&[service(1, Protocol::Tcp, 9), service(3, Protocol::Udp, 3)]);
    for _ in 0..2 {
        let error = running.report().outcome.unwrap_err();
        assert!(error.mode_error::<Refused>().is_some(), "{error}");
    }
    let mended = running.report();
    assert!(mended.full && mended.outcome.unwrap().elements == 2);
    assert_eq!(recording.kernel().lines.len(), 2);
    running.end();
}

#[test]
fn a_restart_writes_nothing_and_drift_is_repaired() {
    let recording = Recording::default();
    Running::new(&recording).end();
    messages(&recording);
    let running = Running::new(&recording);
    assert!(messages(&recording).is_empty());
    recording.kernel().lines.clear();
    running.handle.compare(Family::Ipv4);
    assert!(running.report().repaired);
    assert_eq!(recording.kernel().lines.len(), 1);
    running.end();
}

#[test]
fn another_data_plane_replaces_it() {
    let (old, new) = (Recording::default(), Other::default());
    let running = Running::new(&old);
    running.handle.replace(Family::Ipv4, Box::new(new.clone()));
    assert_eq!(running.report().step, Step::Replacement);
    // The removal is not reported.
    while !old.kernel().lines.is_empty() {
        yield_now();
    }
    assert!(!old.kernel().leads_in);
    assert_eq!(new.0.kernel().lines.len(), 1);
    running.end();
}

#[test]
fn the_page_lists_the_methods_of_the_trait() {
    let page = include_str!("../../../docs/adding-a-mode.md");
    let (_, section) = page.split_once("\n## What a mode does\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let listed = section.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0));
    let code = include_str!("../src/dataplane.rs");
    let (_, code) = code.split_once("\npub trait Dataplane {\n").unwrap();
    let (code, _) = code.split_once("\n}\n").unwrap();
    let methods = code.lines().filter_map(|line| Some(line.strip_prefix("    fn ")?.split_once('(')?.0));
    assert_eq!(listed.collect::<Vec<_>>(), methods.collect::<Vec<_>>());
}

#[test]
fn the_page_shows_this_code() {
    let page = include_str!("../../../docs/adding-a-mode.md");
    let code = include_str!("adding_a_mode/recording.rs");
    assert!(
        page.contains(&format!("```rust\n{code}```\n")),
        "docs/adding-a-mode.md has other code than recording.rs"
    );
    assert!(code.lines().count() <= 150, "{} lines", code.lines().count());
}
