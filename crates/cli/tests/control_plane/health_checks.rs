//! Active health checks: backends die and come back, a server restarts, a server of two on one etcd is killed.

use std::net::{SocketAddr, TcpListener};

use portolan_testkit::{eventually, eventually_some};
use serde_json::{Value, json};

use crate::site::{Backing, PATIENCE, Site};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/portolan-prober";

/// A backend: accepts connections at an address of the namespace until it is dropped.
fn backend(site: &Site, last: u8) -> TcpListener {
    let address = SocketAddr::from(([192, 0, 2, last], 8080));
    site.namespace.run(|| TcpListener::bind(address)).unwrap().unwrap()
}

/// A Service whose endpoints are checked, and its EndpointSlice.
fn objects() -> [Value; 2] {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "annotations": {
        "portolan.dev/health-check": "tcp", "portolan.dev/health-check-interval": "1s",
        "portolan.dev/health-check-rise": "1", "portolan.dev/health-check-fall": "1"}},
        "spec": {"ports": [{"port": 80}]}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["192.0.2.2"]}]});
    [service, slice]
}

/// Starts servers on a host that has the addresses of the backends.
fn start_servers(backing: Backing, arguments: &[&str]) -> Option<Site> {
    let site = Site::start(backing, &[&["--health-checks"], arguments].concat())?;
    site.namespace.ip("addr add 192.0.2.1/32 dev lo\naddr add 192.0.2.2/32 dev lo\n").unwrap();
    Some(site)
}

fn start(backing: Backing) -> Option<Site> {
    let site = start_servers(backing, &[])?;
    let [service, slice] = objects();
    let create = |path: &str, object: &Value| -> Value {
        let (code, body) = site.ask(0, "POST", path, &object.to_string()).unwrap();
        assert_eq!(code, 201, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    create("/api/v1/namespaces/default/services", &service);
    // No version of the slice says that an endpoint is ready that has not answered.
    let created = create(SLICES, &slice);
    let ready = |index: usize| created["endpoints"][index]["conditions"]["ready"].as_bool();
    assert_eq!([ready(0), ready(1)], [Some(false); 2], "{created:#}");
    Some(site)
}

/// Asks a server for an object.
fn object(site: &Site, index: usize, path: &str) -> Option<Value> {
    let (code, body) = site.ask(index, "GET", path, "")?;
    (code == 200).then(|| serde_json::from_str(&body).unwrap())
}

/// Returns `ready` and `serving` of each endpoint, as a server shows them.
fn conditions(site: &Site, index: usize) -> Vec<(Option<bool>, Option<bool>)> {
    let Some(slice) = object(site, index, &format!("{SLICES}/web-1")) else { return Vec::new() };
    let endpoints = slice["endpoints"].as_array().unwrap().iter().map(|endpoint| &endpoint["conditions"]);
    endpoints.map(|it| (it["ready"].as_bool(), it["serving"].as_bool())).collect()
}

/// Waits until the endpoints are ready as given.
fn ready(site: &Site, index: usize, wanted: [bool; 2]) {
    let wanted = wanted.map(|is_ready| (Some(is_ready), Some(is_ready)));
    let what = format!("{wanted:?}");
    let outcome = eventually(PATIENCE, &what, || conditions(site, index) == wanted);
    assert!(outcome.is_ok(), "{what}: {:?}: {}", conditions(site, index), site.server(index).output());
}

/// Returns a metric of a server.
fn metric(site: &Site, index: usize, name: &str) -> Option<u64> {
    let (_, page) = site.ask(index, "GET", "/metrics", "")?;
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn endpoints_follow_their_backends_and_a_restart_keeps_their_conditions() {
    let site = start(Backing::File).unwrap();
    let _first = backend(&site, 1);
    let second = backend(&site, 2);
    ready(&site, 0, [true, true]);
    drop(second);
    ready(&site, 0, [true, false]);
    let second = backend(&site, 2);
    ready(&site, 0, [true, true]);
    let healthy = "portolan_health_check_endpoint_healthy\
                   {namespace=\"default\",service=\"web\",endpoint=\"192.0.2.2:8080\"}";
    assert_eq!(metric(&site, 0, healthy), Some(1));
    assert_eq!(metric(&site, 0, "portolan_health_check_active"), Some(1));
    let events = object(&site, 0, "/apis/events.k8s.io/v1/namespaces/default/events").unwrap();
    let own = events["items"].as_array().unwrap().iter();
    let own = own.filter(|event| event["reportingController"] == "portolan-prober");
    let mut reasons: Vec<&str> = own.filter_map(|event| event["reason"].as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons, ["EndpointHealthy", "EndpointUnhealthy"], "{events:#}");
    // One server alone needs no Lease.
    assert_eq!(object(&site, 0, LEASE), None);

    // The conditions survive a crash.
    crash_writes_nothing(&site);
    drop(second);
    ready(&site, 0, [true, false]);

    // They do so if a folder has the slice, which is applied again at each start.
    drop(site);
    let folder = tempfile::tempdir().unwrap();
    for (file, object) in ["service.json", "slice.json"].into_iter().zip(objects()) {
        std::fs::write(folder.path().join(file), object.to_string()).unwrap();
    }
    let manifests = format!("--manifests={}", folder.path().display());
    let site = start_servers(Backing::File, &[&manifests]).unwrap();
    let _first = backend(&site, 1);
    ready(&site, 0, [true, false]);
    crash_writes_nothing(&site);
    let _second = backend(&site, 2);
    ready(&site, 0, [true, true]);
}

/// Checks that a crash of the server keeps the conditions: without a change of a backend, nothing is written.
fn crash_writes_nothing(site: &Site) {
    let version =
        || object(site, 0, &format!("{SLICES}/web-1")).unwrap()["metadata"]["resourceVersion"].clone();
    let before = (conditions(site, 0), version());
    site.crash(0);
    site.wait_for(0);
    let probed = || metric(site, 0, "portolan_health_check_probes_total{result=\"passed\"}");
    eventually(PATIENCE, "probes", || probed().is_some_and(|probes| probes >= 4)).unwrap();
    assert_eq!((conditions(site, 0), version()), before);
}

#[test]
fn another_server_takes_over_when_the_one_that_probes_is_killed() {
    let Some(site) = start(Backing::Etcd(2)) else { return };
    let _first = backend(&site, 1);
    ready(&site, 0, [true, false]);
    ready(&site, 1, [true, false]);
    let active = |index| metric(&site, index, "portolan_health_check_active") == Some(1);
    // Both may probe, or none, while the term of one of them ends.
    let the_active = || {
        let probing = [0, 1].map(active);
        (probing[0] != probing[1]).then_some(usize::from(probing[1]))
    };
    let one = eventually_some(PATIENCE, "one server probes", the_active).unwrap();
    let other = 1 - one;
    let lease = |index, field: &str| object(&site, index, LEASE).unwrap()["spec"][field].clone();
    let before = lease(other, "holderIdentity");
    site.server(one).kill().unwrap();
    let second = backend(&site, 2);
    ready(&site, other, [true, true]);
    let has_taken = || active(other) && lease(other, "holderIdentity") != before;
    eventually(PATIENCE, "the other server probes", has_taken).unwrap();
    let transitions = lease(other, "leaseTransitions");
    // The first server comes back and does not probe.
    site.restart(one);
    site.wait_for(one);
    drop(second);
    ready(&site, one, [true, false]);
    let now = eventually_some(PATIENCE, "one server probes", the_active).unwrap();
    // On a busy machine, a server may stop for longer than its term lasts, and loses it rightly.
    assert!(now == other || lease(now, "leaseTransitions") != transitions, "{}", site.server(now).output());
}
