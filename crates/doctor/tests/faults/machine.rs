//! Faults of the whole machine: other tests run on it, so files of a folder stand for those of the kernel. Processes, interfaces
//! and rules are those of a namespace.

use std::fs;
use std::path::Path;

use portolan_doctor::command::DoctorOptions;
use portolan_doctor::fix::FixState;
use portolan_doctor::report::Report;
use portolan_doctor::{Code, Severity};
use portolan_node::sysctl::Host;
use portolan_testkit::Namespace;

use super::support::{Proxy, codes, node, on, only, own_table, upstream_chains};

const RELEASE: &str = "proc/sys/kernel/osrelease";
const FORWARD: &str = "proc/sys/net/ipv4/ip_forward";
const MAX: &str = "proc/sys/net/netfilter/nf_conntrack_max";
const COUNT: &str = "proc/sys/net/netfilter/nf_conntrack_count";
const COUNTERS: &str = "proc/thread-self/net/stat/nf_conntrack";
const IPVS: &str = "proc/thread-self/net/ip_vs";

/// Files that stand for those of a machine, and a node with a Portolan in a mode.
struct Machine {
    folder: tempfile::TempDir,
    node: Namespace,
    own: Proxy,
}

impl Machine {
    /// Creates a machine without faults.
    fn new(name: &str, mode: &str) -> Self {
        let node = node(name);
        let own = Proxy::with(&node, "portolan", &[&format!("--proxy-mode={mode}")]);
        if mode == "nftables" {
            own_table(&node);
        } else {
            upstream_chains(&node);
        }
        let machine = Self { folder: tempfile::tempdir().expect("a scratch folder"), node, own };
        machine.write(RELEASE, "6.1.0-18-amd64\n");
        machine.write(FORWARD, "1\n");
        machine.write(MAX, "1000\n");
        machine.write(COUNT, "10\n");
        machine.count(0, 0, 0);
        machine.write(IPVS, "IP Virtual Server version 1.2.1 (size=4096)\n");
        assert_eq!(codes(&machine.look()), []);
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.folder.path().join(path);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, text).expect("a file");
    }

    /// Writes the counters of two processors.
    fn count(&self, insert_failed: u32, drop: u32, early_drop: u32) {
        let names = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop";
        let line = |insert_failed: u32, drop: u32, early_drop: u32| {
            format!("0000000a 0 0 0 00000000 0 0 0 0 {insert_failed:08x} {drop:08x} {early_drop:08x}\n")
        };
        self.write(COUNTERS, &format!("{names}\n{}{}", line(0, 0, 0), line(insert_failed, drop, early_drop)));
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.folder.path().join(path)).expect("a file");
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn look(&self) -> Report {
        self.with(&DoctorOptions::default())
    }

    fn with(&self, options: &DoctorOptions) -> Report {
        on(&self.node, &Host::below(self.path()), options)
    }
}

#[test]
fn an_old_kernel() {
    let machine = Machine::new("old-kernel", "nftables");
    machine.write(RELEASE, "5.10.0-28-amd64\n");
    let report = machine.look();
    assert_eq!(codes(&report), [(Code::KernelTooOld, Severity::Error)]);
    assert!(only(&report).title.contains("5.10"), "{}", only(&report).title);
    machine.write(RELEASE, "5.13.0\n");
    assert_eq!(codes(&machine.look()), []);
    machine.own.end();
}

#[test]
fn a_kernel_without_ipvs() {
    let machine = Machine::new("no-ipvs", "ipvs");
    machine.remove(IPVS);
    let report = machine.look();
    assert_eq!(codes(&report), [(Code::IpvsMissing, Severity::Error)]);
    assert!(only(&report).mend.starts_with("modprobe ip_vs"), "{}", only(&report).mend);
    machine.own.end();
}

#[test]
fn a_kernel_that_tracks_no_connections() {
    let machine = Machine::new("no-conntrack", "nftables");
    for file in [MAX, COUNT, COUNTERS] {
        machine.remove(file);
    }
    let report = machine.look();
    assert_eq!(codes(&report), [(Code::ConntrackMissing, Severity::Error)]);
    assert_eq!(only(&report).mend, "modprobe nf_conntrack");
    machine.own.end();
}

#[test]
fn a_connection_table_that_is_nearly_full() {
    let machine = Machine::new("nearly-full", "nftables");
    machine.write(COUNT, "800\n");
    assert_eq!(codes(&machine.look()), [(Code::ConntrackNearlyFull, Severity::Warning)]);
    machine.write(COUNT, "990\n");
    let report = machine.look();
    assert_eq!(codes(&report), [(Code::ConntrackNearlyFull, Severity::Error)]);
    assert_eq!(only(&report).mend, "sysctl -w net.netfilter.nf_conntrack_max=2000");
    let fixed = machine.with(&DoctorOptions { fix: true, ..DoctorOptions::default() });
    assert_eq!(fixed.fixed.iter().map(|fixed| fixed.outcome).collect::<Vec<_>>(), [FixState::Done]);
    assert_eq!(codes(&fixed), []);
    let max = fs::read_to_string(machine.path().join(MAX)).expect("a file");
    assert_eq!(max.trim(), "2000");
    machine.own.end();
}

#[test]
fn packets_that_the_full_table_dropped() {
    let machine = Machine::new("drops", "nftables");
    for (drop, early_drop) in [(0x12, 0), (0, 0x34)] {
        machine.count(0, drop, early_drop);
        let report = machine.look();
        assert_eq!(codes(&report), [(Code::ConntrackDrops, Severity::Warning)]);
        let counts = format!("{drop} dropped packets and {early_drop} removed entries");
        assert!(only(&report).title.contains(&counts), "{}", only(&report).title);
        assert_eq!(only(&report).mend, "sysctl -w net.netfilter.nf_conntrack_max=2000");
    }
    machine.own.end();
}

#[test]
fn packets_that_raced_for_an_entry() {
    let machine = Machine::new("raced", "nftables");
    machine.count(0x11, 0, 0);
    let report = machine.look();
    assert_eq!(codes(&report), [(Code::ConntrackInsertFailed, Severity::Note)]);
    assert!(report.findings[0].title.starts_with("17 packets "), "{}", report.findings[0].title);
    machine.own.end();
}
