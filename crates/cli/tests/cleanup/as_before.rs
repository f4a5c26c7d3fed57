//! The state of a node before the first start of each mode and after a clean-up is the same, beside rules of other
//! programs. The listing of a dry run names everything that a mode adds, and changes nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portolan_iptables::counted;
use portolan_testkit::{Namespace, PortolanProcess, eventually};

use crate::common::kernel::{add_rules, hint_at_legacy};
use crate::common::load::busy_services;
use crate::common::{BINARY, Cluster, PATIENCE, in_sync, ipvs};
use crate::ended;
use crate::nothing_left::{CONNTRACK, wrapper};

/// Prints the state of a network namespace. `tests/unchanged` uses it for the machine itself.
const DUMP: &str = include_str!("dump");
/// A state that stays for this long is complete.
const SETTLED: Duration = Duration::from_secs(3);

/// The chains and rules of a firewall, of a container engine and of kubelet, in both families. All built-in chains are
/// declared, so that no clean-up has to leave one that a start has added.
const OTHERS: &str = "*mangle\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
     :POSTROUTING ACCEPT [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n:QOS - [0:0]\n\
     -A POSTROUTING -j QOS\n-A QOS -p tcp -m tcp --dport 22 -j MARK --set-xmark 0x100/0x100\nCOMMIT\n\
     *nat\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n\
     :KUBE-KUBELET-CANARY - [0:0]\n:DOCKER - [0:0]\n\
     -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n-A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER\n\
     -A POSTROUTING -o docker0 -j MASQUERADE\n-A DOCKER -i docker0 -j RETURN\nCOMMIT\n\
     *filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
     :DOCKER-USER - [0:0]\n:DOCKER - [0:0]\n:KUBE-FIREWALL - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n\
     :ufw-before-input - [0:0]\n:ufw-user-input - [0:0]\n\
     -A INPUT -j KUBE-FIREWALL\n-A INPUT -j ufw-before-input\n-A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -j DOCKER\n\
     -A OUTPUT -j KUBE-FIREWALL\n-A DOCKER-USER -j RETURN\n-A ufw-before-input -i lo -j ACCEPT\n\
     -A ufw-before-input -j ufw-user-input\n-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\nCOMMIT\n";
/// The rule that kubelet has in its chain, in IPv4 only.
const KUBELETS: &str = "*filter\n-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \
     \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\nCOMMIT\n";
/// Objects of other programs outside iptables.
const TABLES: &str = "add table inet firewalld\nadd chain inet firewalld input { type filter hook input priority 10; }\n\
     add rule inet firewalld input tcp dport 9 counter drop\nadd table ip portolan-of-another\n";

/// Adds rules of other programs.
fn add_others(node: &Namespace, variant: &str) {
    // Kubelet has its chain in IPv4 only.
    let of_ipv6: String =
        OTHERS.split_inclusive('\n').filter(|line| !line.contains("KUBE-FIREWALL")).collect();
    for (program, rules) in [("iptables", [OTHERS, KUBELETS].concat()), ("ip6tables", of_ipv6)] {
        add_rules(node, &format!("{program}-{variant}-restore"), &rules).unwrap();
    }
    node.output_with_input("nft", &["-f", "-"], TABLES).unwrap();
    node.output_with_input(
        "ipset",
        &["restore"],
        "create KUBE-ROUTER-PODS hash:ip\nadd KUBE-ROUTER-PODS 192.0.2.1\n",
    )
    .unwrap();
    node.ip(
        "rule add priority 700 fwmark 0x100/0x100 table 100\nroute add local 192.0.2.7 dev lo table 100\n",
    )
    .unwrap();
}

/// Returns everything of a node.
fn state(node: &Namespace) -> String {
    let counters = node.run(|| counted().unwrap()).unwrap();
    format!("{}== counters\n{counters:?}\n", node.output("bash", &["-c", DUMP]).unwrap())
}

#[test]
fn the_state_is_printed_although_programs_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["sed", "grep"] {
        let found = ["/usr/bin", "/bin"].map(|at| std::path::Path::new(at).join(program));
        let found = found.iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(found, folder.path().join(program)).unwrap();
    }
    let mut bash = std::process::Command::new("/bin/bash");
    let output = bash.args(["-c", DUMP]).env("PATH", folder.path()).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}: {stdout}", output.status);
    assert!(stdout.starts_with("== nft list ruleset\n(cannot be read)\n"), "{stdout}");
    assert!(stdout.ends_with("== sysctl\n"), "{stdout}");
}

/// Returns the lines of `after` that `before` does not have in the same section.
fn added(before: &str, after: &str) -> BTreeSet<(String, String)> {
    let before: BTreeSet<_> = in_sections(before).collect();
    in_sections(after).filter(|line| !before.contains(line)).collect()
}

/// Returns how the report names each object and setting of a dump that a mode has added.
fn named(before: &str, running: &str) -> Vec<String> {
    let (mut names, mut table) = (Vec::new(), String::new());
    let before: BTreeSet<_> = in_sections(before).collect();
    for (section, line) in in_sections(running) {
        if let Some(name) = line.strip_prefix('*') {
            name.clone_into(&mut table);
        }
        if !before.contains(&(section.clone(), line.clone())) {
            names.extend(name(&section, &table, &line));
        }
    }
    names
}

/// Returns how the report names what a line of a section shows; `None` if it shows a part of an object.
fn name(section: &str, table: &str, line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_ipv6 = section.starts_with("ip6") || section.starts_with("ip -6") || words.contains(&"inet6");
    let family = if is_ipv6 { "ip6" } else { "ip" };
    let variant = if section.contains("legacy") { "iptables-legacy" } else { "iptables-nft" };
    let has = |word: &str| line.contains(word);
    match section {
        "nft list ruleset" if has("table ip") && has("portolan") => {
            Some(line.trim_end_matches(" {").to_owned())
        }
        "ipset save" if words[0] == "create" => Some(format!("ipset {}", words[1])),
        "ipvsadm --save --numeric" if words.len() == 5 => {
            let protocol = if words[1] == "-t" { "TCP" } else { "UDP" };
            Some(format!("{}/{protocol}", words[2]))
        }
        "ip -oneline address" => {
            Some(format!("address {family} {} on {}", words[3].split('/').next()?, words[1]))
        }
        "ip -oneline link" => Some(format!("device {}", words[1].trim_end_matches(':'))),
        // These go with the device.
        "sysctl" if has(".kube-ipvs0.") => None,
        "sysctl" => Some(format!("would set {} = ", words[0])),
        "counters" => Some("would remove counter ".to_owned()),
        _ if section.ends_with(" rule") => Some(format!("rule {family} {}", words[0])),
        _ if section.ends_with(" table all") => {
            has("table 28783").then(|| format!("route {family} local default in table 28783"))
        }
        _ if section.ends_with("-save") => {
            if let Some(chain) = words[0].strip_prefix(':') {
                return Some(format!("chain {family} {table} {chain} ({variant})"));
            }
            let is_jump = words[0] == "-A" && !words[1].contains('-');
            is_jump.then(|| {
                format!("jump {family} {table} {} to {} ({variant})", words[1], words[words.len() - 1])
            })
        }
        _ => None,
    }
}

/// Returns each line of a dump with its section.
fn in_sections(dump: &str) -> impl Iterator<Item = (String, String)> {
    let mut section = String::new();
    dump.lines().map(move |line| {
        if let Some(title) = line.strip_prefix("== ") {
            title.clone_into(&mut section);
        }
        (section.clone(), line.to_owned())
    })
}

/// Starts the proxy, with the programs of the older iptables if `variant` asks for them.
fn start(cluster: &Cluster, variant: &str, yaml: &str, arguments: &[&str]) -> PortolanProcess {
    let Some(path) = wrapper(&[variant]) else {
        return cluster.proxy_with_arguments(yaml, arguments);
    };
    cluster.configure(yaml);
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let path = format!("PATH={}", path.path().display());
    let program = [&path, BINARY, "proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let node = cluster.world.node().namespace();
    let mut proxy =
        PortolanProcess::start(node, "env".as_ref(), &[&program[..], arguments].concat()).unwrap();
    in_sync(&mut proxy);
    proxy
}

/// Runs a mode beside rules of other programs, cleans up, and compares the node with its state before.
fn is_as_before(cluster: &Cluster, mode: &str, variant: &str, arguments: &[&str]) {
    let node = cluster.world.node().namespace();
    add_others(node, variant);
    busy_services(cluster);
    // The kernel adds the addresses and routes of new links a while after their creation.
    let (mut before, mut since) = (state(node), Instant::now());
    let settled = eventually(PATIENCE, "a state that stays", || {
        let former = std::mem::replace(&mut before, state(node));
        if former != before {
            since = Instant::now();
        }
        since.elapsed() > SETTLED
    });
    assert!(settled.is_ok(), "{before}");
    let mut proxy = start(cluster, variant, &format!("mode: {mode}\n{CONNTRACK}"), arguments);
    proxy.kill().unwrap();
    let running = state(node);
    assert_ne!(running, before, "{mode}");
    let file = cluster.configuration_file();
    let cleanup = |more: &[&str]| {
        let (code, output) =
            ended(node, BINARY, &[&["cleanup", "--config", file.to_str().unwrap()], more].concat());
        assert_eq!(code, Some(0), "{mode}: {output}");
        output
    };
    let listed = cleanup(&["--dry-run"]);
    assert_eq!(added(&running, &state(node)), BTreeSet::new(), "{mode}: a dry run changes nothing");
    assert_eq!(state(node), running, "{mode}: a dry run changes nothing");
    let missing: Vec<String> = named(&before, &running)
        .into_iter()
        .filter(|object| !listed.lines().any(|line| line.contains(object.as_str())))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "{mode}: not in {listed}");
    let output = cleanup(&[]);
    let after = state(node);
    assert_eq!((added(&before, &after), added(&after, &before)), <_>::default(), "{mode}: {output}");
    assert_eq!(after, before, "{mode}: the order differs: {output}");
    // What is announced is done.
    let would: Vec<&str> = listed.lines().filter_map(|line| line.strip_prefix("would remove ")).collect();
    let done: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("removed ")).collect();
    assert_eq!(would[..would.len() - 1], done[..done.len() - 1], "{mode}");
    assert!(output.contains("read again: nothing is left"), "{mode}: {output}");
    let left = std::fs::read_dir(node.state()).unwrap().count();
    assert_eq!(left, 0, "{mode}: the files with former values are removed, too");
    let again = cleanup(&[]);
    assert!(again.contains("removed 0, set 0; read again: nothing is left"), "{mode}: {again}");
    assert_eq!(state(node), before, "{mode}: {again}");
}

#[test]
fn a_node_is_as_before_the_nftables_mode() {
    is_as_before(&Cluster::new(), "nftables", "nft", &[]);
}

#[test]
fn a_node_is_as_before_the_iptables_mode() {
    is_as_before(&Cluster::new(), "iptables", "nft", &[]);
}

#[test]
fn a_node_is_as_before_the_iptables_mode_in_the_older_iptables() {
    let cluster = Cluster::new();
    if hint_at_legacy(cluster.world.node().namespace()) {
        is_as_before(&cluster, "iptables", "legacy", &[]);
    }
}

#[test]
fn a_node_is_as_before_the_userspace_mode() {
    is_as_before(&Cluster::new(), "userspace", "nft", &["--userspace-capture=tproxy"]);
    is_as_before(&Cluster::new(), "userspace", "nft", &["--userspace-capture=redirect"]);
}

/// Its name is that of the tests that run in a guest with IPVS.
mod way_back_ipvs {
    #[test]
    fn a_node_is_as_before_the_ipvs_mode() {
        if let Some(cluster) = super::ipvs::cluster() {
            super::is_as_before(&cluster, "ipvs", "nft", &[]);
        }
    }
}
