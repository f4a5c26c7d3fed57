//! Another program commits while the data plane compares.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use portolan_engine::Error;
use portolan_model::Family;
use portolan_nftables::Nftables;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{
    Chain, ElementRef, ElementsOperation, Family as WireFamily, IfExists, NftTable as WireTable, Rule,
    Transaction,
};

use super::support::{cluster_ip, every_kind, gone, in_namespace, nft, programmed, put, settings};
use super::table::Table;

/// A cluster IP that no Service has.
const STRAY: [u8; 4] = [10, 99, 9, 9];

/// Number of comparisons, and its limit if none of them succeeds on a busy machine.
const COMPARISONS: usize = 60;
const MOST_COMPARISONS: usize = 10 * COMPARISONS;

/// Commits to a table of its own, and alternately adds an element to our table and deletes it if `ours` is true, until `stop` is
/// set. Returns the number of commits.
fn disturb(stop: &AtomicBool, ours: bool) -> usize {
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let mut commit = |write: &dyn Fn(&mut Transaction)| {
        let mut transaction = Transaction::begin(socket.next_sequence(10), None);
        write(&mut transaction);
        socket.commit(&transaction.finish().unwrap())
    };
    let foreign = "foreign";
    commit(&|transaction| {
        transaction.new_table(&WireTable::new(WireFamily::IPV4, foreign), IfExists::Fail);
        transaction.new_chain(&Chain::regular(WireFamily::IPV4, foreign, "mine"), IfExists::Fail);
    })
    .unwrap();
    let mut commits = 0;
    while !stop.load(Ordering::Relaxed) {
        commit(&|transaction| {
            transaction.append_rule(&Rule::new(WireFamily::IPV4, foreign, "mine", Vec::new()));
            transaction.flush_chain(WireFamily::IPV4, foreign, "mine");
        })
        .unwrap();
        for operation in [ElementsOperation::Add, ElementsOperation::Delete].into_iter().filter(|_| ours) {
            // The data plane may have deleted it already, and there may be no table.
            let _ = commit(&|transaction| {
                let mut writer = transaction.elements(operation, WireFamily::IPV4, "portolan", "cluster-ips");
                writer.push(&ElementRef::key(&STRAY));
            });
        }
        commits += 3;
    }
    commits
}

/// Stops the other thread when dropped, also if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_comparison_among_foreign_commits_succeeds_or_gives_up_and_never_corrupts() {
    in_namespace(|| {
        let mut nftables = programmed(settings(Family::Ipv4), &every_kind(Family::Ipv4));
        let table = Table::read(Family::Ipv4);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let other = scope.spawn(|| disturb(&stop, true));
            let stop_at_end = Stop(&stop);
            let mut outcomes = [0, 0];
            for attempt in 0..MOST_COMPARISONS {
                if attempt >= COMPARISONS && outcomes[0] > 0 {
                    break;
                }
                nft("flush map ip portolan endpoints");
                nftables.mark_unknown();
                match nftables.resync() {
                    Ok(commit) => {
                        assert!(commit.elements > 0, "what was missing is back");
                        outcomes[0] += 1;
                    }
                    Err(Error::Contended { .. }) => outcomes[1] += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            drop(stop_at_end);
            let commits = other.join().unwrap();
            println!("{outcomes:?} mended and given up, among {commits} foreign commits");
            assert!(outcomes[0] > 0, "{outcomes:?} mended and given up");
            assert!(commits > 30);
        });
        nftables.resync().unwrap();
        assert_eq!(Table::read(Family::Ipv4), table);
    });
}

/// A comparison that gives up says whether the data plane is as before it.
#[test]
fn a_comparison_that_gives_up_without_a_change_has_changed_nothing() {
    in_namespace(|| {
        let mut nftables = programmed(settings(Family::Ipv4), &every_kind(Family::Ipv4));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let other = scope.spawn(|| disturb(&stop, false));
            let stop_at_end = Stop(&stop);
            for round in 0..10 {
                nftables.mark_unknown();
                match nftables.resync() {
                    Ok(commit) => assert_eq!((commit.elements, commit.objects), (0, 0), "round {round}"),
                    Err(Error::Contended { is_unchanged, .. }) => assert!(is_unchanged, "round {round}"),
                    Err(error) => panic!("{error}"),
                }
            }
            let change = put("new", cluster_ip(Family::Ipv4, 9, [1]));
            for round in 0..10 {
                let change = if round % 2 == 0 { change.clone() } else { gone(&change) };
                match nftables.compare(&[change]) {
                    Ok(commit) => assert!(commit.elements > 0, "round {round}"),
                    Err(Error::Contended { is_unchanged, .. }) => {
                        assert!(!is_unchanged, "round {round}");
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            drop(stop_at_end);
            other.join().unwrap();
        });
    });
}

/// An agent that changes to this mode probes while its present mode still commits.
#[test]
fn a_probe_among_foreign_commits_succeeds_or_gives_up() {
    in_namespace(|| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let other = scope.spawn(|| disturb(&stop, true));
            let stop_at_end = Stop(&stop);
            let mut outcomes = [0, 0];
            for _ in 0..200 {
                match Nftables::open(settings(Family::Ipv4)).unwrap().probe() {
                    Ok(()) => outcomes[0] += 1,
                    Err(Error::Contended { .. }) => outcomes[1] += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            drop(stop_at_end);
            assert!(outcomes[0] > 0, "{outcomes:?} succeeded and given up");
            assert!(other.join().unwrap() > 30);
        });
    });
}
