//! Endpoints that are addresses of nodes: pods with `hostNetwork`, such as API servers and ingress controllers.

use portolan_model::{Family, LocalDetector};
use portolan_testkit::Site;
use portolan_tests::{At, Cluster, Mode, Service, TARGET_PORTS, in_every_mode, service};
use serde_json::json;

in_every_mode! {
    packets_from_elsewhere_keep_their_source,
    a_node_reaches_itself,
    an_endpoint_may_have_the_address_of_another_service,
}

/// Ranges in which no sender is.
const NO_SENDER: [&str; 2] = ["192.0.2.0/24", "2001:db8:2::/64"];

fn packets_from_elsewhere_keep_their_source(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let both = "Rl0 Rr0";
    cluster.check(
        &[At::ClusterIp],
        &service(),
        both,
        "pod l0 r0, gateway l0 r0, remote l0 r0, remote-node l0 r0*, \
         client l0 r0* because source-kept-on-node [userspace/redirect: masquerade-by-relay]",
    );
    let external =
        "pod l0 r0*, node l0* r0*, gateway l0* r0*, remote l0 r0*, remote-node l0 r0*, client l0 r0*";
    cluster.check(&At::EXTERNAL, &service().external(), both, external);
    cluster.check(
        &At::EXTERNAL,
        &service().external_local(),
        both,
        "pod l0 r0 [ipvs: l0], node l0* r0* [ipvs: l0*], remote l0 r0 [ipvs: l0], remote-node l0, client l0",
    );
    cluster.configure(|settings| settings.masquerade_all = true);
    cluster.check(&[At::ClusterIp], &service(), both, "pod l0 r0*, node l0* r0*, client l0 r0*");
}

fn a_node_reaches_itself(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.check(&[At::ClusterIp], &service(), "Rl0", "node l0*");
    cluster.expect(&[At::ClusterIp], "gateway l0", "from an address of a pod network");
    cluster.configure(|settings| settings.local_detector = LocalDetector::None);
    for endpoint in ["Rl0", "Rl0?"] {
        let hairpin = "node l0* because masquerade-hairpin [userspace/redirect: masquerade-by-relay]";
        cluster.check(&[At::ClusterIp], &service(), endpoint, hairpin);
    }
}

fn an_endpoint_may_have_the_address_of_another_service(mode: Mode) {
    let node = Family::BOTH.map(|family| Site::Local.node().of(family));
    let ingress = json!(node.map(|ip| json!({ "ip": ip })));
    let without_endpoints = other().with("/spec/externalIPs", json!(node));
    let guarded = other()
        .with("/status/loadBalancer/ingress", ingress)
        .with("/spec/loadBalancerSourceRanges", json!(NO_SENDER));
    for (number, service_at_node) in (1000..).zip([without_endpoints, guarded]) {
        let mut cluster = Cluster::new(mode);
        cluster.apply(&[service_at_node.edit(number)]);
        cluster.check(
            &[At::ClusterIp],
            &service(),
            "Rl0",
            "pod l0, node l0*, gateway l0, remote l0, remote-node l0, client l0",
        );
    }
}

/// Returns a Service at the port on which nodes respond.
fn other() -> Service {
    let addresses = ["10.96.0.11", "fd00:10:96::b"];
    let mut other = service()
        .with("/metadata/name", json!("other"))
        .with("/spec/type", json!("LoadBalancer"))
        .with("/spec/clusterIP", json!(addresses[0]))
        .with("/spec/clusterIPs", json!(addresses));
    for index in 0..3 {
        other = other.with(&format!("/spec/ports/{index}/port"), json!(TARGET_PORTS[0]));
    }
    other
}
