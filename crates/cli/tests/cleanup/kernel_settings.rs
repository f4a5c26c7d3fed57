//! Kernel settings get the values from before the first start of the agent.

use std::fs;

use portolan_testkit::{Namespace, PortolanProcess};

use crate::common::{BINARY, Cluster, PATIENCE, in_sync};
use crate::ended;

const ESTABLISHED: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";
const CLOSE_WAIT: &str = "net/netfilter/nf_conntrack_tcp_timeout_close_wait";
const LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

fn read(node: &Namespace, setting: &str) -> u64 {
    node.output("cat", &[&format!("/proc/sys/{setting}")]).unwrap().trim().parse().unwrap()
}

fn write(node: &Namespace, setting: &str, value: u64) {
    node.write_sysctls(&[(setting.to_owned(), &value.to_string())]).unwrap();
}

fn cleanup(node: &Namespace) -> String {
    let (code, output) = ended(node, BINARY, &["cleanup"]);
    assert_eq!(code, Some(0), "{output}");
    output
}

#[test]
fn the_values_from_before_the_first_start_come_back_after_restarts_and_changes() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    write(node, ESTABLISHED, 7_777);
    // This is the value of a start, so no start changes it.
    write(node, CLOSE_WAIT, 3_600);
    drop(cluster.proxy_with("mode: iptables\n"));
    assert_eq!([read(node, ESTABLISHED), read(node, LOCALNET)], [86_400, 1]);
    let mut proxy = cluster.proxy_with("conntrack: {tcpEstablishedTimeout: 2h}\n");
    assert_eq!(read(node, ESTABLISHED), 7_200);
    cluster.configure("conntrack: {tcpEstablishedTimeout: 3h}\n");
    crate::common::logged(&mut proxy, "kernel setting written", 2);
    assert_eq!(read(node, ESTABLISHED), 10_800);
    assert!(proxy.terminate(PATIENCE).unwrap().success());
    let output = cleanup(node);
    let line = "set net.netfilter.nf_conntrack_tcp_timeout_established = 7777 (was 10800)";
    assert!(output.contains(line), "{output}");
    assert_eq!([read(node, ESTABLISHED), read(node, CLOSE_WAIT), read(node, LOCALNET)], [7_777, 3_600, 0]);
    let line = "kept setting net.netfilter.nf_conntrack_tcp_timeout_close_wait = 3600: the agent has not changed it; another \
                program, such as kube-proxy, has set this value. The kernel's default is 60: \
                `sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait=60`";
    assert!(output.contains(line), "{output}");
}

#[test]
fn a_setting_that_another_program_changed_is_left_alone_and_reported() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    drop(cluster.proxy());
    write(node, ESTABLISHED, 5_555);
    let output = cleanup(node);
    let line = "kept setting net.netfilter.nf_conntrack_tcp_timeout_established = 5555: another program changed it after \
                the agent had written 86400";
    assert!(output.contains(line), "{output}");
    assert_eq!(read(node, ESTABLISHED), 5_555);
    assert_eq!(read(node, CLOSE_WAIT), 60);
}

#[test]
fn only_ours_leaves_settings_for_kube_proxy_and_a_later_clean_up() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    drop(cluster.proxy());
    crate::kube_proxy_table(node, "10.244.1.10");
    let (code, output) = ended(node, BINARY, &["cleanup", "--only-ours"]);
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(read(node, ESTABLISHED), 86_400, "{output}");
    cleanup(node);
    assert_eq!(read(node, ESTABLISHED), 432_000);
}

#[test]
fn without_former_values_the_report_says_so_and_the_settings_stay() {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    drop(cluster.proxy_with("mode: iptables\n"));
    fs::remove_dir_all(node.state()).unwrap();
    let output = cleanup(node);
    for (name, value, default) in [
        ("net.ipv4.conf.all.route_localnet", 1, 0),
        ("net.netfilter.nf_conntrack_tcp_timeout_established", 86_400, 432_000),
        ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", 3_600, 60),
    ] {
        let line = format!(
            "kept setting {name} = {value}: its former value is not known: {}",
            node.state().display()
        );
        assert!(output.contains(&line), "{output}");
        assert!(output.contains(&format!("`sysctl -w {name}={default}`")), "{output}");
    }
    assert_eq!([read(node, ESTABLISHED), read(node, LOCALNET)], [86_400, 1]);
}

#[test]
fn the_agent_works_without_a_folder_for_former_values() {
    let cluster = Cluster::new();
    cluster.configure("");
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let arguments = ["proxy", "--config", file.to_str().unwrap(), "--master", &master];
    let node = cluster.world.node().namespace();
    for folders in ["", "/proc/no-such/folder"] {
        write(node, ESTABLISHED, 7_777);
        let environment = [("PORTOLAN_STATE_DIRS", folders)];
        let start = PortolanProcess::start_with_environment;
        let mut proxy = start(node, BINARY.as_ref(), &arguments, &environment).unwrap();
        in_sync(&mut proxy);
        assert_eq!(read(node, ESTABLISHED), 86_400);
        let line = "former values of kernel settings are not remembered";
        assert_eq!(proxy.output().matches(line).count(), 1, "{}", proxy.output());
        assert!(!node.state().exists());
        assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    }
}
