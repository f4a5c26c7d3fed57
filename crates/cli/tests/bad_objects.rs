//! Invalid objects harm only themselves, are named in the log, and work once they are repaired. Needs root and nft,
//! and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::SocketAddr;

use portolan_serve::{Draft, Resource, Transaction};
use portolan_testkit::{Family, Namespace, Probe, Protocol, Traffic, TrafficPlan, eventually};
use serde_json::{Value, json};

use common::kernel::{frontends, nft};
use common::{Cluster, PATIENCE, at, http, in_sync, logged, objects, reaches};

const GOOD: &str = "10.96.0.10:80";
const BAD: &str = "10.96.0.20:80";

/// A fault: the object, the change that makes it invalid, and the texts of the log message.
struct Bad {
    what: &'static str,
    spoil: fn(&mut Value, &mut Value),
    log: &'static [&'static str],
}

/// Returns a valid Service and EndpointSlice.
fn sound(cluster: &Cluster, name: &str) -> (Value, Value) {
    let service = objects::cluster_ip(name, &at(BAD).ip().to_string());
    let slice = objects::slice(name, &[&cluster.world.pods()[0]], &objects::ports(&service));
    (service, slice)
}

const CASES: &[Bad] = &[
    Bad {
        what: "an impossible cluster IP",
        spoil: |service, _| {
            service["spec"]["clusterIP"] = json!("10.96.0.999");
            service["spec"]["clusterIPs"] = json!(["10.96.0.999"]);
        },
        log: &["spec.clusterIPs", "10.96.0.999"],
    },
    Bad {
        what: "a Service port of 0",
        spoil: |service, _| service["spec"]["ports"][0]["port"] = json!(0),
        log: &["spec.ports[0].port"],
    },
    Bad {
        what: "a Service port of 70000",
        spoil: |service, _| service["spec"]["ports"][0]["port"] = json!(70_000),
        log: &["spec.ports[0].port", "70000"],
    },
    Bad {
        what: "a port that is text",
        spoil: |service, _| service["spec"]["ports"][0]["port"] = json!("http"),
        log: &["spec.ports[0].port"],
    },
    Bad {
        what: "ports that are no list",
        spoil: |service, _| service["spec"]["ports"] = json!("80/TCP"),
        log: &["spec.ports"],
    },
    Bad {
        what: "an unknown protocol",
        spoil: |service, _| service["spec"]["ports"][0]["protocol"] = json!("ICMP"),
        log: &["spec.ports[0].protocol", "ICMP"],
    },
    Bad {
        what: "a slice port of 0",
        spoil: |_, slice| slice["ports"][0]["port"] = json!(0),
        log: &["ports[0].port"],
    },
    Bad {
        what: "a slice port of 70000",
        spoil: |_, slice| slice["ports"][0]["port"] = json!(70_000),
        log: &["ports[0].port", "70000"],
    },
    Bad {
        what: "an IPv6 address in a slice of IPv4",
        spoil: |_, slice| slice["endpoints"][0]["addresses"] = json!(["fd00:10:244:1::b"]),
        log: &["endpoints[0].addresses", "fd00:10:244:1::b"],
    },
    Bad {
        what: "an unknown address type",
        spoil: |_, slice| slice["addressType"] = json!("IPX"),
        log: &["addressType", "IPX"],
    },
    Bad {
        what: "endpoints that are no list",
        spoil: |_, slice| slice["endpoints"] = json!({"a": 1}),
        log: &["endpoints"],
    },
    Bad {
        what: "an address that is a number",
        spoil: |_, slice| slice["endpoints"][0]["addresses"] = json!([1_234]),
        log: &["endpoints[0].addresses"],
    },
    Bad {
        what: "a spec that is a list",
        spoil: |service, _| service["spec"] = json!([1, 2, 3]),
        log: &["spec"],
    },
];

/// Returns the number of invalid objects in the metrics.
fn bad_objects(node: &Namespace) -> u64 {
    let page = http::get(node, at("127.0.0.1:10249"), "/metrics").unwrap().body;
    let samples = page.lines().filter(|line| line.starts_with("portolan_bad_objects{"));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Returns the lines of the log with a name.
fn lines(log: &str, name: &str) -> Vec<String> {
    log.lines().filter(|line| line.contains(name)).map(str::to_owned).collect()
}

#[test]
fn bad_objects_harm_only_themselves_and_work_once_mended() {
    let cluster = Cluster::without_validation();
    let (pod, node) = (&cluster.world.pods()[0], cluster.world.node().namespace());
    let from = cluster.world.client().namespace();
    cluster.service(objects::cluster_ip("good", &at(GOOD).ip().to_string()), &[pod]);
    let mut proxy = cluster.proxy();
    let plan = TrafficPlan { tcp: Some(at(GOOD)), udp: Some(at(GOOD)), ..TrafficPlan::default() };
    let traffic = Traffic::start(from, plan).unwrap();
    for (number, bad) in CASES.iter().enumerate() {
        let name = format!("bad-{number}");
        let (mut service, mut slice) = sound(&cluster, &name);
        (bad.spoil)(&mut service, &mut slice);
        cluster.apply(slice.clone());
        cluster.apply(service.clone());
        // The same faults are not reported again.
        for object in [&mut slice, &mut service] {
            object["metadata"]["annotations"] = json!({"touched": "again"});
        }
        cluster.apply(slice);
        cluster.apply(service);
        let named = || {
            let lines = lines(&proxy.output(), &name);
            lines.into_iter().find(|line| bad.log.iter().all(|text| line.contains(text)))
        };
        let logged = eventually(PATIENCE, "a line in the log", || named().is_some());
        assert!(logged.is_ok(), "{}: {:?}", bad.what, lines(&proxy.output(), &name));
        let counted = eventually(PATIENCE, "the count", || bad_objects(node) == 1);
        assert!(counted.is_ok(), "{}: {}", bad.what, bad_objects(node));
        let answered = from.probe(Probe::new(Protocol::Tcp, at(BAD)).expecting_silence()).unwrap();
        assert_eq!(answered.backend(), None, "{}", bad.what);
        let (service, slice) = sound(&cluster, &name);
        cluster.apply(service);
        cluster.apply(slice);
        reaches(from, Protocol::Tcp, at(BAD), &[pod]);
        reaches(from, Protocol::Udp, at(BAD), &[pod]);
        assert_eq!(bad_objects(node), 0, "{}", bad.what);
        let times = lines(&proxy.output(), &name).len();
        assert_eq!(times, 1, "{}: said more than once: {:?}", bad.what, lines(&proxy.output(), &name));
        cluster.delete(Resource::Service, &name);
        cluster.delete(Resource::EndpointSlice, &format!("{name}-1"));
        let gone = eventually(PATIENCE, "the end", || {
            !frontends(node, Family::Ipv4).keys().any(|(to, _)| *to == at(BAD))
        });
        assert!(gone.is_ok(), "{}", bad.what);
    }
    assert!(proxy.ended().is_none());
    let report = traffic.stop().unwrap();
    assert!(report.is_lossless() && report.connections_ok > 0, "{report}");
}

/// Returns addresses `10.200.x.y` without a host.
fn unused_addresses(count: u32) -> Vec<Value> {
    let address = |number: u32| std::net::Ipv4Addr::from(0x0ac8_0000 + number);
    (1..=count).map(|number| json!(address(number))).collect()
}

#[test]
fn ten_thousand_addresses_in_one_slice() {
    let cluster = Cluster::without_validation();
    let (pod, node) = (&cluster.world.pods()[0], cluster.world.node().namespace());
    let from = cluster.world.client().namespace();
    cluster.service(objects::cluster_ip("good", &at(GOOD).ip().to_string()), &[pod]);
    let mut proxy = cluster.proxy();
    // As one endpoint: only its first address counts.
    let (service, mut slice) = sound(&cluster, "big");
    slice["endpoints"][0]["addresses"].as_array_mut().unwrap().extend(unused_addresses(10_000));
    cluster.apply(service);
    cluster.apply(slice.clone());
    reaches(from, Protocol::Tcp, at(BAD), &[pod]);
    // As many endpoints: all of them count.
    slice["endpoints"] =
        unused_addresses(10_000).into_iter().map(|address| json!({"addresses": [address]})).collect();
    cluster.apply(slice);
    let all = eventually(PATIENCE, "10,000 backends", || {
        frontends(node, Family::Ipv4).get(&(at(BAD), "tcp".to_owned())).is_some_and(|all| all.len() == 10_000)
    });
    assert!(all.is_ok(), "{}", proxy.output());
    reaches(from, Protocol::Tcp, at(GOOD), &[pod]);
    let (_, slice) = sound(&cluster, "big");
    cluster.apply(slice);
    reaches(from, Protocol::Tcp, at(BAD), &[pod]);
    assert!(proxy.ended().is_none());
}

/// The older Service keeps its address and node port. The other one works on the rest.
#[test]
fn two_services_that_claim_the_same_address_or_node_port() {
    let cluster = Cluster::without_validation();
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let from = cluster.world.client().namespace();
    let mut proxy = cluster.proxy();
    let shared = ["192.168.100.1:30090", "198.51.100.9:80"].map(at);
    for (name, address, pod) in [("first", "10.96.0.31", one), ("second", "10.96.0.32", other)] {
        let mut service = objects::cluster_ip(name, address);
        service["spec"]["type"] = json!("NodePort");
        service["spec"]["externalIPs"] = json!(["198.51.100.9"]);
        for port in service["spec"]["ports"].as_array_mut().unwrap() {
            port["nodePort"] = json!(30_090);
        }
        cluster.service(service, &[pod]);
    }
    reaches(from, Protocol::Tcp, at("10.96.0.32:80"), &[other]);
    reaches(from, Protocol::Tcp, at("10.96.0.31:80"), &[one]);
    let _ = shared.map(|to| reaches(from, Protocol::Tcp, to, &[one]));
    for field in ["spec.ports[].nodePort", "spec.externalIPs"] {
        // Packets may arrive before this is said.
        logged(&mut proxy, field, 1);
        let output = proxy.output();
        let said = lines(&output, field);
        assert!(!said.is_empty() && said.iter().all(|line| line.contains("second")), "{output}");
    }
    cluster.delete(Resource::Service, "first");
    let _ = shared.map(|to| reaches(from, Protocol::Tcp, to, &[other]));
    reaches(from, Protocol::Udp, at("10.96.0.32:80"), &[other]);
    assert!(proxy.ended().is_none());
}

/// Stores an object without validation of its name.
fn store(cluster: &Cluster, resource: Resource, object: Value) {
    let portolan_serve::json::Value::Object(mut object) = object.into() else { panic!("an object") };
    object["metadata"]["namespace"] = "default".into();
    let put = Transaction::put(resource, Draft::new(resource, &object), None);
    cluster.api.blocking().commit(put).unwrap();
}

#[test]
fn odd_names_are_names_like_others() {
    let cluster = Cluster::without_validation();
    let (pod, from) = (&cluster.world.pods()[0], cluster.world.client().namespace());
    let mut proxy = cluster.proxy();
    let long = "n".repeat(1_000);
    let names = [
        "../../etc",
        "a b",
        "quote\"quote",
        "line\nbreak\r\n\t",
        "\u{1f40b}",
        "zero\0",
        "\u{1b}[31m",
        &long,
        "{{}}",
    ];
    for (number, name) in names.into_iter().enumerate() {
        let address = format!("10.96.0.{}", 100 + number);
        let mut service = objects::cluster_ip(name, &address);
        let mut slice = objects::slice(name, &[pod], &objects::ports(&service));
        for object in [&mut service["spec"], &mut slice] {
            object["ports"][0]["name"] = json!(name);
        }
        store(&cluster, Resource::Service, service);
        store(&cluster, Resource::EndpointSlice, slice);
        reaches(from, Protocol::Tcp, SocketAddr::new(address.parse().unwrap(), 80), &[pod]);
    }
    store(&cluster, Resource::Service, objects::cluster_ip("", "10.96.0.200"));
    logged(&mut proxy, "metadata.name", 1);
    cluster.service(objects::cluster_ip("good", &at(GOOD).ip().to_string()), &[pod]);
    reaches(from, Protocol::Tcp, at(GOOD), &[pod]);
    let listing = nft(cluster.world.node().namespace(), "list table ip portolan");
    assert!(listing.lines().all(|line| !line.starts_with("break")), "{listing}");
    let output = proxy.output();
    assert!(!output.contains(['\u{1b}', '\0']), "{output}");
    drop(proxy);
    let mut proxy = cluster.start_proxy("");
    in_sync(&mut proxy);
    assert_eq!(listing, nft(cluster.world.node().namespace(), "list table ip portolan"));
}
