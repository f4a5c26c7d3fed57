//! Changes that arrive while a real table is compared.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_engine::Driven;
use portolan_engine::dataplane::{Commit, Undisturbed};
use portolan_engine::drift::generation;
use portolan_engine::table::{Changes, Table};
use portolan_model::observed::{Fact, ObservedEndpoints};
use portolan_model::world::Edited;
use portolan_model::{Backend, Family, Forwarding, Protocol as Transport, ServicePortName, Settings};
use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::{Protocol, Socket};

use super::super::dataplane::Nftables;
use super::super::layout::TRANSLATE;
use super::super::observe;
use super::super::readback::SavedElements;
use super::super::reading::Reading;
use super::*;

/// Random edits, of which some arrive in every nth pause.
struct Arriving {
    edited: Edited,
    /// The wanted state with everything that has arrived.
    table: Table,
    /// Number of pauses between two arrivals.
    period: usize,
    pauses: usize,
    /// True if the kernel has an older state when the comparison begins.
    is_behind: bool,
    /// Number of arrivals left.
    left: usize,
    given: Vec<Change>,
    current: Vec<Change>,
    /// Number of arrivals that were written before the comparison was complete.
    written: usize,
    /// The same, and the number of arrivals, in the comparison that is under way.
    arrivals_written: usize,
    arrivals: usize,
}

impl Arriving {
    fn new(settings: &Settings, seed: u64, is_behind: bool) -> Self {
        Self {
            edited: Edited::new(seed, 40),
            table: Table::new(settings.clone()),
            period: 1 + usize::try_from(seed % 5).unwrap(),
            pauses: 0,
            is_behind,
            left: 6,
            given: Vec::new(),
            current: Vec::new(),
            written: 0,
            arrivals_written: 0,
            arrivals: 0,
        }
    }

    fn take(&mut self, changes: Vec<Change>) -> Vec<Change> {
        self.table.take(changes, []).forwardings
    }

    fn first(&mut self) -> Vec<Change> {
        let changes = self.edited.first().changes;
        self.take(changes)
    }

    fn edit(&mut self, count: usize) -> Vec<Change> {
        let changes = self.edited.edit(count).changes;
        self.take(changes)
    }
}

impl Meanwhile for Arriving {
    fn arrived(&mut self) -> Option<Changes> {
        self.pauses += 1;
        if self.left == 0 || !self.pauses.is_multiple_of(self.period) {
            return None;
        }
        self.left -= 1;
        self.arrivals += 1;
        self.current = self.edit(2);
        self.given.extend(self.current.iter().cloned());
        Some(Changes { forwardings: self.current.clone(), health_checks: Vec::new() })
    }

    fn written(&mut self, commit: Commit) {
        self.written += 1;
        assert!(!commit.full && commit.refused.is_empty());
        self.arrivals_written += 1;
        if self.is_behind || self.arrivals_written < self.arrivals {
            // What an older state has under other addresses is deleted by the comparison, also that of a change that was left.
            return;
        }
        let observed = observe::read(self.table.family()).unwrap().unwrap();
        let entries: Vec<_> =
            self.table.iter().map(|(name, forwarding)| (name.clone(), forwarding)).collect();
        let mut differences = observed.difference(&entries);
        differences.retain(|difference| {
            let is_changed = |change: &Change| Some(&change.name) == difference.name.as_ref();
            self.current.iter().any(is_changed)
        });
        assert!(differences.is_empty(), "{differences:?} after {:?}", self.current);
    }
}

fn open(settings: &Settings, large: u32) -> Driven<Nftables> {
    let mut nftables = Nftables::open(settings.clone()).unwrap();
    nftables.large = large;
    Driven::new(settings.clone(), nftables)
}

/// Restarts on the table that another process has left, of an older state if `is_behind`, while changes arrive. Returns how
/// many arrivals were written before the comparison was complete.
fn restart(settings: &Settings, seed: u64, is_behind: bool) -> usize {
    let mut arriving = Arriving::new(settings, seed, is_behind);
    let folder = tempfile::tempdir().unwrap();
    let is_saved = seed / 4 % 2 == 1;
    let saved = is_saved.then(|| SavedElements::in_folder(folder.path(), settings.family));
    let former = Nftables::open(settings.clone()).unwrap().with_saved(saved.clone());
    let mut former = Driven::new(settings.clone(), former);
    former.apply(&arriving.first()).unwrap();
    former.resync().unwrap();
    for _ in 0..5 {
        former.apply(&arriving.edit(5)).unwrap();
    }
    let generation = generation(&mut Socket::open(Protocol::Netfilter).unwrap()).unwrap();
    former.leave(generation);
    drop(former);
    assert_eq!(folder.path().read_dir().unwrap().count(), usize::from(saved.is_some()));
    if is_behind {
        arriving.edit(10);
    }
    let large = if seed.is_multiple_of(3) { u32::MAX } else { 0 };
    let mut nftables = Nftables::open(settings.clone()).unwrap().with_saved(saved.clone());
    nftables.large = large;
    // A reading that begins before the comparison has pauses, too.
    let reads_before = seed % 4 >= 2;
    let reading =
        reads_before.then(|| Reading::when_taken_over(TRANSLATE.place(settings.family), large, saved));
    let is_taken_over = reading.as_ref().map(Reading::is_taken_over);
    let mut nftables = Driven::new(settings.clone(), nftables.with_reading(reading));
    nftables.apply(&arriving.table.all().forwardings).unwrap();
    let commit = nftables.resync_and_follow(&mut arriving).unwrap();
    assert!(commit.full && is_taken_over.is_none_or(|is_taken_over| is_taken_over()));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "what was saved counts once");
    if !is_behind && arriving.written == 6 - arriving.left {
        // Other Service ports may need what several can share, so its deletion waits for the comparison.
        let waits = |line: &String| {
            let is_shared = ["cluster-ips", "hairpin-connections"].iter().any(|set| line.contains(set));
            line.starts_with("delete element") && is_shared
        };
        assert!(commit.objects == 0 && commit.messages.lines().iter().all(waits), "{:?}", commit.messages);
    }
    let given = std::mem::take(&mut arriving.given);
    nftables.follow(given);
    assert_in_sync(settings, &arriving.table);
    // It goes on from there.
    for _ in 0..5 {
        nftables.apply(&arriving.edit(3)).unwrap();
    }
    assert_in_sync(settings, &arriving.table);
    // A comparison of a running process.
    (arriving.left, arriving.arrivals, arriving.arrivals_written) = (6, 0, 0);
    nftables.mark_unknown();
    nftables.resync_and_follow(&mut arriving).unwrap();
    let given = std::mem::take(&mut arriving.given);
    nftables.follow(given);
    assert_in_sync(settings, &arriving.table);
    nftables.apply(&arriving.edit(3)).unwrap();
    assert_in_sync(settings, &arriving.table);
    arriving.written
}

/// Asserts that another process finds nothing to write.
fn assert_in_sync(settings: &Settings, table: &Table) {
    let mut other = open(settings, u32::MAX);
    other.apply(&table.all().forwardings).unwrap();
    let commit = other.resync_and_follow(&mut Undisturbed).unwrap();
    assert_eq!((commit.elements, commit.objects), (0, 0), "{:?}", commit.messages);
}

#[test]
fn changes_that_arrive_during_a_comparison_are_written_before_it_is_complete() {
    let mut written = [0; 2];
    for seed in 0..30 {
        for family in Family::BOTH {
            for is_behind in [false, true] {
                let settings = Settings { counters: seed % 2 == 1, ..Settings::plain(family) };
                written[usize::from(is_behind)] +=
                    in_new_network_namespace(|| restart(&settings, seed, is_behind))
                        .expect("this test needs root");
            }
        }
    }
    assert!(written.iter().all(|&written| written > 300), "{written:?} of 720 each");
}

/// Returns a Service port with two endpoints. Their addresses have its number, and end with `host` and the next one.
fn numbered(number: u8, host: u8) -> Change {
    let backend =
        |host| Backend { address: IpAddr::from([10, 244, number, host]), port: 8080, may_hairpin: false };
    let frontend = SocketAddr::new(IpAddr::from([10, 96, 0, number]), 80);
    let cluster = Box::new([backend(host), backend(host + 1)]);
    let forwarding =
        Forwarding { has_endpoints: true, ..Forwarding::plain(frontend, Transport::Tcp, cluster) };
    let name = ServicePortName {
        namespace: "demo".into(),
        service: format!("web-{number}").into(),
        port: "".into(),
        protocol: Transport::Tcp,
    };
    Change { name: Arc::new(name), family: Family::Ipv4, old: None, new: Some(Arc::new(forwarding)) }
}

/// Another instance adds a Service port in one pause. In every later pause the endpoints of one more Service port change.
struct Overlapping {
    other: Driven<Nftables>,
    /// What the other instance adds.
    added: Option<Change>,
    /// The pause in which it does.
    at: usize,
    pauses: usize,
    changing: Change,
    hosts: u8,
}

impl Overlapping {
    /// Asserts that every address leads to endpoints of its Service port.
    fn assert_nothing_is_mixed_up() {
        let observed = observe::read(Family::Ipv4).unwrap().unwrap();
        for port in observed.ports {
            let Some(name) = port.name else { continue };
            let endpoints = match port.endpoints {
                ObservedEndpoints::Lists { cluster: Fact::Known(endpoints), .. }
                | ObservedEndpoints::Shared(endpoints) => endpoints,
                other => panic!("{other:?}"),
            };
            let numbers: BTreeSet<String> = endpoints
                .iter()
                .map(|endpoint| match endpoint.at.ip() {
                    IpAddr::V4(ip) => format!("web-{}", ip.octets()[2]),
                    IpAddr::V6(ip) => panic!("{ip} in IPv4"),
                })
                .collect();
            assert!(numbers.iter().all(|number| **number == *name.service), "{name} leads to {numbers:?}");
        }
    }
}

impl Meanwhile for Overlapping {
    fn arrived(&mut self) -> Option<Changes> {
        self.pauses += 1;
        Self::assert_nothing_is_mixed_up();
        if self.pauses == self.at {
            self.other.apply(&[self.added.take().unwrap()]).unwrap();
        }
        if self.pauses <= self.at || self.hosts > 20 {
            return None;
        }
        self.hosts += 2;
        let next = numbered(9, self.hosts);
        self.changing = Change { old: self.changing.new.take(), ..next };
        Some(Changes { forwardings: vec![self.changing.clone()], health_checks: Vec::new() })
    }

    fn written(&mut self, _commit: Commit) {
        Self::assert_nothing_is_mixed_up();
    }
}

/// Restarts while another instance still runs, which commits in the pause with this number. Returns false if there was no such
/// pause.
fn restart_beside_another(at: usize) -> bool {
    let settings = Settings::plain(Family::Ipv4);
    let mut other = open(&settings, u32::MAX);
    other.apply(&[1, 2, 3].map(|number| numbered(number, 1))).unwrap();
    other.resync().unwrap();
    // The first one was deleted while nothing watched, and the last one is new.
    let mut nftables = open(&settings, u32::MAX);
    nftables.apply(&[2, 3, 9].map(|number| numbered(number, 1))).unwrap();
    let mut meanwhile =
        Overlapping { other, added: Some(numbered(4, 1)), at, pauses: 0, changing: numbered(9, 1), hosts: 1 };
    nftables.resync_and_follow(&mut meanwhile).unwrap();
    Overlapping::assert_nothing_is_mixed_up();
    let mut table = Table::new(settings.clone());
    table.take([numbered(2, 1), numbered(3, 1), numbered(9, meanwhile.hosts)], []);
    assert_in_sync(&settings, &table);
    meanwhile.added.is_none()
}

#[test]
fn an_id_that_was_planned_but_never_written_may_be_that_of_another() {
    let restart =
        |at: &usize| in_new_network_namespace(|| restart_beside_another(*at)).expect("this test needs root");
    let pauses = (1..1_000).take_while(restart).count();
    assert!((4..999).contains(&pauses), "{pauses}");
}
