//! What `portolan explain` says of a packet on the node of a [`Cluster`].

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_explain::{Facts, FamilyView, NodeView, Question, Report, Sender, Target, answer};
use portolan_firewall::Ruleset;
use portolan_model::catalog::PerFamily;
use portolan_model::verdict::Fate;
use portolan_model::{Family, Protocol};
use portolan_tests::{Cluster, NODE_NAME, ProbedAttempt, SenderLocation};

/// The CIDRs of the pods of the node, as its Node object has them.
const POD_CIDRS: [&str; 2] = ["10.244.1.0/24", "fd00:10:244:1::/64"];

pub(crate) fn explain(
    cluster: &Cluster,
    rules: Option<&Ruleset>,
    from: Sender,
    interface: Option<&str>,
    (destination, protocol): (SocketAddr, Protocol),
) -> Report {
    let view = |family| {
        let settings = cluster.settings(family).clone();
        Some(FamilyView {
            mode: cluster.mode().name().to_owned(),
            settings,
            differences: cluster.differences(family),
            in_kube_proxys_chains: cluster.mode().name() == "iptables",
            redirected_to: None,
        })
    };
    let node = NodeView {
        name: NODE_NAME.to_owned(),
        mode: cluster.mode().name().to_owned(),
        addresses: cluster.world().node().all_addresses(),
        pod_cidrs: POD_CIDRS.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        families: PerFamily { ipv4: view(Family::Ipv4), ipv6: view(Family::Ipv6) },
    };
    let family = Family::of(destination.ip());
    let node_source = Some(cluster.world().node().addresses().of(family));
    let facts = Facts { rules, node_source, ..Facts::new(&node, cluster.catalog()) };
    let target = Target::Socket { socket: destination, protocol };
    let question = Question { interface: interface.map(str::to_owned), ..Question::new(from, target) };
    answer(&question, &facts).unwrap()
}

/// Returns a description if the explanation of a packet differs from the verdict, which the packet has met. The question has
/// what a user knows: the sender's address, and the interface where its packets arrive.
#[allow(dead_code, reason = "not each test program that explains packets compares verdicts")]
pub(crate) fn disagreement(cluster: &Cluster, probed: &ProbedAttempt) -> Option<String> {
    let attempt = &probed.attempt;
    // Each packet has its sender's address, except those to a loopback address.
    let from = if attempt.destination.ip().is_loopback() {
        Sender::Node
    } else {
        Sender::Address(attempt.sender.address(attempt.family()))
    };
    let interface = match &attempt.sender.place {
        SenderLocation::Pod(interface) => Some(interface.as_str()),
        SenderLocation::Node => None,
        SenderLocation::Remote(interface) => Some(*interface),
    };
    let report = explain(cluster, None, from, interface, (attempt.destination, attempt.protocol));
    let used = report.wanted.endpoints.iter().filter(|endpoint| endpoint.used);
    let used: BTreeSet<_> = used.map(|endpoint| (endpoint.endpoint, endpoint.masqueraded)).collect();
    let (fate, expected) = match &probed.verdict.fate {
        Fate::Backends { set, masqueraded, .. } => (
            portolan_explain::Fate::Delivered,
            set.iter().zip(masqueraded).map(|(backend, it)| (backend.socket(), Some(*it))).collect(),
        ),
        Fate::Reject => (portolan_explain::Fate::Rejected, BTreeSet::new()),
        Fate::Drop => (portolan_explain::Fate::Dropped, BTreeSet::new()),
        Fate::NotOurs => (portolan_explain::Fate::NotAffected, BTreeSet::new()),
    };
    let agrees = report.wanted.fate == fate && (expected.is_empty() || used == expected);
    (!agrees).then(|| {
        let steps: Vec<_> = report.wanted.steps.iter().map(|step| &step.text).collect();
        format!("{attempt}: met {:?}, but the explanation is {used:?}: {steps:?}", probed.verdict.fate)
    })
}
