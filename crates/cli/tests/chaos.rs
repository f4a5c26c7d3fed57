//! Faults at random, while Services change and carry traffic: the agent is killed, paused, starved of file descriptors or
//! memory, restarted in another mode or given another configuration; the kernel refuses its messages; its API server goes
//! away, hangs or answers slowly, breaks off its answers, lists nothing, comes back with older objects or refuses connections for a
//! while, its connections are reset; other programs remove its rules, or change more rules than the agent can follow.
//! After each fault the kernel has what the objects ask for (`portolan plan` finds nothing to change), every Service reaches
//! exactly its endpoints, and no packet was lost but for those that met removed rules. In nftables mode, streams and UDP flows
//! that were open before lose nothing if elements are removed. What was lost after rules were removed is printed.
//! The agent's log has a clear line about each start, change of the mode, connection that was reset or refused, answer that broke off,
//! empty list, older API server and removed rules, and no line too often.
//!
//! `CHAOS_SECONDS` sets the time for which faults go on; each comes at least once. `PORTOLAN_SEED` repeats the same choices. Each
//! fault is a line of the output: `make chaos` shows them. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "chaos/api_server.rs"]
mod api_server;
#[path = "chaos/fault.rs"]
mod fault;
#[path = "chaos/foreign.rs"]
mod foreign;
#[path = "chaos/log.rs"]
mod log;
#[path = "chaos/services.rs"]
mod services;

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use fastrand::Rng;
use portolan_testkit::{Namespace, PortolanProcess, Traffic, TrafficReport, eventually};
use rustix::process::Signal;

use common::load::{self, busy_services_with_sctp, plan, start_plans};
use common::{Cluster, IN_SYNC, PATIENCE, differences};
use fault::{Fault, MODES};
use log::{Log, Required};
use services::Drawn;

/// Time for which faults go on in `make test`.
const USUAL: Duration = Duration::from_secs(60);
/// Time for which an API server hangs.
const HANG: Duration = Duration::from_secs(2);
/// Time in which an agent without memory may end.
const STARVED: Duration = Duration::from_secs(2);
/// Time in which strace leaves the agent, on a busy machine as well.
const LEAVES: Duration = Duration::from_secs(10);
/// Messages to or from the kernel that it refuses, at least.
const REFUSED: usize = 10;
/// Growth of the agent's memory that no fault may cause.
const GROWTH: u64 = 16 << 20;

#[test]
fn no_fault_loses_what_it_need_not() {
    let seed =
        std::env::var("PORTOLAN_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    let seconds = std::env::var("CHAOS_SECONDS").ok().map(|text| text.parse().unwrap());
    let length = seconds.map_or(USUAL, Duration::from_secs);
    println!("PORTOLAN_SEED={seed} for {length:?}");
    let mut chaos = Chaos::start(seed);
    let begin = Instant::now();
    let mut faults: BTreeMap<String, usize> = BTreeMap::new();
    while begin.elapsed() < length || faults.len() < Fault::all().len() {
        let fault = chaos.next();
        *faults.entry(fault.to_string()).or_default() += 1;
    }
    println!("{} faults: {faults:?}", chaos.number);
}

struct Chaos {
    cluster: Cluster,
    proxy: PortolanProcess,
    mode: &'static str,
    rng: Rng,
    number: usize,
    /// The faults that come next, the next one last. Each fault comes once before one comes again.
    faults: Vec<Fault>,
    /// The Services that come and go, besides those that carry the load.
    services: BTreeMap<u8, Drawn>,
    /// Resident memory after the first fault of this process.
    resident: Option<u64>,
    log: Log,
}

impl Chaos {
    fn start(seed: u64) -> Self {
        let cluster = Cluster::new();
        busy_services_with_sctp(&cluster);
        let mode = MODES[0];
        let proxy = cluster.proxy_with(&configuration(mode));
        let (rng, services) = (Rng::with_seed(seed), BTreeMap::new());
        let (faults, log) = (Vec::new(), Log::start());
        Self { cluster, proxy, mode, rng, number: 0, faults, services, resident: None, log }
    }

    /// Causes the next fault, and checks that everything is right after it.
    fn next(&mut self) -> Fault {
        if self.faults.is_empty() {
            self.faults = Fault::all();
            self.rng.shuffle(&mut self.faults);
        }
        let fault = self.faults.pop().unwrap();
        self.number += 1;
        let load = self.start_load(fault);
        let edits = self.rng.u8(1..=8);
        let required = Required::of(fault, self.mode);
        self.log.fault_begins(&self.proxy);
        self.cause(fault, edits);
        self.settle(fault);
        let said = self.log.judge(fault, &required, &self.proxy);
        let reports = stop(load);
        let count = |of: fn(&TrafficReport) -> u64| reports.iter().map(|(_, report)| of(report)).sum::<u64>();
        let lost = count(lost);
        let used: [fn(&TrafficReport) -> u64; 4] = [
            |report| report.connections_ok,
            |report| report.associations_ok,
            |report| report.udp_sent,
            |report| report.sctp_sent,
        ];
        let [connections, associations, datagrams, heartbeats] = used.map(count);
        println!(
            "{:3}: {fault}, {edits} edits: {lost} lost of {connections} connections, {associations} associations, \
             {datagrams} datagrams and {heartbeats} heartbeats",
            self.number
        );
        println!("{:3}: {fault}, warnings and errors of the log: {said:?}", self.number);
        assert!(fault.removes_rules() || lost == 0, "{fault}: {reports:#?}\n{}", self.proxy.output());
        if fault.removes_rules() {
            self.check_what_was_open(fault, &reports);
            // A SYN that met no rule has an entry without translation. A connection from the same port within two
            // minutes continues it.
            self.node().output("conntrack", &["-F"]).unwrap();
        }
        self.services_are_right();
        self.memory_is_flat(fault);
        fault
    }

    /// Prints what streams, flows and associations lost, all of which were open before the fault, and the first losses.
    /// In nftables mode, packets of open streams and flows look up no element of a map. So they lose nothing while the table is
    /// there. What associations lost is only printed.
    fn check_what_was_open(&self, fault: Fault, reports: &[(&'static str, TrafficReport)]) {
        let sum = |of: fn(&TrafficReport) -> u64| reports.iter().map(|(_, report)| of(report)).sum::<u64>();
        let open: [fn(&TrafficReport) -> u64; 5] = [
            |report| report.streams_broken,
            |report| report.udp_lost,
            |report| report.udp_moved,
            |report| report.sctp_lost,
            |report| report.sctp_moved,
        ];
        let [streams, datagrams, flows, heartbeats, associations] = open.map(sum);
        println!(
            "{:3}: {fault}, in mode {}, of what was open: {streams} streams broken, {datagrams} datagrams and \
             {heartbeats} heartbeats lost, {flows} answers of flows and {associations} of associations from another endpoint",
            self.number, self.mode
        );
        for (name, report) in reports {
            for loss in &report.losses {
                println!("{:3}: {fault}, {name}: {loss}", self.number);
            }
        }
        let has_table = self.mode == "nftables" && fault != Fault::Flush;
        assert!(
            !has_table || streams + datagrams + flows == 0,
            "{fault}: {reports:#?}\n{}",
            self.proxy.output()
        );
    }

    /// Starts TCP, UDP and SCTP from a pod, the node, outside and a pod of another node. Where rules are missing for a moment,
    /// new streams and flows would break.
    fn start_load(&self, fault: Fault) -> Vec<(&'static str, Traffic)> {
        let plan = |to: &str| {
            let plan = load::with_sctp(plan(to));
            if fault.removes_rules() { load::without_renewed(plan) } else { plan }
        };
        let mut load = start_plans(&self.cluster, plan);
        let remote = self.cluster.world.remote_pods()[0].namespace();
        load.push((
            "pod of another node to node port",
            Traffic::start(remote, plan("192.168.100.1:30080")).unwrap(),
        ));
        load
    }

    fn cause(&mut self, fault: Fault, edits: u8) {
        match fault {
            Fault::None => self.edit(edits),
            Fault::Kill(mode) => {
                self.edit(edits / 2);
                self.proxy.kill().unwrap();
                self.edit(edits.div_ceil(2));
                self.start_in(mode);
            }
            Fault::Restart(mode) => {
                self.edit(edits / 2);
                self.proxy.terminate(PATIENCE).unwrap();
                self.edit(edits.div_ceil(2));
                self.start_in(mode);
            }
            Fault::Switch(mode) => {
                self.edit(edits / 2);
                self.cluster.configure(&configuration(mode));
                self.mode = mode;
                self.edit(edits.div_ceil(2));
            }
            Fault::Pause => {
                self.proxy.signal(Signal::STOP);
                self.edit(edits);
                self.proxy.signal(Signal::CONT);
            }
            Fault::ServerAway => {
                self.cluster.stop_server();
                self.edit(edits);
                self.cluster.restart_server();
            }
            Fault::NoDescriptors => {
                let process = self.proxy.id().to_string();
                let limit = |value: &str| run("prlimit", &["--pid", &process, &format!("--nofile={value}")]);
                limit("0:");
                self.cluster.stop_server();
                self.edit(edits);
                self.cluster.restart_server();
                limit("1024:");
            }
            Fault::NoMemory => self.starve(edits),
            Fault::Refused => self.refuse(edits),
            Fault::ServerHangs | Fault::ServerSlow => {
                let which = if fault == Fault::ServerHangs { "" } else { "numgen random mod 3 0" };
                foreign::lose(self.node(), self.cluster.address.port(), which);
                self.edit(edits);
                // The fault takes this long. Nothing is waited for.
                std::thread::sleep(HANG);
                foreign::lose_no_more(self.node());
            }
            Fault::CutOff => self.server_cut_off(edits),
            Fault::BrokenOff => self.server_breaks_off(edits),
            Fault::Emptied => self.server_emptied(edits),
            Fault::RolledBack => self.server_rolled_back(edits),
            Fault::Reset => {
                self.edit(edits / 2);
                self.watches_are_open();
                foreign::reset(self.node(), self.cluster.address.port());
                self.edit(edits.div_ceil(2));
            }
            Fault::Overrun => {
                self.edit(edits / 2);
                self.proxy.signal(Signal::STOP);
                foreign::overrun(self.node());
                self.edit(edits.div_ceil(2));
                self.proxy.signal(Signal::CONT);
            }
            Fault::Flush | Fault::Damage | Fault::OneRule => {
                self.edit(edits);
                let family = ["ip", "ip6"][self.rng.usize(..2)];
                let node = self.cluster.world.node().namespace();
                match fault {
                    Fault::Flush => foreign::remove_rules(node, self.mode, family),
                    Fault::Damage => foreign::damage(node, self.mode, family),
                    _ => foreign::remove_one(node, self.mode, family, &mut self.rng),
                }
            }
        }
    }

    fn start_in(&mut self, mode: &'static str) {
        self.log.follow_another(&self.proxy);
        self.proxy = self.cluster.start_proxy(&configuration(mode));
        (self.mode, self.resident) = (mode, None);
    }

    /// Lets the agent have no more memory than it has. An agent that ends by that is started again: by `settle` if its end takes
    /// long.
    fn starve(&mut self, edits: u8) {
        let process = self.proxy.id().to_string();
        run("prlimit", &["--pid", &process, "--as=1:"]);
        self.edit(edits);
        let _ = eventually(STARVED, "the end of the agent", || self.proxy.ended().is_some());
        // Fails if there is no such process any more.
        let _ = Command::new("prlimit").args(["--pid", &process, "--as=unlimited:"]).output().unwrap();
        self.revive();
    }

    /// Starts an agent that has ended for lack of memory again.
    fn revive(&mut self) {
        if self.proxy.ended().is_some() {
            // This also waits for the rest of its output.
            let status = self.proxy.wait_for_end(PATIENCE).unwrap();
            let output = self.proxy.output();
            assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{output}");
            assert!(output.contains("memory allocation of"), "{output}");
            self.start_in(self.mode);
        }
    }

    /// Makes every third call that sends or receives a message fail for lack of room, in each thread of the agent and in
    /// each program that it runs. Edits go on until messages to or from the kernel were among them.
    fn refuse(&mut self, edits: u8) {
        let calls = [
            "--trace=sendto,recvfrom,sendmsg,recvmsg",
            "--inject=sendto,recvfrom,sendmsg,recvmsg:error=ENOBUFS:when=2+3",
        ];
        let agent = self.proxy.id().to_string();
        let arguments = ["--follow-forks", "--decode-fds=socket", "--attach", &agent];
        let strace = Path::new("strace");
        let mut tracer =
            PortolanProcess::start(self.node(), strace, &[&calls[..], &arguments].concat()).unwrap();
        tracer.wait_for_output(PATIENCE, "attached").unwrap();
        self.edit(edits);
        // How many edits follow depends on time. What is drawn after them must not.
        let rng = self.rng.fork();
        let refused = || {
            // Without further edits the agent might send nothing for minutes.
            self.edit(1);
            let output = tracer.output();
            let is_refused = |line: &&str| line.contains("NETLINK") && line.contains("(INJECTED)");
            output.lines().filter(is_refused).count() >= REFUSED
        };
        assert!(eventually(PATIENCE, "refused messages", refused).is_ok(), "{}", tracer.output());
        self.rng = rng;
        // Before it ends, strace stops each thread. A thread that is starting a program cannot stop until the program's process
        // runs, and strace has stopped that one, too. So strace may never end. If it is killed, the kernel continues both.
        if tracer.terminate(LEAVES).is_err() {
            tracer.kill().unwrap();
        }
    }

    const fn node(&self) -> &Namespace {
        self.cluster.world.node().namespace()
    }

    /// Waits until the kernel has what the objects ask for. After edits that change nothing, it has that before a new agent has
    /// looked. So the agent must have compared, too.
    fn settle(&mut self, fault: Fault) {
        let mut last = None;
        let settled = eventually(PATIENCE, "nothing to change", || {
            if fault == Fault::NoMemory {
                self.revive();
            }
            let ended = self.proxy.ended();
            assert!(ended.is_none(), "{fault}: the agent ended: {}", self.proxy.output());
            let plan = differences(&self.cluster);
            let has_compared = self.proxy.output().matches(IN_SYNC).nth(1).is_some();
            let done = has_compared && plan.status.code() == Some(0);
            last = Some(plan);
            done
        });
        assert!(settled.is_ok(), "{fault}: {}\n{}", text(last.as_ref().unwrap()), self.proxy.output());
    }

    fn memory_is_flat(&mut self, fault: Fault) {
        let now = self.proxy.resident().unwrap();
        let first = *self.resident.get_or_insert(now);
        assert!(now <= first + GROWTH, "{fault}: {first} bytes became {now}");
    }
}

/// Returns the configuration of a mode. Without notifications, removed rules are noticed within the sync period.
fn configuration(mode: &str) -> String {
    format!("mode: {mode}\niptables: {{minSyncPeriod: 0s, syncPeriod: 2s}}\n")
}

/// Stops the load.
fn stop(load: Vec<(&'static str, Traffic)>) -> Vec<(&'static str, TrafficReport)> {
    let reports: Vec<_> = load.into_iter().map(|(name, traffic)| (name, traffic.stop().unwrap())).collect();
    for (name, report) in &reports {
        let is_used = report.connections_ok > 0 && report.associations_ok > 0 && report.udp_sent > 0;
        assert!(is_used, "{name}: {report}");
    }
    reports
}

/// Returns the number of connections, associations, streams, datagrams and heartbeats that were lost, and of UDP flows and
/// SCTP associations that moved to another endpoint: the Services of the load keep theirs.
const fn lost(report: &TrafficReport) -> u64 {
    report.connections_failed
        + report.associations_failed
        + report.streams_broken
        + report.udp_lost
        + report.udp_moved
        + report.sctp_lost
        + report.sctp_moved
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output));
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}
