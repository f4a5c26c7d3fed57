//! Clusters on a kernel with IPVS, such as that of the guest of `tests/vm`. On other kernels, the tests are skipped. And the
//! rules of a kube-proxy in IPVS mode.

use portolan_ipvs::available;
use portolan_testkit::{Family, Namespace};

use super::Cluster;

/// If set, tests fail on a kernel without IPVS.
const MUST_RUN: &str = "PORTOLAN_TEST_IPVS";
/// The rules that a kube-proxy in IPVS mode writes in a family, without those whose set is empty here. `{6}` is the
/// part of a set's name that depends on the family.
const RULES: &str = r#"*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-SERVICES -s {loopback} -j RETURN
-A KUBE-POSTROUTING -m set --match-set KUBE{6}-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-SERVICES ! -s {pods} -m set --match-set KUBE{6}-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE{6}-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
COMMIT
*filter
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
:KUBE-IPVS-FILTER - [0:0]
:KUBE-IPVS-OUT-FILTER - [0:0]
-I OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
-A KUBE-SOURCE-RANGES-FIREWALL -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NODE-PORT -m set --match-set KUBE{6}-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
-A KUBE-IPVS-FILTER -m set --match-set KUBE{6}-CLUSTER-IP dst,dst -j RETURN
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE{6}-IPVS-IPS dst -j REJECT
COMMIT
"#;

/// Returns a cluster, or `None` if the kernel has no IPVS.
pub(crate) fn cluster() -> Option<Cluster> {
    with_ipvs(Cluster::new())
}

/// Does the same. The API stores objects without validation.
pub(crate) fn cluster_without_validation() -> Option<Cluster> {
    with_ipvs(Cluster::without_validation())
}

fn with_ipvs(cluster: Cluster) -> Option<Cluster> {
    let look = || available("rr", &Family::BOTH).map(drop);
    match cluster.world.node().namespace().run(look).unwrap() {
        Ok(()) => Some(cluster),
        Err(error) => {
            assert!(std::env::var_os(MUST_RUN).is_none(), "{error}");
            eprintln!("left out: {error}");
            None
        }
    }
}

/// Writes the rules of a kube-proxy in IPVS mode in both families. kube-proxy keeps the existing virtual servers,
/// addresses and sets.
pub(crate) fn kube_proxy(node: &Namespace) {
    let ipv4 =
        RULES.replace("{6}", "").replace("{loopback}", "127.0.0.0/8").replace("{pods}", "10.244.0.0/16");
    let ipv6 =
        RULES.replace("{6}", "-6").replace("{loopback}", "::1/128").replace("{pods}", "fd00:10:244::/48");
    node.output_with_input("iptables-nft-restore", &["--noflush"], &ipv4).unwrap();
    node.output_with_input("ip6tables-nft-restore", &["--noflush"], &ipv6).unwrap();
    // A draining endpoint, for which kube-proxy waits.
    let draining = ["--real-server", "192.0.2.9:8080", "--masquerading", "--weight", "0"];
    let service = ["--add-server", "--tcp-service", "10.96.0.10:80"];
    node.output("ipvsadm", &[&service[..], &draining].concat()).unwrap();
}
