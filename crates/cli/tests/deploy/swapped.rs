//! Portolan's image in place of kube-proxy's, with kubeadm's command and files, inside the image's root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_testkit::{Namespace, PortolanProcess, Protocol};

use crate::common::kernel::{hint_at_legacy, nft};
use crate::common::{Cluster, at, configuration, http, in_sync, objects, reaches};
use crate::files::{BINARY, run};
use crate::image::Unpacked;

/// The command of kubeadm's `DaemonSet`.
const COMMAND: [&str; 3] =
    ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf", "--hostname-override=node1"];

/// The setup of a container runtime for these manifests in the modes that call iptables: a read-only root with
/// `/proc` and `/dev/null`, the node's lock file, and two capabilities, to which none can be added. `SYS_CHROOT` is
/// for chroot, which stands in for the runtime.
const START: &str = "set -e
mount --bind \"$0\" \"$0\"
mount --bind \"$0.lock\" \"$0/run/xtables.lock\"
mount -t proc proc \"$0/proc\"
mount --bind /dev/null \"$0/dev/null\"
mount -o remount,bind,ro \"$0\"
exec setpriv --no-new-privs --bounding-set=-all,+net_admin,+net_raw,+sys_chroot -- env -i \"$1\" chroot \"$0\" $2";

/// Returns the root of an image with the binary under test and its libraries, because the binary is not static.
fn image(folder: &Path) -> Unpacked {
    let image = Unpacked::with_iptables(BINARY.as_ref(), folder);
    let mut ldd = Command::new("ldd");
    ldd.arg(BINARY);
    for word in run(ldd).split_whitespace().filter(|word| word.starts_with("/lib/")) {
        let inside = image.root.join(word.trim_start_matches('/'));
        if !inside.exists() {
            fs::copy(word, inside).unwrap();
        }
    }
    for folder in ["dev", "proc", "var/lib/kube-proxy"] {
        fs::create_dir_all(image.root.join(folder)).unwrap();
    }
    for file in [image.root.join("run/xtables.lock"), image.root.join("dev/null"), lock(&image)] {
        fs::write(file, "").unwrap();
    }
    image
}

/// Returns the path of the node's lock file.
fn lock(image: &Unpacked) -> PathBuf {
    image.root.with_extension("lock")
}

/// Starts the image on the node of a cluster. The configuration is mounted behind symlinks.
fn start(image: &Unpacked, cluster: &Cluster) -> PortolanProcess {
    let folder = image.root.join("var/lib/kube-proxy");
    fs::create_dir(folder.join("..data")).unwrap();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: default, cluster: {{server: '{}'}}}}]\n\
         contexts: [{{name: default, context: {{cluster: default, user: default}}}}]\n\
         users: [{{name: default, user: {{}}}}]\ncurrent-context: default\n",
        cluster.master()
    );
    let config = configuration(
        "mode: ''\nclientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}\n\
         conntrack: {maxPerCore: 0}\n",
    );
    for (name, text) in [("config.conf", config), ("kubeconfig.conf", kubeconfig)] {
        fs::write(folder.join("..data").join(name), text).unwrap();
        symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
    }
    let environment = image.config["Env"][0].as_str().unwrap();
    let command = COMMAND.join(" ");
    let arguments = ["--mount", "sh", "-c", START, image.root.to_str().unwrap(), environment, &command];
    PortolanProcess::start(cluster.world.node().namespace(), "unshare".as_ref(), &arguments).unwrap()
}

fn chains(node: &Namespace, variant: &str) -> usize {
    let saved = node.output(&format!("iptables-{variant}-save"), &["-t", "nat"]).unwrap();
    saved.lines().filter(|line| line.starts_with(":KUBE-SVC-")).count()
}

fn programs_a_service(variant: &str) {
    let cluster = Cluster::new();
    let node = cluster.world.node().namespace();
    if variant == "legacy" && !hint_at_legacy(node) {
        return;
    }
    let pods = cluster.world.pods();
    cluster.service(objects::cluster_ip("web", "10.96.0.10"), &[&pods[0], &pods[1]]);
    cluster.service(objects::cluster_ip("web6", "fd00:96::10"), &[&pods[1]]);
    let folder = tempfile::tempdir().unwrap();
    let mut proxy = start(&image(folder.path()), &cluster);
    in_sync(&mut proxy);
    let client = cluster.world.client().namespace();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        reaches(client, protocol, at("10.96.0.10:80"), &[&pods[0], &pods[1]]);
        reaches(client, protocol, at("[fd00:96::10]:80"), &[&pods[1]]);
    }
    let mode = http::get(node, at("127.0.0.1:10249"), "/proxyMode").unwrap().body;
    assert_eq!(mode, "iptables", "{}", proxy.output());
    let other = if variant == "nft" { "legacy" } else { "nft" };
    // Listing the tables of the older iptables would create them.
    if other == "nft" {
        assert_eq!(chains(node, other), 0);
    }
    assert_eq!(chains(node, variant), 2, "{}", proxy.output());
    assert!(!nft(node, "list tables").contains("portolan"));
}

#[test]
fn it_programs_services_in_iptables_mode() {
    programs_a_service("nft");
}

#[test]
fn it_programs_services_in_the_older_iptables() {
    programs_a_service("legacy");
}
