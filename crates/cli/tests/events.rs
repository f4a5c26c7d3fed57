//! The Events that a node posts. Needs root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;
#[path = "deploy/files.rs"]
#[allow(dead_code, reason = "most of it is for the tests of deploy/")]
mod files;

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use portolan_node::health::TO_BE_DELETED_TAINT;
use portolan_serve::{Draft, Resource, Transaction};
use portolan_testkit::{PortolanProcess, ProbeResult, Protocol, eventually};
use serde_json::{Value, json};

use common::gate::Gate;
use common::{BINARY, Cluster, NODE, PATIENCE, at, ends_as, http, objects, programs, reaches};

/// Returns the Events of the API server.
fn events(cluster: &Cluster) -> Vec<Value> {
    let node = cluster.world.node().namespace();
    let answer = http::get(node, cluster.address, "/apis/events.k8s.io/v1/events").unwrap();
    let list: Value = serde_json::from_str(&answer.body).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Waits for an Event with this reason.
fn event_with(cluster: &Cluster, reason: &str) -> Value {
    let found = || events(cluster).into_iter().find(|event| event["reason"] == reason);
    let outcome = eventually(PATIENCE, "the Event", || found().is_some());
    assert!(outcome.is_ok(), "{reason}: {:?}", events(cluster));
    found().unwrap()
}

#[test]
fn a_start_posts_an_event() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let event = event_with(&cluster, "Starting");
    assert_eq!(event["regarding"], json!({"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}));
    assert_eq!((&event["type"], &event["action"]), (&json!("Normal"), &json!("StartKubeProxy")));
    assert_eq!(event["reportingController"], "kube-proxy");
    assert_eq!(event["metadata"]["namespace"], "default");
}

/// kubectl finds the events of an object by its UID.
#[test]
fn kubectl_describes_services_and_nodes_with_their_events() {
    if files::tool("kubectl").is_none() {
        return;
    }
    let cluster = Cluster::without_validation();
    let _proxy = cluster.proxy();
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["loadBalancerSourceRanges"] = json!(["all of them"]);
    cluster.service(service, &[&cluster.world.pods()[0]]);
    service_event(&cluster, "SourceRangesClosed", "web");
    event_with(&cluster, "Starting");
    let describe = |object: [&str; 2]| {
        let mut kubectl = cluster.world.node().namespace().command("kubectl");
        kubectl.args(["--server", &cluster.master(), "describe"]).args(object);
        kubectl.env("HOME", cluster.configuration_file().parent().unwrap()).env("KUBECONFIG", "/dev/null");
        kubectl.stdin(Stdio::null()).stdout(Stdio::piped());
        let output = kubectl.spawn().unwrap().wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let described = describe(["service", "web"]);
    assert!(described.contains("SourceRangesClosed"), "{described}");
    let described = describe(["node", NODE]);
    let starting = |line: &str| line.split_whitespace().nth(1) == Some("Starting");
    assert!(described.lines().any(starting), "{described}");
}

#[test]
fn an_event_names_the_kernel_settings_that_could_not_be_written() {
    let cluster = Cluster::new();
    let _proxy = common::proxy_with_read_only_settings(&cluster, "");
    cluster.configure("conntrack: {tcpCloseWaitTimeout: 17m}\n");
    let event = event_with(&cluster, "ConfigurationReloaded");
    let note = event["note"].as_str().unwrap();
    assert!(
        note.starts_with("changed: conntrack; restart the pod for what cannot be written here: "),
        "{note}"
    );
    assert!(note.contains("nf_conntrack_tcp_timeout_close_wait: wanted 1020"), "{note}");
}

#[test]
fn changed_configurations_post_events() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    cluster.configure("nftables: {masqueradeBit: 32}\n");
    let event = event_with(&cluster, "ConfigurationRefused");
    assert_eq!(event["type"], "Warning");
    // `kubectl get events` shows the first line.
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("nftables.masqueradeBit") && note.lines().count() == 1, "{event}");
    cluster.configure("nftables: {masqueradeBit: 7}\n");
    let event = event_with(&cluster, "ConfigurationReloaded");
    assert_eq!((&event["type"], &event["note"]), (&json!("Normal"), &json!("changed: nftables")));
    let page =
        http::get(cluster.world.node().namespace(), common::at("127.0.0.1:10249"), "/metrics").unwrap();
    for line in [
        "portolan_config_reloads_total{result=\"ok\"} 1",
        "portolan_config_reloads_total{result=\"refused\"} 1",
        "portolan_config_last_reload_successful 1",
    ] {
        assert!(page.body.lines().any(|found| found == line), "{line} in {}", page.body);
    }
}

#[test]
fn an_unreadable_configuration_counts_as_refused() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let (file, aside) = (cluster.configuration_file(), cluster.configuration_file().with_extension("aside"));
    std::fs::rename(&file, &aside).unwrap();
    let event = event_with(&cluster, "ConfigurationRefused");
    assert!(event["note"].as_str().unwrap().contains("cannot be read: No such file"), "{event}");
    shows(&cluster, "portolan_config_last_reload_successful 0");
    std::fs::rename(&aside, &file).unwrap();
    shows(&cluster, "portolan_config_last_reload_successful 1");
    shows(&cluster, "portolan_config_reloads_total{result=\"refused\"} 1");
}

#[test]
fn a_health_check_node_port_that_cannot_be_opened_posts_an_event() {
    let cluster = Cluster::new();
    let pod = &cluster.world.pods()[0];
    let _others =
        cluster.world.node().namespace().run(|| TcpListener::bind("0.0.0.0:32000").unwrap()).unwrap();
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    cluster.service(service, &[pod]);
    let _proxy = cluster.proxy();
    let event = event_with(&cluster, "FailedToStartServiceHealthcheck");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!((&event["regarding"]["name"], &event["action"]), (&json!("web"), &json!("Listen")));
    let note = event["note"].as_str().unwrap();
    assert!(
        note.starts_with(&format!("node {NODE} failed to start healthcheck \"default/web\" on port 32000: ")),
        "{note}"
    );
}

#[test]
fn a_server_that_must_listen_and_cannot_posts_an_event_before_the_end() {
    let cluster = Cluster::new();
    let _others =
        cluster.world.node().namespace().run(|| TcpListener::bind("127.0.0.1:19999").unwrap()).unwrap();
    for (field, reason) in [
        ("metricsBindAddress", "FailedToStartMetricServer"),
        ("healthzBindAddress", "FailedToStartProxierHealthcheck"),
    ] {
        let yaml = format!("bindAddressHardFail: true\n{field}: 127.0.0.1:19999\n");
        let mut proxy = cluster.start_proxy(&yaml);
        assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(1), "{}", proxy.output());
        assert_eq!(event_with(&cluster, reason)["type"], "Warning");
    }
}

/// Waits for an Event about this Service of namespace `default`.
fn service_event(cluster: &Cluster, reason: &str, service: &str) -> Value {
    let is_it = |event: &Value| {
        let regarding = &event["regarding"];
        event["reason"] == reason && regarding["kind"] == "Service" && regarding["name"] == service
    };
    let found = || events(cluster).into_iter().find(is_it);
    let outcome = eventually(PATIENCE, "the Event", || found().is_some());
    assert!(outcome.is_ok(), "{reason} {service}: {:?}", events(cluster));
    let event = found().unwrap();
    assert_eq!(event["type"], "Warning", "{event}");
    event
}

/// Returns the number of Event objects with this reason. Each may have a count of its own.
fn count(cluster: &Cluster, reason: &str) -> usize {
    events(cluster).iter().filter(|event| event["reason"] == reason).count()
}

#[test]
fn a_service_cannot_take_over_the_address_of_the_api_server() {
    for mode in ["nftables", "iptables", "userspace"] {
        the_api_server_stays_reachable(&mut Cluster::without_validation(), mode);
    }
}

/// Needs a kernel with IPVS, such as that of the guest of `tests/vm`.
#[test]
fn a_service_cannot_take_over_the_address_of_the_api_server_in_ipvs_mode() {
    if let Some(mut cluster) = common::ipvs::cluster_without_validation() {
        the_api_server_stays_reachable(&mut cluster, "ipvs");
    }
}

fn the_api_server_stays_reachable(cluster: &mut Cluster, mode: &str) {
    let [pod, _] = cluster.world.pods() else { panic!("two pods") };
    let from = cluster.world.client().namespace();
    let mut proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
    let port = cluster.address.port();
    let mut service = objects::cluster_ip("greedy", "10.96.0.30");
    service["spec"]["externalIPs"] = json!([cluster.address.ip(), "198.51.100.9"]);
    let api = json!({"name": "api", "port": port, "protocol": "TCP", "targetPort": common::BACKEND_PORT});
    service["spec"]["ports"].as_array_mut().unwrap().push(api);
    let mut slice = objects::slice("greedy", &[pod], &objects::ports(&service));
    slice["ports"][2]["protocol"] = json!("TCP");
    cluster.apply(slice);
    cluster.apply(service);
    // The rest of the Service works.
    for to in ["10.96.0.30:80", "198.51.100.9:80"] {
        reaches(from, Protocol::Tcp, at(to), &[pod]);
    }
    let to = std::net::SocketAddr::new("198.51.100.9".parse().unwrap(), port);
    reaches(from, Protocol::Tcp, to, &[pod]);
    // The API server stays reachable, also for new connections of the agent.
    let event = service_event(cluster, "APIServerAddressLeftOut", "greedy");
    let note = event["note"].as_str().unwrap();
    assert!(note.contains(&format!("127.0.0.1 {port}/TCP (IPv4)")), "{note}");
    shows(cluster, "portolan_guarded_addresses{action=\"refuse\",owner=\"apiServer\"} 1");
    cluster.stop_server();
    cluster.restart_server();
    let [_, other] = cluster.world.pods() else { panic!("two pods") };
    cluster.service(objects::cluster_ip("later", "10.96.0.31"), &[other]);
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.31:80"), &[other]);
    assert_eq!(count(cluster, "APIServerAddressLeftOut"), 1, "{mode}: {}", proxy.output());
    assert!(proxy.output().contains("greedy") && proxy.ended().is_none(), "{mode}");
}

#[test]
fn unreadable_source_ranges_close_a_load_balancer() {
    for mode in ["nftables", "iptables", "userspace"] {
        let cluster = Cluster::without_validation();
        let (pod, from) = (&cluster.world.pods()[0], cluster.world.client().namespace());
        let mut proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
        let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
        service["spec"]["loadBalancerSourceRanges"] = json!(["10.0.0.0/33", "all of them"]);
        cluster.service(service.clone(), &[pod]);
        reaches(from, Protocol::Tcp, at("10.96.0.10:80"), &[pod]);
        ends_as(from, Protocol::Tcp, at("198.51.100.7:80"), ProbeResult::TimedOut);
        let event = service_event(&cluster, "SourceRangesClosed", "web");
        assert!(event["note"].as_str().unwrap().contains("closed to all"), "{event}");
        service["spec"]["loadBalancerSourceRanges"] = json!(["0.0.0.0/0"]);
        cluster.apply(service);
        reaches(from, Protocol::Tcp, at("198.51.100.7:80"), &[pod]);
        assert!(proxy.ended().is_none(), "{mode}: {}", proxy.output());
    }
}

/// Stores a Service with this second of creation, which clients of an API server cannot choose.
fn made_at(cluster: &Cluster, second: u32, service: Value) {
    let portolan_serve::json::Value::Object(mut object) = service.into() else { panic!("an object") };
    object["metadata"]["namespace"] = "default".into();
    object["metadata"]["creationTimestamp"] = format!("2026-01-31T12:00:{second:02}Z").into();
    let put = Transaction::put(Resource::Service, Draft::new(Resource::Service, &object), None);
    cluster.api.blocking().commit(put).unwrap();
}

#[test]
fn the_older_of_two_services_keeps_its_node_port_after_a_restart_too() {
    for mode in ["nftables", "iptables"] {
        let cluster = Cluster::without_validation();
        let [one, other] = cluster.world.pods() else { panic!("two pods") };
        let from = cluster.world.client().namespace();
        let yaml = format!("mode: {mode}\n");
        let proxy = cluster.proxy_with(&yaml);
        for (second, name, address, pod) in [(1, "zzz", "10.96.0.31", one), (2, "aaa", "10.96.0.32", other)] {
            let service = objects::load_balancer(name, address, 30_090, &format!("198.51.100.{second}"));
            cluster.apply(objects::slice(name, &[pod], &objects::ports(&service)));
            made_at(&cluster, second, service);
            reaches(from, Protocol::Tcp, std::net::SocketAddr::new(address.parse().unwrap(), 80), &[pod]);
        }
        service_event(&cluster, "FrontendInUse", "aaa");
        reaches(from, Protocol::Tcp, at("192.168.100.1:30090"), &[one]);
        drop(proxy);
        let _proxy = cluster.proxy_with(&yaml);
        reaches(from, Protocol::Tcp, at("192.168.100.1:30090"), &[one]);
        cluster.delete(Resource::Service, "zzz");
        reaches(from, Protocol::Tcp, at("192.168.100.1:30090"), &[other]);
    }
}

#[test]
fn a_service_with_too_many_endpoints_posts_an_event() {
    let cluster = Cluster::without_validation();
    let (pod, from) = (&cluster.world.pods()[0], cluster.world.client().namespace());
    let mut proxy = cluster.proxy();
    let mut service = objects::cluster_ip("crowded", "10.96.0.30");
    service["spec"]["sessionAffinity"] = json!("ClientIP");
    let mut slice = objects::slice("crowded", &[pod], &objects::ports(&service));
    // They sort after the pod's address, which is therefore among the used ones.
    let others = (0..8_200_u32).map(|number| std::net::Ipv4Addr::from(0x0aff_0000 + number));
    let others = others.map(|address| json!({"addresses": [address], "conditions": {"ready": false}}));
    slice["endpoints"].as_array_mut().unwrap().extend(others);
    cluster.apply(slice.clone());
    cluster.apply(service);
    reaches(from, Protocol::Tcp, at("10.96.0.30:80"), &[pod]);
    assert_eq!(count(&cluster, "EndpointsLeftOut"), 0, "only those that are ready count");
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["conditions"]["ready"] = json!(true);
    }
    cluster.apply(slice);
    let event = service_event(&cluster, "EndpointsLeftOut", "crowded");
    assert!(event["note"].as_str().unwrap().contains("8,191"), "{event}");
    let said =
        "\"not every endpoint of this Service port is used\" namespace=\"default\" service=\"crowded\"";
    common::logged(&mut proxy, said, 1);
    // A client with affinity to the pod stays there.
    reaches(from, Protocol::Tcp, at("10.96.0.30:80"), &[pod]);
}

/// The limit is in a file only, and the kernel does not enforce it: the test checks what is reported.
#[test]
fn a_memory_limit_that_is_too_low_is_reported_before_the_rules_are_loaded() {
    let cluster = Cluster::new();
    common::load::busy_services(&cluster);
    let (limits, wrappers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(limits.path().join("memory")).unwrap();
    for file in ["memory.max", "memory/memory.limit_in_bytes"] {
        std::fs::write(limits.path().join(file), "16777216\n").unwrap();
    }
    // A program that restores chains of Services waits while the gate is shut.
    let gate = Gate::new(wrappers.path());
    let script = |own: &Path| {
        format!(
            "input=$(mktemp -p {}) && cat > \"$input\" || exit 1\n\
             if grep -q KUBE-SVC- \"$input\"; then\n{}fi\nexec {} \"$@\" < \"$input\"\n",
            wrappers.path().display(),
            gate.line(),
            own.display()
        )
    };
    programs::in_front(wrappers.path(), &["-restore", "-nft-restore", "-legacy-restore"], script);
    let start = |yaml: &str| {
        cluster.configure(yaml);
        let script = format!(
            "mount -o bind {} /sys/fs/cgroup && exec {BINARY} proxy --config {} --master {}",
            limits.path().display(),
            cluster.configuration_file().display(),
            cluster.master()
        );
        let arguments = ["--mount", "--propagation", "private", "sh", "-c", &script];
        let path = programs::path(wrappers.path());
        let node = cluster.world.node().namespace();
        PortolanProcess::start_with_environment(node, "unshare".as_ref(), &arguments, &[("PATH", &path)])
            .unwrap()
    };
    let telling = "the memory limit of this process is too low";
    let mut proxy = start("");
    common::in_sync(&mut proxy);
    assert!(!proxy.output().contains(telling), "the nftables mode has no programs: {}", proxy.output());
    drop(proxy);
    gate.hold();
    let mut proxy = start("mode: iptables\n");
    let held = gate.held(&proxy);
    // The rules are not loaded before the gate opens.
    proxy.wait_for_output(PATIENCE, telling).unwrap();
    gate.release(held);
    common::in_sync(&mut proxy);
    let output = proxy.output();
    assert_eq!(output.matches(telling).count(), 1, "{output}");
    let event = event_with(&cluster, "MemoryLimitTooLow");
    assert_eq!((&event["type"], &event["regarding"]["kind"]), (&json!("Warning"), &json!("Node")));
    let note = event["note"].as_str().unwrap();
    assert!(
        note.starts_with(
            "the memory limit is 16 MiB, and loading the rules of the iptables mode needs about 2"
        ),
        "{note}"
    );
}

fn metrics(cluster: &Cluster) -> String {
    common::page(cluster, "/metrics")
}

/// Waits until the metrics have this line.
fn shows(cluster: &Cluster, line: &str) {
    let outcome = eventually(PATIENCE, line, || metrics(cluster).lines().any(|found| found == line));
    assert!(outcome.is_ok(), "{line} in {}", metrics(cluster));
}

#[test]
fn a_service_cannot_take_over_the_address_of_a_pod_or_of_another_service() {
    for mode in ["nftables", "iptables", "userspace"] {
        let cluster = Cluster::new();
        let [thief, victim] = cluster.world.pods() else { panic!("two pods") };
        let (host, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
        let yaml = format!("mode: {mode}\n");
        let _proxy = cluster.proxy_with(&yaml);
        cluster.service(objects::cluster_ip("dns", "10.96.0.40"), &[victim]);
        let mut service = objects::cluster_ip("greedy", "10.96.0.30");
        let address = victim.address(portolan_testkit::Family::Ipv4);
        service["spec"]["externalIPs"] = json!([address, "10.96.0.40", "198.51.100.9"]);
        for port in service["spec"]["ports"].as_array_mut().unwrap() {
            port["port"] = json!(common::BACKEND_PORT);
        }
        cluster.service(service, &[thief]);
        // The rest of the Service works.
        reaches(client, Protocol::Tcp, at("10.96.0.30:8080"), &[thief]);
        reaches(client, Protocol::Tcp, at("198.51.100.9:8080"), &[thief]);
        let to_pod = common::backend(victim, address);
        reaches(host, Protocol::Tcp, to_pod, &[victim]);
        if mode == "nftables" {
            ends_as(client, Protocol::Tcp, at("10.96.0.40:8080"), ProbeResult::Refused);
        }
        let event = service_event(&cluster, "ExternalAddressLeftOut", "greedy");
        let note = event["note"].as_str().unwrap();
        assert!(note.starts_with("spec.externalIPs: ") && note.contains("addressGuard"), "{note}");
        shows(&cluster, "portolan_guarded_addresses{action=\"refuse\",owner=\"podCIDRs\"} 1");
        shows(&cluster, "portolan_guarded_addresses{action=\"refuse\",owner=\"clusterIPs\"} 1");
        // The setting allows both.
        cluster.configure(&format!("{yaml}addressGuard: {{allowed: [10.244.0.0/16], clusterIPs: Allow}}\n"));
        reaches(host, Protocol::Tcp, to_pod, &[thief]);
        reaches(client, Protocol::Tcp, at("10.96.0.40:8080"), &[thief]);
        assert!(!metrics(&cluster).contains("action=\"refuse\""), "{mode}");
    }
}

/// A new Node object has no pod CIDRs until a controller of the cluster gives it some, and no addresses until that of the
/// cloud does.
#[test]
fn addresses_of_pods_and_of_the_node_stay_refused_while_a_new_node_object_lacks_them() {
    let cluster = Cluster::new();
    let [thief, victim] = cluster.world.pods() else { panic!("two pods") };
    let (host, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    let pod = victim.address(portolan_testkit::Family::Ipv4);
    let node = cluster.world.node().address(portolan_testkit::Family::Ipv4);
    let refused = |owner| format!("portolan_guarded_addresses{{action=\"refuse\",owner=\"{owner}\"}} 1");
    let of_both = [refused("podCIDRs"), refused("nodeAddresses")];
    let proxy = cluster.proxy();
    let mut service = objects::cluster_ip("greedy", "10.96.0.30");
    service["spec"]["externalIPs"] = json!([pod, node]);
    for port in service["spec"]["ports"].as_array_mut().unwrap() {
        port["port"] = json!(common::BACKEND_PORT);
    }
    cluster.service(service, &[thief]);
    reaches(client, Protocol::Tcp, at("10.96.0.30:8080"), &[thief]);
    for line in &of_both {
        shows(&cluster, line);
    }
    for (round, missing) in ["both", "addresses", "pod CIDRs"].into_iter().enumerate() {
        let mut new = objects::node(&cluster.world);
        if missing != "pod CIDRs" {
            new["status"] = json!({});
        }
        if missing != "addresses" {
            new["spec"] = json!({});
        }
        // The health server shows whether the Node has this taint, and so that the agent has seen this Node.
        let is_tainted = round.is_multiple_of(2);
        if is_tainted {
            new["spec"]["taints"] = json!([{"key": TO_BE_DELETED_TAINT, "effect": "NoSchedule"}]);
        }
        cluster.delete(Resource::Node, NODE);
        cluster.apply(new);
        let is_unhealthy = || http::get(host, at("127.0.0.1:10256"), "/healthz").unwrap().status == 503;
        let seen = eventually(PATIENCE, "the new Node", || is_unhealthy() == is_tainted);
        assert!(seen.is_ok(), "without {missing}: {}", proxy.output());
        // What the Node changed is in the kernel when a later Service is.
        let later = format!("10.96.0.{}", 60 + round);
        cluster.service(objects::cluster_ip(&format!("later-{round}"), &later), &[victim]);
        reaches(client, Protocol::Tcp, at(&format!("{later}:80")), &[victim]);
        let page = metrics(&cluster);
        for line in &of_both {
            assert!(page.lines().any(|found| found == line), "without {missing}: {line} in {page}");
        }
        reaches(host, Protocol::Tcp, common::backend(victim, pod), &[victim]);
        ends_as(
            client,
            Protocol::Tcp,
            std::net::SocketAddr::new(node, common::BACKEND_PORT),
            ProbeResult::Refused,
        );
    }
}

/// A Service at an address of the node would capture the node's own ports. Load balancers of clusters without a cloud use
/// such addresses, and the setting serves them.
#[test]
fn addresses_of_the_node_are_refused_unless_the_setting_serves_them() {
    let cluster = Cluster::new();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let client = cluster.world.client().namespace();
    let node = cluster.world.node().address(portolan_testkit::Family::Ipv4).to_string();
    let _proxy = cluster.proxy();
    cluster.service(objects::load_balancer("balanced", "10.96.0.50", 30_085, &node), &[one]);
    let mut service = objects::cluster_ip("external", "10.96.0.51");
    service["spec"]["externalIPs"] = json!([node]);
    service["spec"]["ports"][0]["port"] = json!(81);
    service["spec"]["ports"][1]["port"] = json!(81);
    cluster.service(service, &[other]);
    let mut named = Vec::new();
    for service in ["balanced", "external"] {
        let event = service_event(&cluster, "ExternalAddressLeftOut", service);
        named.push(event["note"].as_str().unwrap().split(':').next().unwrap().to_owned());
        assert!(event["note"].as_str().unwrap().contains("addressGuard.nodeAddresses"), "{event:#}");
    }
    assert_eq!(named, ["status.loadBalancer.ingress", "spec.externalIPs"]);
    shows(&cluster, "portolan_guarded_addresses{action=\"refuse\",owner=\"nodeAddresses\"} 2");
    for port in [80, 81] {
        ends_as(client, Protocol::Tcp, at(&format!("{node}:{port}")), ProbeResult::Refused);
    }
    reaches(client, Protocol::Tcp, at("10.96.0.51:81"), &[other]);
    cluster.configure("addressGuard: {nodeAddresses: Warn}\n");
    reaches(client, Protocol::Tcp, at(&format!("{node}:80")), &[one]);
    reaches(client, Protocol::Tcp, at(&format!("{node}:81")), &[other]);
    let event = event_with(&cluster, "ExternalAddressShared");
    assert_eq!((&event["regarding"]["name"], &event["type"]), (&json!("external"), &json!("Normal")));
    shows(&cluster, "portolan_guarded_addresses{action=\"warn\",owner=\"nodeAddresses\"} 2");
    assert_eq!(count(&cluster, "ExternalAddressShared"), 1, "a load balancer's address is only counted");
}
