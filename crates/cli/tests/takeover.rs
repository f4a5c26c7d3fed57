//! Take-over from upstream's kube-proxy and the way back, by the commands of `docs/migrate.md`, under load. Needs root, nft,
//! iptables, conntrack, and the kube-proxy that the environment variable `KUBE_PROXY` names. `make takeover-test` runs these
//! tests; other runs leave them out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;
#[path = "takeover/loads.rs"]
mod loads;
#[path = "takeover/site.rs"]
mod site;
#[path = "takeover/state.rs"]
mod state;

use portolan_testkit::{KubeProxy, PortolanProcess, Protocol, eventually};

use common::kernel::nft;
use common::migrate::{
    BACK, BEFORE, CHECK, CLEANUP, CONNECTIONS_ENDED, EDIT, GONE, HEALTHZ, LOGS, MODE, REPLACE, REPLACED,
    STATUS, THERE, UNDO, commands, looked_for, run, status,
};
use common::{COMPLETE, PATIENCE, at, http, in_sync, logged, objects, reaches};
use loads::Loads;
use site::Site;
use state::State;

/// The first command of the step that replaces the `DaemonSet`. The test has none.
const PRIVILEGES: &str = "kubectl kustomize";
/// The commands that need a `DaemonSet`. What they lead to is done by the command that replaces the pod.
const DAEMON_SET: [&str; 3] = [
    "kubectl -n kube-system patch daemonset",
    "kubectl -n kube-system set image",
    "kubectl -n kube-system rollout status",
];
/// Needs a Service of the API server, which these worlds do not have.
const OWN_SERVICE: &str = "curl -sk https://10.96.0.1/healthz";

/// What the iptables mode adds and a clean-up with `--only-ours` leaves: the chain and its rule, which kubelet and kube-proxy
/// use, too, and the setting that makes them necessary.
const SHARED: [&str; 3] = ["KUBE-FIREWALL", "127.0.0.0/8", "route_localnet"];

/// The modes of one way there and back.
struct Way {
    /// The mode of kube-proxy before.
    was: &'static str,
    /// The modes in which Portolan runs, one after the other, in one process.
    with: &'static [&'static str],
    /// The mode of kube-proxy afterwards.
    back: &'static str,
}

#[test]
#[ignore = "needs upstream's kube-proxy: make takeover-test KUBE_PROXY=FILE"]
fn from_nftables_and_back() {
    there_and_back(&Way { was: "nftables", with: &["nftables", "iptables", "nftables"], back: "nftables" });
}

#[test]
#[ignore = "needs upstream's kube-proxy: make takeover-test KUBE_PROXY=FILE"]
fn from_iptables_and_back() {
    there_and_back(&Way { was: "iptables", with: &["iptables", "nftables", "iptables"], back: "iptables" });
}

#[test]
#[ignore = "needs upstream's kube-proxy: make takeover-test KUBE_PROXY=FILE"]
fn from_iptables_to_nftables_at_the_take_over_and_back() {
    there_and_back(&Way { was: "iptables", with: &["nftables"], back: "iptables" });
}

#[test]
#[ignore = "needs upstream's kube-proxy: make takeover-test KUBE_PROXY=FILE"]
fn from_iptables_to_a_kube_proxy_in_nftables_mode() {
    there_and_back(&Way { was: "iptables", with: &["iptables", "nftables"], back: "nftables" });
}

#[test]
#[ignore = "needs upstream's kube-proxy: make takeover-test KUBE_PROXY=FILE"]
fn from_nftables_to_a_kube_proxy_in_iptables_mode() {
    there_and_back(&Way { was: "nftables", with: &["iptables"], back: "iptables" });
}

/// The tests above run these commands, but only where there is a kube-proxy.
#[test]
fn the_page_has_the_commands_that_the_take_over_runs() {
    assert_eq!(preparation().count(), 2, "{:?}", commands(BEFORE));
    assert!(commands(THERE).iter().any(|command| command.starts_with(REPLACE)));
    assert!(commands(BACK).contains(&UNDO));
}

/// Returns the commands of the section "Before" that need neither a cluster nor another machine.
fn preparation() -> impl Iterator<Item = &'static str> {
    let is_here = |command: &&str| !command.starts_with("kubectl ") && !command.contains("--write-config-to");
    commands(BEFORE).into_iter().filter(is_here)
}

/// Returns the kube-proxy to use. `None` if its version does not have one of the modes.
fn kube_proxy(modes: [&str; 2]) -> Option<KubeProxy> {
    let found = KubeProxy::from_environment().unwrap();
    let missing = modes.into_iter().find(|mode| !found.has_mode(mode));
    if let Some(mode) = missing {
        eprintln!("left out: kube-proxy {} has no mode {mode}", found.version());
        return None;
    }
    Some(found)
}

fn there_and_back(way: &Way) {
    let Some(program) = kube_proxy([way.was, way.back]) else { return };
    let site = Site::new(program);
    let first = site.start_kube_proxy(way.was);
    let before = state::of(site.node());
    let mut loads = Loads::start(&site.cluster);

    prepare(&site, way);
    assert_eq!(state::of(site.node()), before, "the commands of the preparation change nothing");
    let portolan = take_over(&site, way, first);
    let portolan = change_modes(&site, way, portolan);
    loads.change_flows(&site.cluster);

    let mut second = hand_back(&site, way, portolan);
    loads.assert_nothing_lost();
    if way.back == way.was {
        is_as_before(&site, way, &before);
    }
    works_alone(&site);
    second.kill().unwrap();
    leaves_nothing(&site);
}

/// Runs the commands of the section "Before", with kube-proxy's configuration.
fn prepare(site: &Site, way: &Way) {
    for command in preparation() {
        let (code, output) = status(site.node(), &site.in_folder(command));
        let good: &[i32] = if command.starts_with("portolan plan") { &[0, 2] } else { &[0] };
        assert!(code.is_some_and(|code| good.contains(&code)), "{} {command}: {code:?} {output}", way.was);
        // With the same mode, Portolan reads the same Services from kube-proxy's rules as from the API server.
        let is_other =
            |line: &&str| line.contains("Service ports:") && !line.contains("0 added, 0 changed, 0 removed");
        assert_eq!(output.lines().find(is_other), None, "{} {command}: {output}", way.was);
    }
}

/// Runs the commands of the section "On a kubeadm cluster" up to the step for privileges. Returns Portolan's process.
fn take_over(site: &Site, way: &Way, mut kube_proxy: PortolanProcess) -> PortolanProcess {
    let mode = way.with[0];
    let mut portolan = None;
    for command in commands(THERE) {
        if command.starts_with(PRIVILEGES) {
            break;
        } else if command.starts_with(EDIT) {
            site.configure(mode);
            assert!(kube_proxy.ended().is_none(), "{}", kube_proxy.output());
        } else if command.starts_with(REPLACE) {
            kube_proxy.terminate(PATIENCE).unwrap();
            let mut process = site.start_portolan();
            in_sync(&mut process);
            portolan = Some(process);
        } else if DAEMON_SET.iter().any(|beginning| command.starts_with(beginning)) || command == OWN_SERVICE
        {
            // These need a cluster.
        } else {
            verify(site, mode, command, portolan.as_ref().unwrap());
        }
    }
    portolan.unwrap()
}

/// Runs a command of the step "Verify on that node".
fn verify(site: &Site, mode: &str, command: &str, portolan: &PortolanProcess) {
    let node = site.node();
    if command.ends_with("/readyz") {
        let ready =
            || http::get(node, at("127.0.0.1:10256"), "/readyz").is_some_and(|answer| answer.status == 200);
        assert!(eventually(PATIENCE, command, ready).is_ok(), "{}", portolan.output());
    } else if command.starts_with(LOGS) {
        assert_eq!(portolan.output().matches(looked_for(command)).count(), 2, "{}", portolan.output());
    } else if command.ends_with("/proxyMode") {
        assert_eq!(site.mode(), mode);
    } else if mode == "nftables" && command.starts_with("nft list tables") {
        let is_right = |tables: &str| tables.contains("portolan") && !tables.contains("kube-proxy");
        let outcome = eventually(PATIENCE, command, || is_right(&run(node, command).1));
        assert!(outcome.is_ok(), "{command}: {} {}", run(node, command).1, portolan.output());
    } else if mode == "nftables" && command.starts_with("iptables-save") {
        let outcome = eventually(PATIENCE, command, || run(node, command).1.trim() == "0");
        assert!(outcome.is_ok(), "{command}: {} {}", run(node, command).1, portolan.output());
    } else {
        // The two commands show rules of the nftables mode only.
        assert!(command.starts_with("nft ") || command.starts_with("iptables-save"), "{command}");
    }
}

/// Changes Portolan's mode while it runs.
fn change_modes(site: &Site, way: &Way, mut portolan: PortolanProcess) -> PortolanProcess {
    for mode in &way.with[1..] {
        change_mode(site, mode, &mut portolan);
    }
    portolan
}

fn change_mode(site: &Site, mode: &str, portolan: &mut PortolanProcess) {
    let before = portolan.output().matches(COMPLETE).count();
    site.configure(mode);
    logged(portolan, COMPLETE, before + 2);
    assert_eq!(site.mode(), mode);
}

/// Runs the commands of the section "Back to kube-proxy". Returns kube-proxy's process.
fn hand_back(site: &Site, way: &Way, mut portolan: PortolanProcess) -> PortolanProcess {
    let node = site.node();
    let last = *way.with.last().unwrap();
    let mut kube_proxy = None;
    for command in commands(BACK) {
        if command.starts_with(EDIT) {
            if last != way.back {
                change_mode(site, way.back, &mut portolan);
            }
        } else if command.starts_with(LOGS) && command.contains(CONNECTIONS_ENDED) {
            // Portolan runs in neither of the modes that this is for.
        } else if command.starts_with(LOGS) {
            let complete = portolan.output().contains(looked_for(command));
            assert!(way.with == [way.back] || complete, "{command}: {}", portolan.output());
        } else if command == MODE {
            assert_eq!(site.mode(), way.back);
        } else if command == HEALTHZ {
            let is_healthy =
                || http::get(node, at("127.0.0.1:10256"), "/healthz").is_some_and(|it| it.status == 200);
            assert!(eventually(PATIENCE, command, is_healthy).is_ok(), "{}", portolan.output());
        } else if command == UNDO {
            assert!(portolan.terminate(PATIENCE).unwrap().success(), "{}", portolan.output());
            kube_proxy = Some(site.run_kube_proxy());
        } else if command == STATUS
            || (command.starts_with(GONE) && way.back != "nftables")
            || command.starts_with(REPLACED)
        {
            // The first needs a cluster. The others are for the nftables mode, and for the IPVS mode.
        } else {
            assert!(
                [CHECK, GONE, CLEANUP].iter().any(|beginning| command.starts_with(beginning)),
                "{command}"
            );
            let outcome = eventually(PATIENCE, command, || run(node, command).0);
            let log = kube_proxy.as_ref().map(PortolanProcess::output);
            assert!(outcome.is_ok(), "{command}: {:?} {}", run(node, command), log.unwrap_or_default());
        }
    }
    let tables = nft(node, "list tables");
    assert!(!tables.contains("portolan"), "{tables}");
    kube_proxy.unwrap()
}

/// Waits until kube-proxy has the rules and kernel settings that it had before.
fn is_as_before(site: &Site, way: &Way, before: &State) {
    let keeps_shared = way.was == "nftables" && way.with.contains(&"iptables");
    let is_shared = |line: &String| keeps_shared && SHARED.iter().any(|part| line.contains(part));
    let mut left = Vec::new();
    let outcome = eventually(PATIENCE, "the state before", || {
        left = state::difference(before, &state::of(site.node()));
        left.iter().all(is_shared)
    });
    assert!(outcome.is_ok(), "{}", left.join("\n"));
}

/// Asserts that kube-proxy's rules follow the API server.
fn works_alone(site: &Site) {
    let pod = &site.cluster.world.pods()[0];
    site.cluster.service(objects::cluster_ip("after", "10.96.9.9"), &[pod]);
    reaches(site.cluster.world.client().namespace(), Protocol::Tcp, at("10.96.9.9:80"), &[pod]);
}

/// Asserts that the full clean-up removes all rules of kube-proxy, besides the chain that kubelet uses, too.
fn leaves_nothing(site: &Site) {
    let (cleaned, output) = run(site.node(), "portolan-proxy cleanup");
    assert!(cleaned && output.contains("read again: nothing is left"), "{output}");
    let rules = state::rules(site.node());
    let is_left = |line: &&String| line.contains("KUBE-") || line.contains("kube-proxy");
    let left: Vec<&String> =
        rules.iter().filter(is_left).filter(|line| !line.contains("KUBE-FIREWALL")).collect();
    assert!(left.is_empty(), "{left:?}");
}
