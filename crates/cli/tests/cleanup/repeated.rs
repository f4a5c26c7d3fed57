//! A removal of what kube-proxy left that fails is repeated.

use std::fs;

use portolan_testkit::{PortolanProcess, Protocol, eventually};

use super::common::{BINARY, Cluster, PATIENCE, at, in_sync, logged, objects, page, programs, reaches};
use super::{add_legacy_table, iptables_rules};

/// Returns the value of the metric of failed removals.
fn failures(cluster: &Cluster) -> String {
    let page = page(cluster, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix("portolan_leftover_removal_failures "));
    value.unwrap().to_owned()
}

#[test]
fn what_kube_proxy_left_is_removed_once_another_program_gives_back_the_lock() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    if !add_legacy_table(node) {
        return;
    }
    let pod = &cluster.world.pods()[0];
    let stale = iptables_rules("10.244.9.9");
    node.output_with_input("iptables-legacy-restore", &["-w"], &stale).unwrap();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[pod]);
    cluster.configure("");
    // The program fails while the file exists, as if another one had the lock.
    let folder = tempfile::tempdir().unwrap();
    let busy = folder.path().join("busy");
    fs::write(&busy, "").unwrap();
    let script = |own: &std::path::Path| {
        let (busy, own) = (busy.display(), own.display());
        format!("if [ -e {busy} ]; then echo 'the lock is held' >&2; exit 4; fi\nexec {own} \"$@\"\n")
    };
    programs::in_front(folder.path(), &["-legacy-restore"], script);
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let arguments = ["proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let path = programs::path(folder.path());
    let started =
        PortolanProcess::start_with_environment(node, BINARY.as_ref(), &arguments, &[("PATH", &path)]);
    let mut proxy = started.unwrap();
    in_sync(&mut proxy);
    logged(&mut proxy, "what kube-proxy left cannot be removed; trying again", 1);
    let counted = eventually(PATIENCE, "the count of failures", || failures(&cluster) == "1");
    assert!(counted.is_ok(), "{}", proxy.output());
    // The second attempt fails, too. The log has the same error once.
    let event = cluster.event("LeftoversNotRemoved");
    assert!(event["note"].as_str().unwrap().contains("the lock is held"), "{event}");
    assert_eq!(proxy.output().matches("the lock is held").count(), 1, "{}", proxy.output());

    fs::remove_file(&busy).unwrap();
    logged(&mut proxy, "what kube-proxy left is removed now", 1);
    assert_eq!(failures(&cluster), "0");
    assert!(!node.output("iptables-legacy-save", &[]).unwrap().contains("KUBE-SVC-"));
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.10:80"), &[pod]);
}
