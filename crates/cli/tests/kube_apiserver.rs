//! Upstream's kube-apiserver is followed: what its objects mean in protobuf and in JSON, and a node agent with the permissions of
//! its manifests that goes on while the server is away. Needs root, nft, etcd, and the kube-apiserver that the environment
//! variable `KUBE_APISERVER` names. `make apiserver-test` runs these tests; other runs leave them out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;
#[path = "kube_apiserver/followers.rs"]
mod followers;
#[path = "kube_apiserver/site.rs"]
mod site;

use portolan_model::object::Kind;
use portolan_model::world::{Ranges, Rng, random_service, random_slice};
use portolan_testkit::{PortolanProcess, Protocol, eventually};
use serde_json::{Value, json};

use common::{BINARY, PATIENCE, at, configuration, in_sync, objects, reaches};
use followers::{Followers, followed};
use site::{Objects, Site};

/// The number of random Services. Each has two slices.
const SERVICES: usize = 150;

/// Returns ranges in which a kube-apiserver refuses few objects: each Service has cluster IPs of its own.
fn ranges() -> Ranges {
    let mut ranges = Ranges::example();
    ranges.cluster_ips.ipv4 = (0..200).map(|host| [10, 96, 7, host].into()).collect();
    ranges.cluster_ips.ipv6 =
        (0x700..0x7c8).map(|host| [0xfd00, 0x10, 0x96, 0, 0, 0, 0, host].into()).collect();
    // Ports for health checks are 31,000 and more.
    ranges.node_ports = (31_400..32_700).collect();
    ranges
}

fn service(rng: &mut Rng, index: usize, ranges: &Ranges) -> Value {
    let mut service = random_service(rng, index, ranges);
    let is_dual = service["spec"]["ipFamilies"].as_array().is_some_and(|families| families.len() > 1);
    service["spec"]["ipFamilyPolicy"] = json!(if is_dual { "RequireDualStack" } else { "SingleStack" });
    service["metadata"]["annotations"] =
        json!({"portolan.dev/ipvs-scheduler": "lc", "other": "ä \" \\ \u{1F980}"});
    service
}

/// Returns Services and slices with fields that random ones do not have.
fn others() -> Vec<Value> {
    let service = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec});
    let ports = json!([
        {"name": "a", "port": 80, "targetPort": "http", "appProtocol": "kubernetes.io/h2c"},
        {"name": "b", "port": 53, "protocol": "UDP", "targetPort": 5353},
    ]);
    let slice = |name: &str, kind: &str, endpoints: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "near"}},
            "addressType": kind, "ports": [{"name": "a", "port": 8080}, {"name": "b"}], "endpoints": endpoints,
        })
    };
    let conditions = [
        json!({}),
        json!({"ready": true}),
        json!({"ready": false, "serving": true, "terminating": true}),
        json!({"ready": false, "serving": false, "terminating": false}),
    ];
    let endpoints: Value = conditions
        .iter()
        .zip(1..)
        .map(|(conditions, host)| {
            json!({
                "addresses": [format!("10.244.9.{host}")], "conditions": conditions, "zone": "a", "nodeName": "n1",
                "hostname": "h", "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]},
            })
        })
        .collect();
    vec![
        service(
            "near",
            json!({"ports": ports, "trafficDistribution": "PreferSameZone", "publishNotReadyAddresses": true}),
        ),
        service("headless", json!({"clusterIP": "None", "ports": ports, "selector": {"app": "x"}})),
        service("named", json!({"type": "ExternalName", "externalName": "example.net"})),
        service(
            "sticky",
            json!({"ports": ports, "sessionAffinity": "ClientIP", "externalIPs": ["192.0.2.7"]}),
        ),
        slice("near-1", "IPv4", endpoints),
        slice("near-2", "FQDN", json!([{"addresses": ["example.net"]}])),
        slice("near-3", "IPv6", json!([])),
    ]
}

/// How many random objects the server accepted and refused.
#[derive(Debug, Default)]
struct Outcome {
    services: [u32; 2],
    slices: [u32; 2],
}

impl Outcome {
    fn count(&mut self, object: &Value, result: kube::Result<()>) {
        let index = match result {
            Ok(()) => 0,
            // The server gives other Services node ports at random.
            Err(kube::Error::Api(status))
                if status.code == 422 || status.message.contains("already allocated") =>
            {
                1
            }
            Err(error) => panic!("{error}: {object}"),
        };
        let of_kind = if object["kind"] == "Service" { &mut self.services } else { &mut self.slices };
        of_kind[index] += 1;
    }
}

/// Writes random objects, changes and deletes some.
async fn write(objects: &Objects, followers: &Followers, rng: &mut Rng) {
    let ranges = ranges();
    for object in others() {
        objects.put(&object).await.unwrap();
    }
    let mut outcome = Outcome::default();
    // Three times: most of the second and third ones are changes.
    for _ in 0..3 {
        for index in 0..SERVICES {
            let slices = [0, 1].map(|number| random_slice(rng, index, number, &ranges));
            for object in [service(rng, index, &ranges)].iter().chain(&slices) {
                outcome.count(object, objects.put(object).await);
            }
        }
    }
    for index in (0..SERVICES).step_by(3) {
        objects.delete(Kind::Service, &format!("svc-{index}")).await;
    }
    followers.agree_after_a_mark(objects).await;
    eprintln!("accepted and refused: {outcome:?}");
    assert!([outcome.services, outcome.slices].iter().all(|[accepted, _]| *accepted > 100), "{outcome:?}");
}

#[test]
#[ignore = "needs upstream's kube-apiserver: make apiserver-test KUBE_APISERVER=FILE"]
fn objects_mean_the_same_in_protobuf_and_in_json() {
    let mut site = Site::new();
    let (agent, node) = (site.agent(), objects::node(site.world()));
    site.run(async move |server, objects| {
        objects.has_protobuf().await;
        let seed = std::env::var("PORTOLAN_SEED").map_or(1, |seed| seed.parse().unwrap());
        eprintln!("PORTOLAN_SEED={seed}");
        let mut rng = Rng::new(seed);
        let work = async |followers: &Followers| {
            objects.put(&node).await.unwrap();
            write(&objects, followers, &mut rng).await;
            // Held by a finalizer: it is changed first, then deleted.
            objects.hold_and_delete(&others()[0]).await;
            followers.agree_after_a_mark(&objects).await;

            server.kill();
            server.start();
            objects.ready(server).await;
            write(&objects, followers, &mut rng).await;
            assert_eq!(followers.faults(), 0);
        };
        Box::pin(followed(&agent, work)).await;
    });
}

#[test]
#[ignore = "needs upstream's kube-apiserver: make apiserver-test KUBE_APISERVER=FILE"]
fn a_node_agent_with_the_permissions_of_its_manifests_follows_it_and_goes_on_without_it() {
    let mut site = Site::new();
    let file = site.folder().join("config.yaml");
    let connection = format!("clientConnection: {{kubeconfig: {}}}\n", site.agent().display());
    std::fs::write(&file, configuration(&connection)).unwrap();
    let arguments = ["proxy", "--config", file.to_str().unwrap()];
    let mut agent = PortolanProcess::start(site.node(), BINARY.as_ref(), &arguments).unwrap();
    let (here, there) = (site.world().pods()[1].clone(), site.world().remote_pods()[0].clone());
    let service = objects::cluster_ip("web", "10.96.0.80");
    let ports = objects::ports(&service);
    let slice = |pods: &[&portolan_testkit::Pod]| objects::slice("web", pods, &ports);
    let node = objects::node(site.world());
    let (first, second, third) = (slice(&[&here]), slice(&[&there]), slice(&[&here, &there]));

    site.run(async |_, objects| {
        for object in [&node, &service, &first] {
            objects.put(object).await.unwrap();
        }
    });
    in_sync(&mut agent);
    site.run_as_agent(async |_, objects| assert_eq!(objects.get("/api/v1/pods").await, Err(403)));
    let events = "/apis/events.k8s.io/v1/events";
    let is_posted =
        || site.run(async |_, objects| objects.get(events).await.unwrap().contains("\"kube-proxy\""));
    eventually(PATIENCE, "an event of the agent", is_posted).unwrap();
    let client = site.world().pods()[0].namespace().clone();
    let reaches = |pods: &[&portolan_testkit::Pod]| {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            reaches(&client, protocol, at("10.96.0.80:80"), pods);
        }
    };
    reaches(&[&here]);
    site.run(async |_, objects| objects.put(&second).await.unwrap());
    reaches(&[&there]);

    // A server that has just started may refuse a request before it has read its roles.
    let log = agent.output();
    for trouble in ["an object was skipped", "left out", "orbidden"] {
        assert!(!log.contains(trouble), "{log}");
    }

    site.run(async |server, objects| {
        server.kill();
        reaches(&[&there]);
        server.start();
        objects.ready(server).await;
        objects.put(&third).await.unwrap();
    });
    reaches(&[&here, &there]);
    assert!(agent.terminate(PATIENCE).unwrap().success(), "{}", agent.output());
}
