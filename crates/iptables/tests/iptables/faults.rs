//! Tests that a data plane repairs or reports faults around it, and that no table is ever half written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use portolan_engine::drift::DriftWatch;
use portolan_engine::{Timing, Work, spawn};
use portolan_iptables::{Error, Iptables, IptablesOptions, Programs, Variant};
use portolan_model::{Change, Family, Forwarding, Frontend, NodePortAddresses, Settings};
use portolan_testkit::eventually;

use super::example::{cluster_ip, ip, ipv4, put, settings};
use super::kernel::{VARIANTS, apply, in_namespace, save, unordered};
use super::load::{LOCK, assert_lossless, data_plane, driven, in_use, programs, real_program, start, world};
use super::wrapped::wrapped;

/// Longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// A fault of a restore.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// One of its lines is invalid.
    Wrong,
    /// The program is killed after a line.
    Killed,
}

/// Programs that behave like iptables until a fault is set.
struct Breakable {
    directory: PathBuf,
    programs: Programs,
}

impl Breakable {
    fn new(variant: Variant, name: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("portolan-{name}-{variant:?}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let real = real_program(variant);
        let restore = format!(
            "read -r fault line < {}/fault 2> /dev/null\n\
             case $fault in\n\
             wrong) sed \"${{line}}s/.*/-A NOWHERE -j NOTHING/\" | {real}-restore \"$@\" ;;\n\
             killed) head -n \"$line\" | {real}-restore \"$@\"; kill -KILL $$ ;;\n\
             *) exec {real}-restore \"$@\" ;;\n\
             esac",
            directory.display()
        );
        let programs = wrapped(&directory, variant, "-restore", &restore);
        assert_eq!(programs.variant(), variant);
        Self { directory, programs }
    }

    fn break_at(&self, fault: Fault, line: usize) {
        let word = match fault {
            Fault::Wrong => "wrong",
            Fault::Killed => "killed",
        };
        fs::write(self.directory.join("fault"), format!("{word} {line}\n")).unwrap();
    }

    fn mend(&self) {
        fs::remove_file(self.directory.join("fault")).unwrap();
    }
}

impl Drop for Breakable {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The chains of each table, with their rules.
type Tables<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a str>>>;

fn tables(saved: &str) -> Tables<'_> {
    let mut tables = Tables::new();
    for ((table, chain), rules) in unordered(saved) {
        tables.entry(table).or_default().insert(chain, rules);
    }
    tables
}

fn assert_each_table_is_whole(variant: Variant, before: &str, after: &str, what: &str) {
    let saved = save(Family::Ipv4, variant);
    let (before, after) = (tables(before), tables(after));
    for (table, chains) in tables(&saved) {
        let is_whole = Some(&chains) == before.get(table) || Some(&chains) == after.get(table);
        assert!(is_whole, "{what}: {table} is neither as before nor as after:\n{saved}");
    }
}

/// Returns a Service with frontends of several kinds. With and without endpoints, it has rules in both tables.
fn busy(places: &[&str]) -> Change {
    let forwarding = cluster_ip("10.96.0.20", 80, places);
    let frontends = Box::new([
        Frontend::ClusterIp(ip("10.96.0.20"), 80),
        Frontend::ExternalIp(ip("198.51.100.1"), 80),
        Frontend::NodePort(30080),
    ]);
    put("busy", "http", Forwarding { frontends, ..forwarding })
}

fn a_change_that_fails_at_any_line(variant: Variant) {
    let breakable = Breakable::new(variant, "change");
    let world = world();
    let node = world.node().namespace();
    let mut data_plane = data_plane(breakable.programs.clone());
    let (empty, full) = (busy(&[]), busy(&["10.244.1.11:8080", "10.244.1.12:8080"]));
    let (before, after) = node
        .run(|| {
            data_plane.apply(&in_use()).unwrap();
            data_plane.apply(std::slice::from_ref(&full)).unwrap();
            data_plane.resync().unwrap();
            let after = save(Family::Ipv4, variant);
            data_plane.apply(std::slice::from_ref(&empty)).unwrap();
            (save(Family::Ipv4, variant), after)
        })
        .unwrap();
    assert_ne!(unordered(&before), unordered(&after));
    let load = start(&world);
    let mut lines = 0;
    for fault in [Fault::Wrong, Fault::Killed] {
        for line in 1.. {
            let what = format!("{variant:?}, {fault:?} at line {line}");
            breakable.break_at(fault, line);
            let outcome = node.run(|| data_plane.apply(std::slice::from_ref(&full))).unwrap();
            breakable.mend();
            if outcome.is_ok() {
                // The restore has no such line.
                lines = line;
            }
            node.run(|| {
                assert_each_table_is_whole(variant, &before, &after, &what);
                let commit = data_plane.apply(&[]).unwrap();
                assert_eq!(commit.full, outcome.is_err(), "{what}");
                assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&after), "{what}");
                assert!(!data_plane.apply(std::slice::from_ref(&empty)).unwrap().full);
                assert_eq!(unordered(&save(Family::Ipv4, variant)), unordered(&before), "{what}");
            })
            .unwrap();
            if line == lines {
                break;
            }
        }
    }
    assert!(lines > 20, "a restore of {lines} lines");
    assert_lossless(load);
}

#[test]
fn a_change_that_fails_at_any_line_is_mended_and_no_packet_of_others_is_lost_nft() {
    a_change_that_fails_at_any_line(Variant::Nft);
}

#[test]
fn a_change_that_fails_at_any_line_is_mended_and_no_packet_of_others_is_lost_legacy() {
    a_change_that_fails_at_any_line(Variant::Legacy);
}

/// A first load has several transactions of the nat table: the chains of Services, to which no rule leads yet, and
/// then all the rest.
#[test]
fn a_load_that_fails_at_any_line_is_mended() {
    for variant in VARIANTS {
        let breakable = Breakable::new(variant, "load");
        in_namespace(|| {
            let open = || driven(breakable.programs.clone(), settings(Family::Ipv4));
            let mut data_plane = open();
            data_plane.apply(&ipv4()[1..3]).unwrap();
            data_plane.resync().unwrap();
            let after = save(Family::Ipv4, variant);
            data_plane.remove().unwrap();
            let before = save(Family::Ipv4, variant);
            let (before, after) = (tables(&before), tables(&after));
            for line in 1.. {
                breakable.break_at(Fault::Wrong, line);
                let outcome = data_plane.resync();
                breakable.mend();
                let what = format!("{variant:?}, line {line}, {outcome:?}");
                let saved = save(Family::Ipv4, variant);
                let loaded = tables(&saved);
                for table in ["mangle", "filter"] {
                    let is_whole = loaded[table] == before[table] || loaded[table] == after[table];
                    assert!(is_whole, "{what}: {saved}");
                }
                for (chain, rules) in &loaded["nat"] {
                    let is_whole = |tables: &Tables<'_>| tables["nat"].get(chain) == Some(rules);
                    assert!(is_whole(&before) || is_whole(&after), "{what}: {chain}: {saved}");
                }
                let leads_there = !loaded["nat"]["PREROUTING"].is_empty();
                assert!(!leads_there || loaded["nat"] == after["nat"], "{what}: {saved}");
                assert_eq!(outcome.is_ok(), loaded == after, "{what}");
                data_plane.apply(&[]).unwrap();
                assert_eq!(tables(&save(Family::Ipv4, variant)), after, "{what}");
                data_plane.remove().unwrap();
                if outcome.is_ok() {
                    assert!(line > 80, "a load of {line} lines");
                    break;
                }
            }
        });
    }
}

/// The kernel refuses to remove a chain that a rule leads to. A load that tried it would fail as a whole, and so would each later
/// one.
#[test]
fn a_chain_of_a_removed_service_that_others_lead_to_is_emptied() {
    for variant in VARIANTS {
        in_namespace(|| {
            let mut data_plane = driven(programs(variant), settings(Family::Ipv4));
            let service = put("old", "http", cluster_ip("10.96.0.30", 80, &["10.244.1.11:8080"]));
            data_plane.apply(std::slice::from_ref(&service)).unwrap();
            data_plane.resync().unwrap();
            let with_service = save(Family::Ipv4, variant);
            let chain = with_service.lines().find_map(|line| {
                line.strip_prefix(':')?.split(' ').next().filter(|name| name.starts_with("KUBE-SVC-"))
            });
            let chain = chain.unwrap();
            apply(&programs(variant), &format!("*nat\n-A OUTPUT -d 192.0.2.9 -j {chain}\nCOMMIT\n"));
            let gone = Change { old: service.new.clone(), new: None, ..service };
            assert!(data_plane.apply(&[gone]).is_err(), "the kernel refuses the removal");
            assert!(data_plane.apply(&[]).unwrap().full);
            let saved = save(Family::Ipv4, variant);
            assert_eq!(tables(&saved)["nat"].get(chain), Some(&Vec::new()), "{variant:?}: {saved}");
            assert!(!saved.contains("KUBE-SEP-"), "{saved}");
            assert_eq!(data_plane.resync().unwrap().objects, 0, "nothing is written again");
            assert!(!data_plane.apply(&[busy(&["10.244.1.12:8080"])]).unwrap().full);
        });
    }
}

/// Each of two commits waits for the usual 5 s.
#[test]
fn a_lock_that_others_hold_for_10_s_is_reported_and_outlived() {
    for variant in VARIANTS {
        let world = world();
        let node = world.node().namespace();
        let mut data_plane = data_plane(programs(variant));
        let (empty, full) = (busy(&[]), busy(&["10.244.1.11:8080"]));
        let before = node
            .run(|| {
                data_plane.apply(&[in_use(), vec![empty.clone()]].concat()).unwrap();
                data_plane.resync().unwrap();
                save(Family::Ipv4, variant)
            })
            .unwrap();
        let load = start(&world);
        let holder = node.run(|| File::open(LOCK).unwrap()).unwrap();
        holder.lock().unwrap();
        let mut apply = |changes: &[Change]| node.run(|| data_plane.apply(changes)).unwrap();
        let first = apply(std::slice::from_ref(&full));
        if variant == Variant::Nft {
            assert!(!first.unwrap().full, "the front end of nftables has no use for the lock");
        } else {
            for outcome in [first, apply(&[])] {
                let error = outcome.unwrap_err();
                let Some(Error::Locked { program, .. }) = error.mode_error() else { panic!("{error}") };
                assert!(program.ends_with("iptables-legacy-restore"), "{program}");
            }
            let held = node.run(|| save(Family::Ipv4, variant)).unwrap();
            assert_eq!(unordered(&held), unordered(&before));
            holder.unlock().unwrap();
            assert!(apply(&[]).unwrap().full);
        }
        let after = node.run(|| save(Family::Ipv4, variant)).unwrap();
        assert!(after.contains("demo/busy:http -> 10.244.1.11:8080"), "{after}");
        assert_lossless(load);
    }
}

/// With nftables' front end the kernel notifies of the flush; with the older iptables the engine checks periodically.
#[test]
fn a_chain_that_another_program_flushes_is_restored() {
    for variant in VARIANTS {
        in_namespace(|| {
            let family = Family::Ipv4;
            let data_plane = Iptables::new(programs(variant), settings(family), IptablesOptions::default());
            let own = data_plane.own();
            let timing = Timing { check_interval: Duration::from_millis(100), ..Timing::default() };
            let (sender, reports) = channel();
            let report = move |report| drop(sender.send(report));
            let (engine, thread) =
                spawn(vec![(settings(family), Box::new(data_plane))], timing, report).unwrap();
            engine.work(family, Work { changes: ipv4(), ..Work::default() });
            engine.start();
            assert!(reports.recv_timeout(PATIENCE).unwrap().outcome.is_ok());
            let loaded = save(family, variant);
            let mut watch = own.map(|own| DriftWatch::open(vec![own]).unwrap());
            assert_eq!(watch.is_some(), variant == Variant::Nft);
            apply(&programs(variant), "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
            if let Some(watch) = &mut watch {
                watch.drifted().unwrap().into_iter().for_each(|family| engine.compare(family));
            }
            let is_back = || unordered(&save(family, variant)) == unordered(&loaded);
            eventually(PATIENCE, "KUBE-SERVICES is back", is_back).unwrap();
            let report = reports.recv_timeout(PATIENCE).unwrap();
            assert!(report.full && report.repaired, "{report:?}");
            engine.stop();
            thread.join().unwrap();
        });
    }
}

/// Without node-port addresses, `KUBE-SERVICES` has no rule that exists independently of Services.
#[test]
fn a_flush_is_noticed_where_no_address_takes_node_ports() {
    for variant in VARIANTS {
        in_namespace(|| {
            let node_port_addresses = NodePortAddresses::Addresses(Vec::new());
            let settings = Settings { node_port_addresses, ..settings(Family::Ipv4) };
            let mut data_plane = driven(programs(variant), settings);
            data_plane.resync().unwrap();
            assert!(data_plane.is_intact().unwrap(), "without Services");
            data_plane.apply(&ipv4()).unwrap();
            assert!(data_plane.is_intact().unwrap());
            apply(&programs(variant), "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
            assert!(!data_plane.is_intact().unwrap());
            assert!(data_plane.apply(&[]).unwrap().full);
            assert!(data_plane.is_intact().unwrap());
        });
    }
}
