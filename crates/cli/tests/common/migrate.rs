//! The commands of `docs/migrate.md`, which the tests run. Those that need a cluster have a counterpart in each test.

use std::path::Path;

use portolan_testkit::{Namespace, PortolanProcess};

use super::{BINARY, PATIENCE};

const PAGE: &str = include_str!("../../../../docs/migrate.md");
/// The headings of the sections.
pub(crate) const BEFORE: &str = "## Before\n";
pub(crate) const THERE: &str = "## On a kubeadm cluster\n";
pub(crate) const BACK: &str = "## Back to kube-proxy\n";

/// The beginnings of the commands that need a cluster.
pub(crate) const EDIT: &str = "kubectl -n kube-system edit configmap kube-proxy";
pub(crate) const LOGS: &str = "kubectl -n kube-system logs POD";
pub(crate) const UNDO: &str =
    "kubectl -n kube-system rollout undo daemonset/kube-proxy --to-revision=REVISION";
pub(crate) const STATUS: &str = "kubectl -n kube-system rollout status daemonset/kube-proxy";
/// Gives the agent the permissions that other modes need. The agent of the tests has them.
pub(crate) const PERMISSIONS: &str = "kubectl kustomize deploy/kustomize/overlays/kubeadm";
pub(crate) const REPLACE: &str = "kubectl -n kube-system delete pod";
/// These need the agent's pages on the node.
pub(crate) const MODE: &str = "curl -sf http://127.0.0.1:10249/proxyMode";
pub(crate) const HEALTHZ: &str = "curl -sf http://127.0.0.1:10256/healthz";
/// Succeeds if kube-proxy's rules exist.
pub(crate) const CHECK: &str = "(nft list tables; iptables-save -t filter)";
/// Succeeds if the rules of Portolan's former mode are gone.
pub(crate) const GONE: &str = "! iptables-save -t filter";
/// Succeeds if the rules of Portolan's IPVS mode are gone.
pub(crate) const REPLACED: &str = "! iptables-save -t nat";
pub(crate) const CLEANUP: &str = "portolan-proxy cleanup --only-ours";
/// The log message when the relay, or the former virtual servers, have no connections left.
pub(crate) const CONNECTIONS_ENDED: &str = "last connection has ended";

/// Returns the commands of a section that the tests follow, in order.
pub(crate) fn commands(section: &str) -> Vec<&'static str> {
    let is_followed = |command: &&str| section != BACK || !command.starts_with(PERMISSIONS);
    all_commands(section).into_iter().filter(is_followed).collect()
}

/// Returns the commands of a section, in order, without comments. Each is on one line.
pub(crate) fn all_commands(section: &str) -> Vec<&'static str> {
    let section = PAGE.split(section).nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks = section.split("```").skip(1).step_by(2);
    let commands = blocks.flat_map(str::lines).map(|line| line.split("  #").next().unwrap().trim());
    let commands = commands.filter(|command| !command.is_empty() && !command.starts_with("# "));
    commands.inspect(|command| assert!(!command.ends_with('\\'), "not on one line: {command}")).collect()
}

/// Returns the text that a command of the page looks for in the log.
pub(crate) fn looked_for(command: &str) -> &str {
    command.split('\'').nth(1).unwrap()
}

/// Runs a command of the page on the node, with Portolan's binaries in the path. Returns whether it succeeded, and its output.
pub(crate) fn run(node: &Namespace, command: &str) -> (bool, String) {
    let (code, output) = status(node, command);
    (code == Some(0), output)
}

/// Does the same, and returns the exit status.
pub(crate) fn status(node: &Namespace, command: &str) -> (Option<i32>, String) {
    let folder = Path::new(BINARY).parent().unwrap();
    let is_built = folder.join("portolan-proxy").exists();
    assert!(is_built, "build `portolan-proxy` first: cargo build --locked -p portolan-proxy");
    let folder = folder.display();
    let script = format!("PATH={folder}:$PATH; {command}");
    let mut process = PortolanProcess::start(node, "sh".as_ref(), &["-c", &script]).unwrap();
    let status = process.wait_for_end(PATIENCE).unwrap();
    (status.code(), process.output())
}
