//! The source addresses that endpoints see: one line for each cell of the masquerading tables, for every local
//! detector.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test program")]

use std::net::TcpStream;
use std::time::Duration;

use portolan_model::{Family, LocalDetector};
use portolan_tests::{At, Cluster, Mode, in_every_mode, service};

in_every_mode! {
    with_a_cluster_cidr,
    without_a_detector,
    with_an_interface_prefix,
    with_a_bridge,
    masquerade_all_is_for_cluster_ips,
    every_mark_bit_will_do,
    pods_that_draw_themselves,
    a_client_uses_one_port_for_two_frontends,
}

fn with_a_cluster_cidr(mode: Mode) {
    // The node sends as `gateway` from an address inside the cluster CIDR, and is treated as a pod then.
    let mut cluster = Cluster::new(mode);
    let everywhere = service().external();
    cluster.check(
        &[At::ClusterIp],
        &everywhere,
        "Rl1 Rr1",
        "pod l1 r1, node l1* r1*, gateway l1 r1, remote l1 r1, remote-node l1* r1*, client l1* r1*",
    );
    cluster.expect(
        &At::EXTERNAL,
        "pod l1* r1*, node l1* r1*, gateway l1* r1*, remote l1* r1*, remote-node l1* r1*, client l1* r1*",
        "external Cluster",
    );
    cluster.check(
        &At::EXTERNAL,
        &service().external_local(),
        "Rl1 Rr1",
        "pod l1 r1 [ipvs: l1], node l1* r1* [ipvs: l1*], gateway l1 r1 [ipvs: l1], remote l1 r1 [ipvs: l1], \
         remote-node l1, client l1",
    );
    cluster.check(
        &[At::ClusterIp],
        &service().internal_local(),
        "Rl1 Rr1",
        "pod l1, node l1*, gateway l1, remote l1, remote-node l1*, client l1*",
    );
}

fn without_a_detector(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.configure(|settings| settings.local_detector = LocalDetector::None);
    let reached = "pod l1 r1 because source-kept-no-detector [userspace/redirect: masquerade-by-relay], \
                  node l1 r1, gateway l1 r1, remote l1 r1, client l1 r1";
    cluster.check(&[At::ClusterIp], &service().external(), "Rl1 Rr1", reached);
    cluster.expect(&At::EXTERNAL, "pod l1* r1*, node l1* r1*, client l1* r1*", "external Cluster");
    let local = service().external_local();
    let expected = "pod l1, node l1* r1* [ipvs: l1*], gateway l1* r1* [ipvs: l1*], remote l1, client l1";
    cluster.check(&At::EXTERNAL, &local, "Rl1 Rr1", expected);
    cluster.check(&At::EXTERNAL, &local, "Rr1", "pod drop, node r1*, gateway r1*, remote drop, client drop");
}

fn with_an_interface_prefix(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.configure(|settings| settings.local_detector = LocalDetector::InterfacePrefix("pod".into()));
    let expected = "pod l1 r1, node l1* r1*, gateway l1* r1*, remote l1* r1*, client l1* r1*";
    cluster.check(&[At::ClusterIp], &service().external(), "Rl1 Rr1", expected);
    let expected =
        "pod l1 r1 [ipvs: l1], node l1* r1* [ipvs: l1*], gateway l1* r1* [ipvs: l1*], remote l1, client l1";
    cluster.check(&At::EXTERNAL, &service().external_local(), "Rl1 Rr1", expected);
}

fn with_a_bridge(mode: Mode) {
    // Only the pod called `pod` is behind this interface.
    let mut cluster = Cluster::new(mode);
    let bridge = cluster.world().pods().last().map(|pod| pod.interface().to_owned()).unwrap_or_default();
    cluster.configure(|settings| settings.local_detector = LocalDetector::Interface(bridge.as_str().into()));
    let expected = "pod l1 r1, l2 l1* r1*, node l1* r1*, remote l1* r1*, client l1* r1*";
    cluster.check(&[At::ClusterIp], &service().external(), "Rl1 Rr1", expected);
    let expected = "pod l1 r1 [ipvs: l1], l2 l1, node l1* r1* [ipvs: l1*], remote l1, client l1";
    cluster.check(&At::EXTERNAL, &service().external_local(), "Rl1 Rr1", expected);
}

fn masquerade_all_is_for_cluster_ips(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.configure(|settings| settings.masquerade_all = true);
    let everybody = "pod l1* r1* because masquerade-all [userspace/redirect: masquerade-by-relay], \
                     node l1* r1*, remote l1* r1*, client l1* r1*";
    cluster.check(&[At::ClusterIp], &service().external_local(), "Rl1 Rr1", everybody);
    cluster.expect(
        &At::EXTERNAL,
        "pod l1 r1 [ipvs: l1], node l1* r1* [ipvs: l1*], client l1",
        "external Local",
    );
}

fn every_mark_bit_will_do(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    for bit in [0, 7, 8, 31] {
        cluster.configure(|settings| settings.masquerade_bit = bit);
        cluster.check(&[At::ClusterIp, At::NodePort], &service().external(), "Rl1", "client l1*");
        cluster.expect(&[At::ClusterIp], "pod l1", "not marked");
    }
}

fn pods_that_draw_themselves(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let (everywhere, local) = (service().external(), service().external_local().internal_local());
    cluster.check(
        &[At::ClusterIp],
        &everywhere,
        "Rl1 Rl2 Rr1",
        "l1 l1* l2 r1 because masquerade-hairpin [userspace/redirect: masquerade-by-relay], \
         l2 l1 l2* r1, pod l1 l2 r1",
    );
    cluster.expect(&At::EXTERNAL, "l1 l1* l2* r1*, l2 l1* l2* r1*", "external Cluster");
    cluster.check(&[At::ClusterIp], &local, "Rl1 Rr1", "l1 l1*");
    cluster.expect(&At::EXTERNAL, "l1 l1* r1 [ipvs: l1*]", "external Local");
    cluster.check(&[At::ClusterIp], &everywhere, "Rl1? Rl2", "l1 l1* l2");
    cluster.check(&[At::ClusterIp], &everywhere, "Rr1? Rl2", "r1 l2 r1*");
    // To masquerade this packet is up to the pod's own node. Without that, its response finds no way back.
    cluster.check(
        &[At::ClusterIp],
        &everywhere,
        "Rr1 Rl2",
        "r1 l2 r1 [iptables: l2 r1*] because balanced [iptables: masquerade-hairpin-elsewhere]",
    );
    for detector in [LocalDetector::None, LocalDetector::InterfacePrefix("pod".into())] {
        cluster.configure(|settings| settings.local_detector = detector.clone());
        cluster.check(&[At::ClusterIp], &everywhere, "Rl1 Rl2", "l1 l1* l2, pod l1 l2");
    }
}

/// Without another source port for the second connection, the replies of both would look alike.
fn a_client_uses_one_port_for_two_frontends(mode: Mode) {
    // A SYN is repeated several times within it.
    const PATIENCE: Duration = Duration::from_secs(20);
    let mut cluster = Cluster::new(mode);
    let (pod, outside) = (cluster.world().pods()[4].namespace(), cluster.world().client().namespace());
    let (pod, outside) = (pod.clone(), outside.clone());
    let mut ports = 45_000..;
    for endpoint in ["Rl1", "Rl0"] {
        cluster.put(&service().external(), endpoint);
        if endpoint == "Rl0" {
            // Kernels such as 6.1 look up the node's socket before they know the port: docs/reliability.md, "Defects of kernels".
            let setting = ("net/ipv4/tcp_early_demux".to_owned(), "0");
            cluster.world().node().namespace().write_sysctls(&[setting]).unwrap();
        }
        for client in [&pod, &outside] {
            for family in Family::BOTH {
                let port = ports.next().unwrap();
                let only_port = format!("net.ipv4.ip_local_port_range={port} {port}");
                client.output("sysctl", &["-q", "-w", &only_port]).unwrap();
                let connect = |at: At| {
                    let to = at.socket(family);
                    client.run(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap()
                };
                let held = [At::ClusterIp, At::ExternalIp, At::NodePort].map(connect);
                let is_reached = held.iter().all(Result::is_ok);
                assert!(is_reached, "{family}, endpoint {endpoint}: {held:?} {}", cluster.ruleset());
            }
        }
    }
}
