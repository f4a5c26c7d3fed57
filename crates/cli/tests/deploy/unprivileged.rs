//! The binary as the manifests start it: not as root, with the capabilities from the file.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use portolan_testkit::{Namespace, PortolanProcess, eventually};
use rustix::fs::XattrFlags;

use crate::common::copy_binary;
use crate::files::{BINARY, one_yaml, run};
use crate::recorder::Recorder;

const PATIENCE: Duration = Duration::from_secs(120);
/// The capabilities that the manifests allow.
const BOUNDING: &str = "--bounding-set=-all,+net_admin,+net_bind_service";

/// `CAP_NET_BIND_SERVICE` and `CAP_NET_ADMIN` (`linux/capability.h`).
const CAPABILITIES: [u32; 2] = [10, 12];

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

/// Writes a configuration that every user can read, below a folder that other users can only traverse.
fn configuration(folder: &Path, entries: &str) -> String {
    let passage = folder.join("passage");
    fs::create_dir_all(passage.join("etc")).unwrap();
    fs::set_permissions(&passage, fs::Permissions::from_mode(0o711)).unwrap();
    let file = passage.join("etc/config.yaml");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node1\n\
         mode: nftables\nconntrack: {{maxPerCore: 1, min: {entries}}}\n"
    );
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn the_user_of_the_manifests_programs_the_kernel() {
    let set = one_yaml("deploy/kustomize/base/daemonset.yaml");
    let security = &set["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    let user = format!("--reuid={}", security["runAsUser"]);
    let group = format!("--regid={}", security["runAsGroup"]);
    let folder = tempfile::tempdir().unwrap();
    let file = image_file(folder.path());
    let node = Namespace::new("unprivileged").unwrap();
    node.ip("link set lo up\n").unwrap();
    let recorder = Recorder::start(&node);
    let master = format!("http://{}", recorder.address());
    // As many entries as there are, so that every setting is right or writable by this user.
    let entries = node.output("cat", &["/proc/sys/net/netfilter/nf_conntrack_max"]).unwrap();
    let config = configuration(folder.path(), entries.trim());
    let arguments = [
        &user,
        &group,
        "--clear-groups",
        BOUNDING,
        "--",
        &file,
        "proxy",
        "--master",
        &master,
        "--config",
        &config,
    ];
    let mut proxy = PortolanProcess::start(&node, "setpriv".as_ref(), &arguments).unwrap();
    let outcome = eventually(PATIENCE, "both families in sync", || {
        proxy.ended().is_some() || proxy.output().matches("compared with the kernel and in sync").count() >= 2
    });
    assert!(outcome.is_ok() && proxy.ended().is_none(), "{}", proxy.output());
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

/// The init container of the base may call iptables, and the agent may not. Without a mode in the configuration, both must choose
/// the same one.
#[test]
fn without_a_mode_the_init_container_of_the_base_opens_no_loopback_address() {
    let folder = tempfile::tempdir().unwrap();
    let node = Namespace::new("base").unwrap();
    node.ip("link set lo up\n").unwrap();
    let config = configuration(folder.path(), "0");
    let text = fs::read_to_string(&config).unwrap().replace("mode: nftables", "mode: ''");
    fs::write(&config, text).unwrap();
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
