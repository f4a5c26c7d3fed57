//! The selection of endpoints: one line for each row of the decision tables.

use portolan_model::Protocol;
use portolan_tests::{At, Cluster, Mode, attempts_of, in_every_mode, service};

in_every_mode! {
    traffic_to_cluster_ips,
    traffic_from_outside,
    one_policy_says_nothing_about_the_other_traffic,
    topology_hints,
    what_nobody_has,
}

fn traffic_to_cluster_ips(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let (everywhere, local) = (service(), service().internal_local());
    let at = &[At::ClusterIp];
    for (service, endpoints, expected) in [
        (
            &everywhere,
            "",
            "pod reject because matched internal-policy-cluster no-endpoints, node reject, remote reject, \
             client reject",
        ),
        (
            &everywhere,
            "Nl1 Nr2",
            "pod reject because endpoint-not-ready, node reject, remote reject, client reject",
        ),
        (&everywhere, "Dl1 Dr2", "pod reject because endpoint-not-serving, client reject"),
        (
            &everywhere,
            "Rl1 Rr2",
            "pod l1 r2 because balanced endpoint-ready source-kept-pod [userspace/redirect: masquerade-by-relay], \
             node l1* r2* because masquerade-from-outside [userspace/redirect: masquerade-by-relay], \
             remote l1 r2, client l1* r2*",
        ),
        (
            &everywhere,
            "Tl1 Tr2",
            "pod l1 r2 because endpoint-terminating-used, node l1* r2*, remote l1 r2, client l1* r2*",
        ),
        (&everywhere, "Rl1 Tr2 Nl3", "pod l1, node l1*, remote l1, client l1*"),
        (&everywhere, "Pl1 Tr2", "pod l1 because endpoint-terminating, client l1*"),
        (&local, "", "pod reject, node reject, client reject"),
        (&local, "Nl1 Nr2", "pod reject, node reject, client reject"),
        (
            &local,
            "Rr1 Rr2",
            "pod drop because internal-policy-local endpoint-on-other-node internal-endpoints-elsewhere, node drop, \
             remote drop, client drop",
        ),
        (&local, "Tr1", "pod drop, client drop"),
        (&local, "Rl1 Rl2 Rr1", "pod l1 l2, node l1* l2*, remote l1 l2, client l1* l2*"),
        (&local, "Tl1 Rr2", "pod l1, node l1*, remote l1, client l1*"),
        (&local, "Rl1 Tl2 Rr3", "pod l1, client l1*"),
    ] {
        cluster.check(at, service, endpoints, expected);
    }
    if mode.relays() {
        let mut sctp = attempts_of(cluster.sender("pod"), at);
        sctp.retain(|attempt| attempt.protocol == Protocol::Sctp);
        for verdict in cluster.judge(&sctp) {
            assert_eq!(verdict.codes().collect::<Vec<_>>(), ["matched", "sctp-not-carried"]);
        }
        assert_eq!(cluster.faults(&sctp), [""; 0]);
    }
}

fn traffic_from_outside(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let (everywhere, local) = (service().external(), service().external_local());
    for (service, endpoints, expected) in [
        (&everywhere, "", "pod reject, remote reject, client reject"),
        (&everywhere, "Nl1 Dr2", "pod reject, client reject"),
        (
            &everywhere,
            "Rl1 Rr2",
            "pod l1* r2*, node l1* r2*, remote l1* r2* because external-policy-cluster, \
             client l1* r2* because masquerade-external [userspace/redirect: masquerade-by-relay]",
        ),
        (&everywhere, "Tl1 Nr2", "pod l1*, node l1*, client l1*"),
        (&local, "", "pod reject, remote reject, client reject"),
        (
            &local,
            "Rl1 Rr2",
            "pod l1 r2 [ipvs: l1] because short-cut-for-pods [ipvs: external-policy-local-for-all], \
             node l1* r2* [ipvs: l1*] because short-cut-for-node [ipvs: external-policy-local-for-all], \
             remote l1 r2 [ipvs: l1], \
             client l1 because source-kept-local-policy [userspace/redirect: masquerade-by-relay]",
        ),
        (&local, "Rl1 Rl2 Rr1", "pod l1 l2 r1 [ipvs: l1 l2], node l1* l2* r1* [ipvs: l1* l2*], client l1 l2"),
        (
            &local,
            "Rr1 Rr2",
            "pod r1 r2, node r1* r2* because masquerade-own-traffic [userspace/redirect: masquerade-by-relay], \
             client drop because external-policy-local external-endpoints-elsewhere",
        ),
        (&local, "Rr1 Nl2 Tl3 Tr3", "pod r1 [ipvs: l3], node r1* [ipvs: l3*], client l3"),
        (&local, "Tr1 Tr2", "pod r1 r2, node r1* r2*, client drop"),
        (&local, "Rl1 Tl2 Rr3", "pod l1 r3 [ipvs: l1], client l1"),
    ] {
        cluster.check(&At::EXTERNAL, service, endpoints, expected);
    }
    for (service, endpoints) in [(&everywhere, ""), (&everywhere, "Nl1 Dr2"), (&local, "")] {
        let elsewhere = [At::ExternalIp, At::LoadBalancerIp];
        let expected = "node reject [iptables/redirect: ignored] \
                        because no-endpoints [iptables/redirect: own-traffic-leaves]";
        cluster.check(&elsewhere, service, endpoints, expected);
        cluster.expect(&[At::NodePort], "node reject", endpoints);
    }
}

fn one_policy_says_nothing_about_the_other_traffic(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let internal = service().external().internal_local();
    cluster.check(&[At::ClusterIp], &internal, "Rl1 Rr2", "pod l1, client l1*");
    cluster.expect(&At::EXTERNAL, "pod l1* r2*, client l1* r2*", "internal Local");
    cluster.check(&[At::ClusterIp], &service().external_local(), "Rl1 Rr2", "pod l1 r2, client l1* r2*");
    let both = service().external_local().internal_local();
    cluster.check(&[At::ClusterIp], &both, "Tr1 Tr2", "pod drop, node drop, client drop");
    cluster.expect(&At::EXTERNAL, "pod r1 r2, node r1* r2*, client drop", "both Local");
}

fn topology_hints(mode: Mode) {
    // This node is n1, in zone a.
    let mut cluster = Cluster::new(mode);
    let at = &[At::ClusterIp];
    for (endpoints, expected) in [
        (
            "Rl1{a} Rl2{b} Rr1{c} Rr2{a}",
            "pod l1 r2 because zone-hints-followed endpoint-hinted-zone endpoint-hinted-other-zone",
        ),
        ("Nl1{a} Rl2{b} Rr1{c} Nr2{a}", "pod l2 r1 because zone-hints-elsewhere endpoint-not-ready"),
        ("Rl1{a} Rr2", "pod l1 r2 because zone-hints-incomplete"),
        ("Rl1{a;n3} Rr2{b;n2} Rr3{a;n4}", "pod l1 r3 because node-hints-elsewhere zone-hints-followed"),
        (
            "Rl1{a;n1} Rr2{a;n2}",
            "pod l1 because node-hints-followed zone-hints-superseded endpoint-hinted-node endpoint-hinted-other-node",
        ),
        ("Rl1{a;n1} Rr2", "pod l1 r2 because node-hints-incomplete"),
        ("Tl1{a} Tr2{b}", "pod l1 r2 because zone-hints-absent"),
        ("Rl1{b} Rr2{a,b} Tl3{a}", "pod r2"),
    ] {
        cluster.check(at, &service(), endpoints, expected);
    }
    let local = service().external_local();
    cluster.check(
        &At::EXTERNAL,
        &local,
        "Rl1{a} Rl2{b} Rr1{c} Rr2{a}",
        "pod l1 r2 [ipvs: l1 l2], client l1 l2",
    );
}

fn what_nobody_has(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external(), "Rl1");
    let everybody =
        |word: &str| ["pod", "node", "remote", "client"].map(|who| format!("{who} {word}")).join(", ");
    cluster.expect(
        &[At::WrongPort],
        &everybody(
            "reject [iptables/redirect: ignored] because other-port [ipvs: refused-at-service-address]",
        ),
        "a port that the Service does not have",
    );
    cluster.expect(
        &[At::Unallocated],
        &everybody(
            "drop [iptables/redirect/ipvs: ignored] \
             because unused-address [iptables/redirect/ipvs: strays-ignored]",
        ),
        "an address that no Service has",
    );
    cluster.configure(|settings| settings.service_cidrs.clear());
    cluster.expect(
        &[At::WrongPort],
        &everybody("reject [iptables/redirect: ignored]"),
        "service CIDRs not known",
    );
    cluster.expect(&[At::Unallocated], &everybody("ignored because no-frontend"), "service CIDRs not known");
}
