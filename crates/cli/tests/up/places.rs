//! Where `portolan up` runs: without the capability, as the systemd unit starts it, as a plain user, in a container.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use portolan_testkit::{Family, PortolanProcess, Protocol};
use tempfile::tempdir;

use crate::common::{self, BINARY, PATIENCE, in_sync, reaches};
use crate::{Site, files, host, printed, service, summary};

#[test]
fn without_the_capability_nothing_is_made() {
    let host = host("capability");
    let folder = tempdir().unwrap();
    let program = public_copy(folder.path());
    let (program, data) = (program.to_str().unwrap(), folder.path().join("data"));
    let option = format!("--data-dir={}", data.display());
    let arguments = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", program, "up", &option];
    let mut up = PortolanProcess::start(&host, "setpriv".as_ref(), &arguments).unwrap();
    assert_eq!(up.wait_for_end(PATIENCE).unwrap().code(), Some(1));
    assert!(up.output().contains("needs the capability CAP_NET_ADMIN: run it as root"), "{}", up.output());
    assert!(!data.exists());
}

/// Returns a copy of the program that every user can run.
fn public_copy(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let file = folder.join("portolan");
    common::copy_binary(&file);
    file
}

/// As `portolan-up.service` starts it: a user with two capabilities. No other program is found.
#[test]
fn the_user_of_the_systemd_unit() {
    let unit = files::read("deploy/systemd/portolan-up.service");
    for capabilities in ["AmbientCapabilities", "CapabilityBoundingSet"] {
        let line = format!("{capabilities}=CAP_NET_ADMIN CAP_NET_BIND_SERVICE");
        assert!(unit.lines().any(|it| it == line), "{line}");
    }
    let world = common::world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let pod = &world.pods()[0];
    let site = Site::new();
    let program = public_copy(site.folder.path());
    let web = service("web=80", &[pod], Family::Ipv4);
    let start = [
        "--reuid=65532",
        "--regid=65532",
        "--clear-groups",
        "--inh-caps=+net_admin,+net_bind_service",
        "--ambient-caps=+net_admin,+net_bind_service",
        "--bounding-set=-all,+net_admin,+net_bind_service",
        "--no-new-privs",
        "--",
        "env",
        "PATH=/nowhere",
        program.to_str().unwrap(),
    ];
    let mut arguments: Vec<String> = start.map(str::to_owned).into();
    arguments.extend(site.arguments(&[&web]));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut up = PortolanProcess::start(node, "setpriv".as_ref(), &arguments).unwrap();
    in_sync(&mut up);
    summary(&mut up);
    let status = fs::read_to_string(format!("/proc/{}/status", up.id())).unwrap();
    assert!(status.contains("CapEff:\t0000000000001400"), "{status}");
    reaches(client, Protocol::Tcp, printed(&up.output(), "default/web 80/TCP")[1], &[pod]);
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

#[test]
fn a_plain_user_in_a_user_namespace() {
    let host = host("user");
    let folder = tempdir().unwrap();
    let program = public_copy(folder.path());
    let data = folder.path().join("data");
    let command = format!(
        "{} up --proxy-mode=nftables --data-dir={} --control-socket={} web=80:10.0.0.1:8080",
        program.display(),
        data.display(),
        folder.path().join("proxy.sock").display()
    );
    let start = |line: &str| {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        let arguments = [&user[..], &["unshare", "-Urn", "sh", "-c", line]].concat();
        PortolanProcess::start(&host, "setpriv".as_ref(), &arguments).unwrap()
    };
    let mut without_loopback = start(&format!("exec {command}"));
    assert!(!without_loopback.wait_for_end(PATIENCE).unwrap().success());
    let output = without_loopback.output();
    assert!(output.contains("run `ip link set lo up`"), "{output}");

    let mut up = start(&format!("ip link set lo up && exec {command}"));
    in_sync(&mut up);
    summary(&mut up);
    let output = up.output();
    assert_eq!(printed(&output, "default/web 80/TCP").len(), 2, "{output}");
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}

/// In a container: the network of the host, its kernel settings for reading only.
#[test]
fn a_container_with_the_network_of_the_host() {
    let world = common::world();
    let (node, client) = (world.node().namespace(), world.client().namespace());
    let pod = &world.pods()[0];
    let site = Site::new();
    let web = service("web=80", &[pod], Family::Ipv4);
    let read_only =
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec \"$0\" \"$@\"";
    let mut arguments: Vec<String> =
        ["--mount", "--", "sh", "-c", read_only, BINARY].map(str::to_owned).into();
    arguments.extend(site.arguments(&[&web]));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    node.write_sysctls(&[("net/netfilter/nf_conntrack_tcp_timeout_close_wait".to_owned(), "61")]).unwrap();
    let mut up = PortolanProcess::start(node, "unshare".as_ref(), &arguments).unwrap();
    in_sync(&mut up);
    summary(&mut up);
    let output = up.output();
    reaches(client, Protocol::Tcp, printed(&output, "default/web 80/TCP")[1], &[pod]);
    // What cannot be set is named, with what to do.
    assert!(output.contains("sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait="), "{output}");
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}
