//! Steady load on Services of both families, which detects every lost packet.

use std::time::Duration;

use portolan_testkit::{Family, Namespace, Pod, Protocol, Traffic, TrafficPlan, TrafficReport, is_emulated};
use serde_json::{Value, json};

use super::{BACKEND_PORT, Cluster, PATIENCE, at, objects};

/// Creates two Services, one of each family, that the load uses in every way.
pub(crate) fn busy_services(cluster: &Cluster) {
    for service in services() {
        cluster.service(service, &cluster.all_pods());
    }
}

/// Creates the same Services with a port of SCTP, too, for the load of [`with_sctp`].
pub(crate) fn busy_services_with_sctp(cluster: &Cluster) {
    let pods = cluster.all_pods();
    for pod in &pods {
        cluster.world.serve(pod, Protocol::Sctp, BACKEND_PORT).unwrap();
    }
    for service in services() {
        cluster.service(objects::with_sctp(service), &pods);
    }
}

fn services() -> [Value; 2] {
    [
        objects::load_balancer("v4", "10.96.0.10", 30080, "198.51.100.7"),
        objects::load_balancer("v6", "fd00:96::10", 30081, "2001:db8:100::7"),
    ]
}

/// Adds an IPv6 cluster IP, and an address of the load balancer in IPv6, to a Service of IPv4.
pub(crate) fn dual_stack(mut service: Value, address: &str, ingress: &str) -> Value {
    let first = service["spec"]["clusterIP"].clone();
    service["spec"]["clusterIPs"] = json!([first, address]);
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    service["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
    service["status"]["loadBalancer"]["ingress"].as_array_mut().unwrap().push(json!({"ip": ingress}));
    service
}

/// Returns the EndpointSlices of a dual-stack Service with these pods, one of each family.
pub(crate) fn dual_stack_slices(service: &Value, pods: &[&Pod]) -> [Value; 2] {
    let name = objects::name(service);
    Family::BOTH.map(|family| {
        let ports: Vec<_> = objects::ports(service).into_iter().map(|(port, _)| (port, family)).collect();
        let mut slice = objects::slice(name, pods, &ports);
        slice["metadata"]["name"] = format!("{name}-{}", family.to_string().to_lowercase()).into();
        slice
    })
}

/// Starts a steady load from a pod, the node and outside, to a cluster IP, a node port and a load balancer's address, in both
/// families.
pub(crate) fn start(cluster: &Cluster) -> Vec<(&'static str, Traffic)> {
    start_plans(cluster, plan)
}

/// Does the same with another plan for each address.
pub(crate) fn start_plans(
    cluster: &Cluster,
    plan: impl Fn(&str) -> TrafficPlan,
) -> Vec<(&'static str, Traffic)> {
    let (pod, node) = (cluster.world.pods()[0].namespace(), cluster.world.node().namespace());
    let client = cluster.world.client().namespace();
    let ways: [(&str, &Namespace, &str); 7] = [
        ("pod to cluster IP", pod, "10.96.0.10:80"),
        ("node to cluster IP, IPv6", node, "[fd00:96::10]:80"),
        ("client to node port", client, "192.168.100.1:30080"),
        ("pod to node port, IPv6", pod, "[fd00:192:168:100::1]:30081"),
        ("client to load balancer", client, "198.51.100.7:80"),
        ("client to load balancer, IPv6", client, "[2001:db8:100::7]:80"),
        ("node to load balancer", node, "198.51.100.7:80"),
    ];
    ways.map(|(name, from, to)| (name, Traffic::start(from, plan(to)).unwrap())).into()
}

/// Returns a plan of TCP streams and connections, and UDP flows, to one address. An emulated machine gets less load.
pub(crate) fn plan(to: &str) -> TrafficPlan {
    let emulated = is_emulated();
    TrafficPlan {
        tcp: Some(at(to)),
        udp: Some(at(to)),
        streams: if emulated { 1 } else { 3 },
        renewed_streams: if emulated { 1 } else { 2 },
        stream_interval: Duration::from_millis(if emulated { 100 } else { 20 }),
        connections_per_second: if emulated { 5 } else { 40 },
        udp_flows: if emulated { 1 } else { 3 },
        renewed_flows: if emulated { 1 } else { 2 },
        udp_interval: Duration::from_millis(if emulated { 100 } else { 20 }),
        ready_within: PATIENCE,
        ..TrafficPlan::default()
    }
}

/// Returns the plan with only such streams and flows as last as long as the load.
pub(crate) fn without_renewed(plan: TrafficPlan) -> TrafficPlan {
    TrafficPlan { renewed_streams: 0, renewed_flows: 0, ..plan }
}

/// Returns the plan with SCTP, too.
pub(crate) fn with_sctp(plan: TrafficPlan) -> TrafficPlan {
    TrafficPlan {
        sctp: plan.tcp,
        associations: if is_emulated() { 1 } else { 2 },
        heartbeat_interval: plan.udp_interval,
        ..plan
    }
}

/// Stops the load and asserts that nothing was lost.
pub(crate) fn assert_lossless(load: Vec<(&'static str, Traffic)>) {
    assert_all(load, TrafficReport::is_lossless, "");
}

/// Stops the load and asserts that nothing was lost, apart from `at_most` replies to datagrams: these may be on their
/// way while the rules change. UDP flows may have moved to another endpoint. `why` is added to the message.
pub(crate) fn assert_lossless_but_answers(load: Vec<(&'static str, Traffic)>, at_most: u64, why: &str) {
    let spared = |report: &TrafficReport| TrafficReport {
        udp_moved: 0,
        udp_lost: report.udp_lost.saturating_sub(at_most),
        ..report.clone()
    };
    assert_all(load, |report| spared(report).is_lossless(), why);
}

/// Stops the load and asserts that nothing was lost, apart from connections of the node itself at one moment. When the
/// IPVS mode is replaced, connections break that the node opened between the new mode's rules and the removal of the
/// Service's address from the node, unless they were answered before it.
pub(crate) fn assert_lossless_but_own(load: Vec<(&'static str, Traffic)>) {
    let (own, others): (Vec<_>, Vec<_>) =
        load.into_iter().partition(|(name, _)| name.starts_with("node to "));
    assert!(!own.is_empty() && !others.is_empty());
    let spared = |report: &TrafficReport| TrafficReport { connections_failed: 0, ..report.clone() };
    assert_all(own, |report| spared(report).is_lossless() && lost_at_one_moment(report), "");
    assert_lossless(others);
}

/// The largest number of answered connections between two that the same removal of an address has broken.
const BETWEEN: u64 = 10;

/// Returns true if the connections that failed were opened about the same time.
fn lost_at_one_moment(report: &TrafficReport) -> bool {
    let number = |loss: &String| loss.split("connection ").nth(1)?.split(':').next()?.parse::<u64>().ok();
    let mut numbers: Vec<u64> = report.losses.iter().filter_map(number).collect();
    // They are reported when they fail, which may be in another order.
    numbers.sort_unstable();
    // The report names only a limited number of failures.
    numbers.len() as u64 == report.connections_failed
        && numbers.windows(2).all(|pair| matches!(pair, [one, next] if next - one <= BETWEEN + 1))
}

fn assert_all(load: Vec<(&'static str, Traffic)>, is_good: impl Fn(&TrafficReport) -> bool, why: &str) {
    // Where answers are missing, all wait for them at the same time.
    for (_, traffic) in &load {
        traffic.wind_down();
    }
    let ended = load.into_iter().map(|(name, traffic)| (name, traffic.stop().unwrap()));
    let is_bad =
        |report: &TrafficReport| !is_good(report) || report.connections_ok == 0 || report.udp_sent == 0;
    let bad: Vec<String> = ended
        .filter(|(_, report)| is_bad(report))
        .map(|(name, report)| format!("{name}: {report}"))
        .collect();
    assert!(bad.is_empty(), "{} {why}", bad.join("\n"));
}
