//! The cluster DNS of `portolan serve`, asked by pods at its cluster IP through the rules of `portolan proxy`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;

use portolan_testkit::{Family, Namespace, PortolanProcess, Protocol, eventually};

use common::{
    BACKEND_PORT, BINARY, NODE, PATIENCE, Proxy, at, http, in_sync, objects, reaches, start_proxy, world,
};

const API: &str = "127.0.0.1:8001";

/// Returns the addresses of a name that the C library's resolver finds in a namespace, with this resolv.conf.
fn resolve(namespace: &Namespace, folder: &Path, resolv_conf: &str, name: &str) -> Vec<String> {
    fs::write(folder.join("resolv.conf"), resolv_conf).unwrap();
    fs::write(folder.join("nsswitch.conf"), "hosts: dns\n").unwrap();
    let script = "mount --bind \"$FOLDER/resolv.conf\" /etc/resolv.conf && \
                  mount --bind \"$FOLDER/nsswitch.conf\" /etc/nsswitch.conf && exec getent ahostsv4 \"$0\"";
    let mut command = namespace.command("unshare");
    command.args(["--mount", "sh", "-c", script, name]).env("FOLDER", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "this test needs root: {errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found: Vec<String> =
        text.lines().filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
    found.dedup();
    found
}

#[test]
fn pods_reach_it_at_the_usual_cluster_ip() {
    let (world, folder) = (world(), tempfile::tempdir().unwrap());
    let node = world.node();
    let manifests = folder.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("node.json"), objects::node(&world).to_string()).unwrap();
    let listen = format!("{}:10053,[{}]:10053", node.address(Family::Ipv4), node.address(Family::Ipv6));
    let arguments = [
        "serve",
        "--listen",
        API,
        "--insecure-http",
        "--in-memory",
        "--manifests",
        manifests.to_str().unwrap(),
        "--service-cluster-ip-range",
        "10.96.0.0/16,fd00:96::/112",
        "--dns-listen",
        &listen,
    ];
    let mut server = PortolanProcess::start(node.namespace(), BINARY.as_ref(), &arguments).unwrap();
    let is_ready = || http::get(node.namespace(), at(API), "/readyz").is_some_and(|it| it.status == 200);
    server.wait_until(PATIENCE, "the server is ready", is_ready).unwrap();
    let mut proxy = start_proxy(&world, folder.path(), &Proxy { yaml: "", master: at(API) });
    in_sync(&mut proxy);

    // UDP and TCP, in both families, from a pod of the node, which masquerades nothing of it.
    let pod = world.pods()[0].namespace();
    for nameserver in ["10.96.0.10", "fd00:96::a"] {
        for options in ["timeout:5", "use-vc timeout:5"] {
            let resolv_conf = format!(
                "nameserver {nameserver}\nsearch default.svc.cluster.local\noptions ndots:5 {options}\n"
            );
            let mut found = Vec::new();
            let outcome = eventually(PATIENCE, "an answer", || {
                found = resolve(pod, folder.path(), &resolv_conf, "kubernetes");
                found == ["10.96.0.1"]
            });
            assert!(outcome.is_ok(), "{resolv_conf}: {found:?}: {}", server.output());
        }
    }

    // One EndpointSlice for each address.
    let slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
    let page = http::get(node.namespace(), at(API), slices).unwrap().body;
    assert_eq!(page.matches("\"name\":\"kube-dns-").count(), 2, "{page}");
    assert!(server.terminate(PATIENCE).unwrap().success(), "{}", server.output());
}

#[test]
fn up_answers_names_there_too() {
    let (world, folder) = (world(), tempfile::tempdir().unwrap());
    let node = world.node();
    let (backend, client) = (&world.pods()[0], &world.pods()[1]);
    let at_folder = |option: &str, name: &str| format!("{option}={}", folder.path().join(name).display());
    let (data, socket) = (at_folder("--data-dir", "data"), at_folder("--control-socket", "proxy.sock"));
    let listen = format!("--dns-listen={}:10053", node.address(Family::Ipv4));
    let name = format!("--hostname-override={NODE}");
    let web = format!("web=80:{}:{BACKEND_PORT}", backend.address(Family::Ipv4));
    let arguments = ["up", &data, &socket, &name, &listen, &web];
    let mut up = PortolanProcess::start(node.namespace(), BINARY.as_ref(), &arguments).unwrap();
    in_sync(&mut up);

    let resolv_conf = "nameserver 10.96.0.10\nsearch default.svc.cluster.local\noptions ndots:5 timeout:5\n";
    let mut found = Vec::new();
    let outcome = eventually(PATIENCE, "an answer", || {
        found = resolve(client.namespace(), folder.path(), resolv_conf, "web");
        found.len() == 1
    });
    assert!(outcome.is_ok(), "{found:?}: {}", up.output());
    // What the name stands for is the Service.
    reaches(client.namespace(), Protocol::Tcp, at(&format!("{}:80", found[0])), &[backend]);
    assert!(up.terminate(PATIENCE).unwrap().success(), "{}", up.output());
}
