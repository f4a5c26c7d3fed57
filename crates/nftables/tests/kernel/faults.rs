//! Changes of our table by other programs, and other faults.

use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_engine::drift::DriftWatch;
use portolan_engine::{Timing, Work, spawn};
use portolan_model::{Change, Family};
use portolan_nftables::Nftables;
use portolan_sock::{Protocol, Socket};
use portolan_testkit::eventually;
use portolan_wire::nftables::{Family as WireFamily, IfExists, NftTable as WireTable, Transaction};

use super::support::{
    cluster_ip, collect, every_kind, gone, in_namespace, list, nft, open, programmed, put, settings,
};
use super::table::{Table, generation};

const OUR_NAME: [(Family, &str); 2] = [(Family::Ipv4, "ip portolan"), (Family::Ipv6, "ip6 portolan")];

/// Faults as nft commands; `T` stands for our table, `A` for the address of the first cluster IP.
const FAULTS: [&str; 31] = [
    "delete table T",
    "add table T { flags dormant ; }",
    "chain T filter-input { policy drop ; }",
    "add chain T one",
    "add rule T endpoints-1 accept",
    "delete element T services { A . tcp . 80 }",
    "delete element T cluster-ips { A }",
    "add element T cluster-ips { B }",
    "add element T services { B . tcp . 81 : 0x1 }",
    "add element T no-endpoint-services { B . tcp . 82 }",
    "add element T endpoints { 0xfffc0000 . 7 : B . 83 }",
    "add element T source-ranges { B . tcp . 84 . B }",
    "add element T classes { 0x00000fff : goto internal-1 }",
    "add element T classes { 0x00ffffff : goto internal-1 }",
    "add element T classes { 0x0000ffff : goto internal-1 }",
    "add element T classes { 0x00000ffe : drop }",
    "delete element T classes { 0x00000001 } ; add element T classes { 0x00000001 : drop }",
    "delete element T firewall-ips { L . tcp . 80 }",
    "flush set T source-ranges",
    "flush map T endpoints",
    "flush map T services",
    "flush map T affinity-choices",
    "flush chain T endpoints-2",
    "flush chain T nat-postrouting",
    "insert rule T services accept",
    "add rule T cluster-ips-check counter",
    "flush table T",
    "add chain T mine",
    "add chain T mine { type filter hook input priority 5 ; }",
    "add set T mine { type ipv4_addr ; }",
    "delete element T no-endpoint-services { E . tcp . 80 } ; add element T no-endpoint-services { E . tcp . 80 comment other }",
];

fn fault(family: Family, command: &str) -> String {
    let (table, a, b, e, l) = match family {
        Family::Ipv4 => ("ip portolan", "10.96.0.1", "10.99.9.9", "10.96.0.8", "10.2.0.3"),
        Family::Ipv6 => {
            ("ip6 portolan", "2001:db8:60::1", "2001:db8:99::9", "2001:db8:60::8", "2001:db8:2::3")
        }
    };
    let word = |word| match word {
        "T" => table,
        "A" => a,
        "B" => b,
        "E" => e,
        "L" => l,
        other => other,
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_others_do_is_noticed_and_mended() {
    for family in Family::BOTH {
        in_namespace(|| {
            nft("add table ip foreign");
            nft("add chain ip foreign mine");
            nft("add rule ip foreign mine counter");
            let foreign = || nft("list table ip foreign");
            let state = every_kind(family);
            let mut nftables = programmed(settings(family), &state);
            let table = Table::read(family);
            let mut watch = DriftWatch::open(vec![nftables.own()]).unwrap();
            nft("add rule ip foreign mine counter");
            assert_eq!(watch.drifted().unwrap(), [], "tables of others are not ours");
            let foreign_before = foreign();
            for command in FAULTS {
                let command = fault(family, command);
                nft(&command);
                assert_ne!(Table::read_or_empty(family).as_ref(), Some(&table), "{command} does something");
                assert_eq!(watch.drifted().unwrap(), [family], "{command}");
                nftables.mark_unknown();
                let commit = nftables.resync().unwrap();
                assert!(commit.full, "{command}");
                while nftables.collect().unwrap() {}
                assert_eq!(watch.drifted().unwrap(), [], "our own commits are not drift: {command}");
                assert_eq!(Table::read(family).meaning(), table.meaning(), "{command}");
                let commit = nftables.resync().unwrap();
                assert_eq!((commit.elements, commit.objects), (0, 0), "{command}");
            }
            assert_eq!(foreign(), foreign_before);
        });
    }
}

/// The agent subscribes to changes when the first load is complete.
#[test]
fn changes_before_the_subscription_are_mended_when_it_begins() {
    for family in Family::BOTH {
        for fault_of_others in [None, Some("delete table T"), Some("flush map T services")] {
            in_namespace(|| {
                let dataplane = Box::new(Nftables::open(settings(family)).unwrap());
                let timing = Timing { min_interval: Duration::ZERO, ..Timing::default() };
                let (sender, reports) = channel();
                let report = move |report| drop(sender.send(report));
                let (engine, thread) = spawn(vec![(settings(family), dataplane)], timing, report).unwrap();
                let state = every_kind(family);
                let work = |change: &Change| Work { changes: vec![change.clone()], ..Work::default() };
                engine.work(family, Work { changes: state.clone(), ..Work::default() });
                engine.start();
                assert!(reports.recv().unwrap().full);
                engine.work(family, work(&gone(&state[0])));
                assert!(!reports.recv().unwrap().full);
                let table = Table::read(family);
                if let Some(command) = fault_of_others {
                    nft(&fault(family, command));
                }
                engine.watched();
                if fault_of_others.is_some() {
                    let report = reports.recv().unwrap();
                    assert!(report.full && report.repaired, "{report:?}");
                    assert_eq!(Table::read(family).meaning(), table.meaning());
                }
                // The answer comes after all earlier requests.
                let (taken, is_taken) = channel();
                engine.snapshot(move |_| taken.send(()).unwrap());
                is_taken.recv().unwrap();
                // The engine's own commits are no reason to compare. From now on, others are the subscriber's concern.
                nft("add table ip foreign");
                engine.work(family, work(&gone(&state[1])));
                let report = reports.recv().unwrap();
                assert!(!report.full && report.outcome.is_ok(), "{report:?}");
                engine.stop();
                thread.join().unwrap();
            });
        }
    }
}

#[test]
fn a_change_while_the_table_is_in_doubt_is_not_lost() {
    for family in Family::BOTH {
        in_namespace(|| {
            let state = every_kind(family);
            let mut nftables = programmed(settings(family), &state);
            nft(&fault(family, "delete table T"));
            nftables.mark_unknown();
            let commit =
                nftables.apply(&[gone(&state[0]), put("new", cluster_ip(family, 50, [1, 2]))]).unwrap();
            assert!(commit.full);
            let fresh = in_namespace(|| {
                let mut state: Vec<Change> = state[1..].to_vec();
                state.push(put("new", cluster_ip(family, 50, [1, 2])));
                drop(programmed(settings(family), &state));
                Table::read(family).meaning()
            });
            assert_eq!(Table::read(family).meaning(), fresh);
        });
    }
}

#[test]
fn a_refused_commit_changes_nothing_and_the_next_comparison_mends_it() {
    // There are chains for three endpoints, and none for five. Those are written first.
    let cases = Family::BOTH.into_iter().flat_map(|family| [(family, 3, 0), (family, 5, 1)]);
    for (family, endpoints, transactions) in cases {
        in_namespace(|| {
            let state = every_kind(family);
            let mut nftables = programmed(settings(family), &state);
            let element = "delete element T services { A . tcp . 80 }";
            nft(&fault(family, element));
            let damaged = Table::read(family);
            let generation_before = generation();
            let changes = [gone(&state[0]), put("new", cluster_ip(family, 50, 1..=endpoints))];
            nftables.apply(&changes).unwrap_err();
            assert_eq!(generation(), generation_before + transactions);
            if transactions == 0 {
                assert_eq!(Table::read(family), damaged, "all or nothing");
            }
            assert!(nftables.resync().unwrap().full);
            let fresh = in_namespace(|| {
                let mut state: Vec<Change> = state[1..].to_vec();
                state.push(changes[1].clone());
                drop(programmed(settings(family), &state));
                Table::read(family).meaning()
            });
            while nftables.collect().unwrap() {}
            assert_eq!(Table::read(family).meaning(), fresh);
        });
    }
}

#[test]
fn families_do_not_disturb_each_other() {
    in_namespace(|| {
        let mut planes = Family::BOTH.map(|family| programmed(settings(family), &every_kind(family)));
        let [v4, v6] = Family::BOTH.map(Table::read);
        planes[0].apply(&[put("more", cluster_ip(Family::Ipv4, 60, [1]))]).unwrap();
        assert_eq!(Table::read(Family::Ipv6), v6);
        planes[0].remove().unwrap();
        assert_eq!(Table::read(Family::Ipv6), v6);
        assert!(!nft("list tables").contains(OUR_NAME[0].1), "removed");
        planes[0].remove().unwrap();
        planes[0].apply(&[gone(&put("more", cluster_ip(Family::Ipv4, 60, [1])))]).unwrap();
        assert_eq!(Table::read(Family::Ipv4).meaning(), v4.meaning());
        assert!(!list(Family::Ipv4).is_empty());
    });
}

/// `NFT_TABLE_F_OWNER`: only the socket that created the table may change it.
const OWNED: u32 = 2;

#[test]
fn changes_after_a_failed_first_comparison_are_not_lost() {
    in_namespace(|| {
        let mut owner = Socket::open(Protocol::Netfilter).unwrap();
        let mut transaction = Transaction::begin(owner.next_sequence(1), None);
        let table = WireTable { flags: OWNED, ..WireTable::new(WireFamily::IPV4, "portolan") };
        transaction.new_table(&table, IfExists::Fail);
        owner.commit(&transaction.finish().unwrap()).unwrap();

        let state = every_kind(Family::Ipv4);
        let mut nftables = open(settings(Family::Ipv4));
        nftables.apply(&state).unwrap();
        nftables.resync().unwrap_err();
        let new = put("new", cluster_ip(Family::Ipv4, 50, [1, 2]));
        nftables.apply(&[gone(&state[0]), new.clone()]).unwrap_err();
        drop(owner);
        // A child process that another test is starting may hold the socket for a moment.
        let is_gone = || !nft("list tables").contains(OUR_NAME[0].1);
        eventually(Duration::from_secs(120), "the table goes with its owner", is_gone).unwrap();
        nftables.resync().unwrap();
        collect(&mut nftables);
        let here = Table::read(Family::Ipv4).meaning();
        let fresh = in_namespace(|| {
            let state: Vec<Change> = state[1..].iter().cloned().chain([new]).collect();
            drop(programmed(settings(Family::Ipv4), &state));
            Table::read(Family::Ipv4).meaning()
        });
        assert_eq!(here, fresh);
    });
}
