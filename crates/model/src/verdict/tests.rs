use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::*;
use crate::catalog::{AddressOwner, WhyLeftOut};
use crate::object::ObjectKey;
use crate::selection::{Choice, Demand, Endpoint, Hint, HintUse, explain};
use crate::{Family, Protocol};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("a socket")
}

fn name(port: &str) -> Arc<ServicePortName> {
    let [namespace, service, port] = ["default", "web", port].map(Arc::from);
    Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
}

/// Every reason, besides the choices of endpoints.
fn all_reasons() -> Vec<Reason> {
    let (source, range) = (ip("203.0.113.1"), "203.0.113.0/24".parse().expect("a CIDR"));
    let endpoint = at("10.244.1.5:8080");
    let (name, frontend) = (name("http"), Frontend::ClusterIp(ip("10.96.0.1"), 80));
    let mut reasons = vec![
        Reason::OtherFamily { table: Family::Ipv4 },
        Reason::Established { endpoint },
        Reason::EstablishedNotTranslated,
        Reason::Matched { name: Arc::clone(&name), frontend },
        Reason::OtherPort { name: Arc::clone(&name), frontend, protocol: Protocol::Udp, port: 81 },
        Reason::UnusedAddress { address: ip("10.96.7.7"), cidr: "10.96.0.0/16".parse().expect("a CIDR") },
        Reason::NoFrontend { destination: at("[2001:db8::1]:80"), protocol: Protocol::Sctp },
        Reason::NodePortNotAccepted { name: Arc::clone(&name), destination: at("172.17.0.1:30080") },
        Reason::NodePortNotAccepted { name, destination: at("127.0.0.1:30080") },
        Reason::NodePortStopped,
        Reason::LeftToNode { address: ip("172.16.0.1") },
        Reason::StraysIgnored,
        Reason::RefusedAtServiceAddress,
        Reason::SourceInRange { source, range },
        Reason::SourceIsLoadBalancerIp { source: ip("192.0.2.20"), node: ip("172.16.0.1") },
        Reason::SourceOutsideRanges { source },
        Reason::SourceRangesUnreadable,
        Reason::SourceRangesNotChecked,
        Reason::ShortCutForPods,
        Reason::ShortCutForNode,
        Reason::LocalPolicyForAll,
        Reason::SctpNotCarried,
        Reason::NoEndpoints,
        Reason::OwnTrafficLeaves,
        Reason::Balanced { count: 1 },
        Reason::Balanced { count: 3 },
        Reason::SessionAffinity { seconds: 10_800, per_frontend: false },
        Reason::SessionAffinity { seconds: 10_800, per_frontend: true },
        Reason::MasqueradeAll,
        Reason::MasqueradeFromOutside,
        Reason::MasqueradeExternal,
        Reason::MasqueradeOwnTraffic,
        Reason::MasqueradeByRelay,
        Reason::MasqueradeHairpin { endpoint },
        Reason::MasqueradeHairpinElsewhere { endpoint },
        Reason::SourceKeptOnNode { endpoint },
        Reason::SourceKept(SourceKept::Pod),
        Reason::SourceKept(SourceKept::NoDetector),
        Reason::SourceKept(SourceKept::LocalPolicy),
        Reason::SourceKeptByRelay { endpoint },
        Reason::SourceKept(SourceKept::OnRequest),
    ];
    reasons.extend(all_left_out().map(Reason::LeftOut));
    for traffic in [Traffic::Internal, Traffic::External] {
        reasons.extend([
            Reason::ClusterPolicy(traffic),
            Reason::LocalPolicy(traffic),
            Reason::EndpointsElsewhere(traffic),
        ]);
    }
    reasons
}

/// A frontend that is left out, for every cause.
fn all_left_out() -> impl Iterator<Item = LeftOut> {
    let owners = AddressOwner::ALL.map(WhyLeftOut::Address);
    let others = [WhyLeftOut::ApiServer, WhyLeftOut::Conflict(ObjectKey::new("other", "web"))];
    let frontend = Frontend::ExternalIp(ip("192.0.2.1"), 80);
    others.into_iter().chain(owners).map(move |why| LeftOut { name: name("http"), frontend, why })
}

fn selection_reasons() -> Vec<Reason> {
    use HintUse::{Absent, Followed, Incomplete, NoneHere, Superseded};
    let kinds = [HintKind::Node, HintKind::Zone];
    let uses = [Absent, Followed, Superseded, Incomplete, NoneHere];
    let mut reasons: Vec<Reason> =
        kinds.iter().flat_map(|&kind| uses.map(|used| Reason::Hints { kind, used })).collect();
    let mut choices = vec![
        Choice::Ready,
        Choice::Fallback,
        Choice::NoTraffic,
        Choice::NotReady,
        Choice::SetAside,
        Choice::Terminating,
        Choice::NotServing,
        Choice::OtherNode,
        Choice::UnknownNode,
        Choice::Duplicate,
    ];
    choices.extend(kinds.map(Choice::Hinted));
    choices.extend(kinds.map(Choice::HintedElsewhere));
    let endpoint = at("10.244.1.5:8080");
    reasons.extend(choices.into_iter().map(|choice| Reason::Endpoint { endpoint, choice }));
    reasons
}

#[test]
fn texts_and_codes() {
    let all = all_reasons().into_iter().chain(selection_reasons());
    let lines: Vec<String> = all.map(|reason| format!("{}: {reason}", reason.code())).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn codes_are_kebab_case_and_name_one_rule_each() {
    let mut rules = std::collections::HashMap::new();
    for reason in all_reasons().into_iter().chain(selection_reasons()) {
        let code = reason.code();
        assert!(code.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()), "{code}");
        let text = reason.to_string();
        assert_ne!(text, code, "a reason without a text");
        if let Some(other) = rules.insert(code, reason.clone()) {
            let same = std::mem::discriminant(&other) == std::mem::discriminant(&reason);
            assert!(same && !matches!(reason, Reason::Endpoint { .. }), "{other:?} and {reason:?}");
        }
    }
}

fn endpoint(address: &str, local: bool, ready: bool) -> Endpoint {
    Endpoint {
        backend: Backend { address: ip(address), port: 8080, may_hairpin: local },
        ready,
        serving: ready,
        terminating: false,
        aside: false,
        local,
        node_hint: Hint::Absent,
        zone_hint: Hint::Absent,
    }
}

fn verdict(list: Option<EndpointList>, reasons: Vec<Reason>) -> Verdict {
    Verdict { fate: Fate::Reject, decided_by: None, endpoints: list, reasons }
}

#[test]
fn endpoints_are_added_after_the_policy() {
    let endpoints = vec![
        (endpoint("10.244.1.5", true, true), ()),
        (endpoint("10.244.1.6", true, false), ()),
        (endpoint("10.244.2.5", false, true), ()),
    ];
    let selection = explain(endpoints, Demand { cluster: true, local: true }, |_| false);
    let matched = Reason::Matched { name: name(""), frontend: Frontend::NodePort(30080) };
    let codes = |list, policy| {
        let reasons = vec![matched.clone(), policy, Reason::Balanced { count: 1 }];
        verdict(list, reasons).with_endpoints(&selection).codes().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        codes(Some(EndpointList::Cluster), Reason::ShortCutForPods),
        "matched short-cut-for-pods node-hints-absent zone-hints-absent endpoint-ready endpoint-not-ready \
         endpoint-ready balanced"
    );
    assert_eq!(
        codes(Some(EndpointList::Local), Reason::LocalPolicy(Traffic::External)),
        "matched external-policy-local endpoint-ready endpoint-not-ready endpoint-on-other-node balanced"
    );
    assert_eq!(codes(None, Reason::SctpNotCarried), "matched sctp-not-carried balanced");
}

#[test]
fn frontends_that_are_left_out_come_before_the_lookup() {
    let verdict =
        |reason| Verdict { fate: Fate::NotOurs, decided_by: None, endpoints: None, reasons: vec![reason] };
    let destination = at("192.0.2.1:80");
    let stray = verdict(Reason::NoFrontend { destination, protocol: Protocol::Tcp });
    let codes: Vec<&str> = stray.with_left_out(all_left_out().take(3)).codes().collect();
    assert_eq!(codes, ["left-out-api-server", "left-out-conflict", "left-out-address", "no-frontend"]);
    let established = verdict(Reason::EstablishedNotTranslated);
    assert_eq!(established.clone().with_left_out(all_left_out()), established);
}
