//! The binary as the manifests start it: not as root, with the capabilities from the file.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use portolan_testkit::{Namespace, PortolanProcess, Protocol, eventually};
use rustix::fs::XattrFlags;

use crate::common::load::busy_services;
use crate::common::{self, Cluster, at, copy_binary, in_sync, page, reaches};
use crate::files::{BINARY, one_yaml, run};
use crate::recorder::Recorder;

const PATIENCE: Duration = Duration::from_secs(120);
/// The capabilities that the manifests allow.
const BOUNDING: &str = "--bounding-set=-all,+net_admin,+net_bind_service";

/// The capability that every mode needs.
const NET_ADMIN_ONLY: &str = "--bounding-set=-all,+net_admin";

/// `CAP_NET_ADMIN` (`linux/capability.h`).
const NET_ADMIN: u32 = 12;
/// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE`.
const CAPABILITIES: [u32; 2] = [NET_ADMIN, 10];

/// Returns `struct vfs_cap_data` of `linux/capability.h`, revision 2: [`CAPABILITIES`] permitted, nothing effective.
fn permitted() -> Vec<u8> {
    let mask: u32 = CAPABILITIES.iter().map(|number| 1 << number).sum();
    [0x0200_0000, mask, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Copies the binary with the image's capabilities. Every user can run the copy.
fn image_file(folder: &Path) -> String {
    let file = folder.join("portolan");
    copy_binary(&file);
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    rustix::fs::setxattr(&file, "security.capability", &permitted(), XattrFlags::empty()).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Writes a file that every user can read, below a folder that other users can only traverse.
fn configuration_file(folder: &Path, text: &str) -> String {
    let passage = folder.join("passage");
    fs::create_dir_all(passage.join("etc")).unwrap();
    fs::set_permissions(&passage, fs::Permissions::from_mode(0o711)).unwrap();
    let file = passage.join("etc/config.yaml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Returns the fields of a configuration for a mode. The node has at least this number of conntrack entries.
fn configuration(mode: &str, entries: &str) -> String {
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node1\n\
         mode: {mode}\nconntrack: {{maxPerCore: 1, min: {entries}}}\n"
    )
}

/// Starts the agent as the user of the manifests, with the capabilities that the file and the bounding set have.
fn start_proxy(
    node: &Namespace,
    folder: &Path,
    bounding: &str,
    configuration: &str,
    options: &[&str],
) -> PortolanProcess {
    let set = one_yaml("deploy/kustomize/base/daemonset.yaml");
    let security = &set["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    let user = format!("--reuid={}", security["runAsUser"]);
    let group = format!("--regid={}", security["runAsGroup"]);
    let (file, config) = (image_file(folder), configuration_file(folder, configuration));
    let setpriv = [&user, &group, "--clear-groups", bounding, "--", &file, "proxy", "--config", &config];
    PortolanProcess::start(node, "setpriv".as_ref(), &[&setpriv, options].concat()).unwrap()
}

/// Asserts that the agent is not root and has these capabilities only.
fn assert_has_only(proxy: &PortolanProcess, capabilities: &[u32]) {
    let status = fs::read_to_string(format!("/proc/{}/status", proxy.id())).unwrap();
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert!(of("Uid:").split_whitespace().all(|user| user == "65532"), "{status}");
    for set in ["CapPrm:", "CapEff:"] {
        let has = u64::from_str_radix(of(set).trim(), 16).unwrap();
        let wanted: u64 = capabilities.iter().map(|number| 1 << number).sum();
        assert_eq!(has, wanted, "{status}");
    }
}

#[test]
fn the_user_of_the_manifests_programs_the_kernel() {
    programs_the_kernel(BOUNDING, &CAPABILITIES);
}

#[test]
fn with_net_admin_only_the_user_of_the_manifests_programs_the_kernel_in_nftables_mode() {
    programs_the_kernel(NET_ADMIN_ONLY, &[NET_ADMIN]);
}

fn programs_the_kernel(bounding: &str, capabilities: &[u32]) {
    let folder = tempfile::tempdir().unwrap();
    let node = Namespace::new("unprivileged").unwrap();
    node.ip("link set lo up\n").unwrap();
    let recorder = Recorder::start(&node);
    let master = format!("--master=http://{}", recorder.address());
    // As many entries as there are, so that every setting is right or writable by this user.
    let entries = node.output("cat", &["/proc/sys/net/netfilter/nf_conntrack_max"]).unwrap();
    let config = configuration("nftables", entries.trim());
    let mut proxy = start_proxy(&node, folder.path(), bounding, &config, &[&master]);
    let outcome = eventually(PATIENCE, "both families in sync", || {
        proxy.ended().is_some() || proxy.output().matches("compared with the kernel and in sync").count() >= 2
    });
    assert!(outcome.is_ok() && proxy.ended().is_none(), "{}", proxy.output());
    assert_has_only(&proxy, capabilities);
    let output = proxy.output();
    assert!(!output.contains("kernel settings cannot be written"), "{output}");
    let table = node.output("nft", &["list", "table", "ip", "portolan"]).unwrap();
    assert!(table.contains("chain nat-prerouting"), "{table}");
    let metrics = node.run(|| get("127.0.0.1:10249", "/metrics")).unwrap();
    assert!(metrics.contains("\nprocess_open_fds "), "{metrics}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", proxy.id())).unwrap();
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"], "a core dump has tokens");
}

#[test]
fn with_net_admin_only_packets_reach_services_in_nftables_mode() {
    packets_reach_services("nftables", NET_ADMIN_ONLY, &[NET_ADMIN]);
}

/// Answers from UDP port 80 need `CAP_NET_BIND_SERVICE`.
#[test]
fn with_both_capabilities_packets_reach_services_in_userspace_mode() {
    packets_reach_services("userspace", BOUNDING, &CAPABILITIES);
}

fn packets_reach_services(mode: &str, bounding: &str, capabilities: &[u32]) {
    let cluster = Cluster::new();
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    let pod = cluster.world.pods()[0].namespace();
    busy_services(&cluster);
    let folder = tempfile::tempdir().unwrap();
    let config = common::configuration(&format!("mode: {mode}\n"));
    let master = format!("--master={}", cluster.master());
    let options = [&master, "--userspace-capture=tproxy"];
    let mut proxy = start_proxy(node, folder.path(), bounding, &config, &options);
    in_sync(&mut proxy);
    assert_has_only(&proxy, capabilities);
    assert_eq!(page(&cluster, "/proxyMode"), mode);
    let all = cluster.all_pods();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(pod, protocol, at("10.96.0.10:80"), &all);
        reaches(client, protocol, at("[2001:db8:100::7]:80"), &all);
    }
}

/// The init container of the base may call iptables, and the agent may not. Without a mode in the configuration, both must choose
/// the same one.
#[test]
fn without_a_mode_the_init_container_of_the_base_opens_no_loopback_address() {
    let folder = tempfile::tempdir().unwrap();
    let node = Namespace::new("base").unwrap();
    node.ip("link set lo up\n").unwrap();
    let config = configuration_file(folder.path(), &configuration("''", "0"));
    let choice = ["--default-mode=nftables", "--userspace-capture=tproxy"];
    let arguments = [&["proxy", "--config", &config, "--init-only"][..], &choice].concat();
    let mut init = PortolanProcess::start(&node, BINARY.as_ref(), &arguments).unwrap();
    assert!(init.wait_for_end(PATIENCE).unwrap().success(), "{}", init.output());
    assert!(init.output().contains("mode=\"nftables\""), "{}", init.output());
    let setting = node.output("sysctl", &["-n", "net.ipv4.conf.all.route_localnet"]).unwrap();
    assert_eq!(setting.trim(), "0");
}

/// A network server does not need the capability, whether it comes from the file or from root.
#[test]
fn serve_gives_the_capability_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = image_file(folder.path());
    let node = Namespace::new("serve").unwrap();
    node.ip("link set lo up\n").unwrap();
    let user = ["--reuid=65532", "--regid=65532", "--clear-groups", BOUNDING, "--"];
    let root =
        ["--inh-caps=+net_admin", "--ambient-caps=+net_admin", "--bounding-set=-net_bind_service", "--"];
    for who in [&user[..], &root[..]] {
        let arguments =
            [who, &[&file, "serve", "--in-memory", "--insecure-http", "--listen", "127.0.0.1:0"]].concat();
        let mut serve = PortolanProcess::start(&node, "setpriv".as_ref(), &arguments).unwrap();
        serve.wait_for_output(PATIENCE, "127.0.0.1:").unwrap();
        let mut checked = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", serve.id())).unwrap() {
            // A thread that has ended since holds no capability.
            let Ok(status) = fs::read_to_string(thread.unwrap().path().join("status")) else { continue };
            checked += 1;
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                let mask = status.lines().find_map(|line| line.strip_prefix(set)).unwrap().trim();
                let mask = u64::from_str_radix(mask, 16).unwrap();
                assert!(CAPABILITIES.iter().all(|number| mask >> number & 1 == 0), "{who:?}: {status}");
            }
        }
        assert!(checked > 0);
        serve.terminate(PATIENCE).unwrap();
    }
}

/// Files that root creates in the folder of a server belong to the server.
#[test]
fn a_kubeconfig_made_by_root_does_not_lock_the_server_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = image_file(folder.path());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    chown(&data, Some(65532), Some(65532)).unwrap();
    let data = data.to_str().unwrap();
    let node = Namespace::new("owner").unwrap();
    node.ip("link set lo up\n").unwrap();
    for _ in 0..2 {
        let mut command = std::process::Command::new(BINARY);
        command.args(["serve", "kubeconfig", "--role", "admin", "--token", "--data-dir", data]);
        run(command);
        let user = ["--reuid=65532", "--regid=65532", "--clear-groups", BOUNDING, "--"];
        let arguments = [&user[..], &[&file, "serve", "--data-dir", data]].concat();
        let mut serve = PortolanProcess::start(&node, "setpriv".as_ref(), &arguments).unwrap();
        serve.wait_for_output(PATIENCE, "tls=true").unwrap();
        serve.terminate(PATIENCE).unwrap();
    }
}

fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Without the capability, the binary still starts for what does not need it.
#[test]
fn help_needs_no_capability() {
    let folder = tempfile::tempdir().unwrap();
    let file = image_file(folder.path());
    let node = Namespace::new("incapable").unwrap();
    let arguments = ["--reuid=65532", "--regid=65532", "--clear-groups", "--bounding-set=-all", "--", &file];
    let help = node.output("setpriv", &[&arguments[..], &["proxy", "--help"]].concat()).unwrap();
    assert!(help.contains("--hostname-override"), "{help}");
}
