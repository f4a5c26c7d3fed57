//! Network namespaces set up as nodes, and the output of programs in them.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use portolan_engine::Driven;
use portolan_iptables::{Programs, Variant};
use portolan_ipvs::{Ipvs, IpvsOptions, KernelVersion, available, kernel_settings};
use portolan_model::{Change, Family, Settings};
use portolan_sock::namespace::in_new_network_namespace;
use portolan_testkit::eventually_some;

use super::example;
use super::load::LOCK;

/// If set, tests fail on a kernel without IPVS.
const MUST_RUN: &str = "PORTOLAN_TEST_IPVS";
const NEVER: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a test in a network namespace of its own. The node has two addresses of each family. Returns `None` if the
/// kernel has no IPVS; if `PORTOLAN_TEST_IPVS` is set, the test fails instead.
pub(crate) fn in_namespace<T: Send>(test: impl FnOnce() -> T + Send) -> Option<T> {
    let work = || {
        if let Err(error) = available("rr", &Family::BOTH) {
            assert!(std::env::var_os(MUST_RUN).is_none(), "{error}");
            eprintln!("left out: {error}");
            return None;
        }
        write_settings();
        for line in [
            "link set lo up",
            "link add eth0 type dummy",
            "link add eth1 type dummy",
            "address add 192.168.0.2/24 dev eth0",
            "address add 192.168.1.2/24 dev eth1",
            "address add fd00:192:168::2/64 dev eth0 nodad",
            "address add fd00:192:168:1::2/64 dev eth1 nodad",
            "link set eth0 up",
            "link set eth1 up",
        ] {
            run("ip", line);
        }
        Some(test())
    };
    in_new_network_namespace(work)
        .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace")
}

/// Writes the kernel settings of this mode in this thread's namespace.
pub(crate) fn write_settings() {
    let version: KernelVersion =
        std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().parse().unwrap();
    for (path, value) in kernel_settings(Some(version), false) {
        std::fs::write(path, value.to_string()).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Returns a command in this thread's namespace, with a lock of its own for the older iptables: its programs do not wait for the
/// lock, so that they would fail while another test holds it.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("XTABLES_LOCKFILE", LOCK);
    command
}

/// Runs a program in this thread's namespace and returns its output.
pub(crate) fn run(program: &str, arguments: &str) -> String {
    let output = command(program).args(arguments.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {arguments}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn options() -> IpvsOptions {
    IpvsOptions { drain: NEVER, ..IpvsOptions::default() }
}

pub(crate) fn open_with(settings: Settings, options: IpvsOptions) -> Driven<Ipvs> {
    open_by(Variant::Nft, settings, options)
}

fn open_by(variant: Variant, settings: Settings, options: IpvsOptions) -> Driven<Ipvs> {
    let programs = Programs::of(settings.family, variant).unwrap().with_lock(LOCK);
    Driven::new(settings.clone(), Ipvs::open(programs, settings, options).unwrap())
}

pub(crate) fn open(family: Family) -> Driven<Ipvs> {
    open_with(example::settings(family), options())
}

/// Returns a data plane that has written these changes.
pub(crate) fn loaded(family: Family, changes: &[Change]) -> Driven<Ipvs> {
    loaded_by(Variant::Nft, family, changes)
}

/// Returns such a data plane with a variant of iptables.
pub(crate) fn loaded_by(variant: Variant, family: Family, changes: &[Change]) -> Driven<Ipvs> {
    let mut ipvs = open_by(variant, example::settings(family), options());
    ipvs.apply(changes).unwrap();
    ipvs.resync().unwrap();
    ipvs
}

pub(crate) fn example(family: Family) -> Vec<Change> {
    match family {
        Family::Ipv4 => example::ipv4(),
        Family::Ipv6 => example::ipv6(),
    }
}

/// Returns the output of `ipvsadm` once it is the same twice. The kernel numbers the virtual servers of all network
/// namespaces together, so that those of a test beside this one may come or go in the middle of a list. Then the list has a
/// virtual server twice, or lacks one.
pub(crate) fn ipvsadm(arguments: &str) -> String {
    let mut last = run("ipvsadm", arguments);
    let same = eventually_some(PATIENCE, "the same list twice", || {
        let again = run("ipvsadm", arguments);
        let before = std::mem::replace(&mut last, again.clone());
        (before == again).then_some(again)
    });
    same.unwrap()
}

/// Lists the virtual servers, sorted, each with its real servers, sorted, without numbers of connections.
pub(crate) fn virtual_servers() -> Vec<String> {
    let mut servers: Vec<Vec<String>> = Vec::new();
    for line in ipvsadm("--list --numeric").lines().skip(3) {
        if line.starts_with(' ') {
            let words: Vec<&str> = line.split_whitespace().collect();
            servers
                .last_mut()
                .unwrap()
                .push(format!("  {} {} {} weight {}", words[0], words[1], words[2], words[3]));
        } else {
            servers.push(vec![line.split_whitespace().collect::<Vec<_>>().join(" ")]);
        }
    }
    for server in &mut servers {
        server[1..].sort();
    }
    servers.sort();
    servers.concat()
}

/// Lists the addresses of the network device, sorted.
pub(crate) fn addresses() -> Vec<String> {
    let mut addresses: Vec<String> =
        run("ip", "-brief address show dev kube-ipvs0").split_whitespace().map(str::to_owned).collect();
    addresses.sort();
    addresses
}

/// Lists every set that has members, with its name and type, and the members sorted.
pub(crate) fn sets() -> Vec<String> {
    let mut sets: Vec<Vec<String>> = Vec::new();
    for line in run("ipset", "list").lines() {
        if let Some(name) = line.strip_prefix("Name: ") {
            sets.push(vec![name.to_owned()]);
        } else if let Some(kind) = line.strip_prefix("Type: ") {
            write!(sets.last_mut().unwrap()[0], " ({kind})").unwrap();
        } else if !line.is_empty() && !line.contains(": ") && line != "Members:" {
            sets.last_mut().unwrap().push(format!("  {line}"));
        }
    }
    sets.retain(|set| set.len() > 1);
    for set in &mut sets {
        set[1..].sort();
    }
    sets.sort();
    sets.concat()
}

/// Lists everything except for rules.
pub(crate) fn everything() -> String {
    [virtual_servers(), addresses(), sets()].concat().join("\n")
}

/// Lists the rules of IPv4, as the front end of nftables saves them.
pub(crate) fn rules() -> String {
    let saved = run("iptables-nft-save", "--table filter") + &run("iptables-nft-save", "--table nat");
    let mangle = run("iptables-nft-save", "--table mangle");
    let lines = saved.lines().chain(mangle.lines()).filter(|line| !line.starts_with(['#', ':']));
    lines.collect::<Vec<_>>().join("\n")
}
