//! Rules of other programs that drop packets of Services, and firewalls that are present.
//!
//! For each hook there is a description of the packets of Services that pass it. [`walk()`] returns the rules that stop
//! them. A rule that stops only some packets is reported if it does so for a whole interface of pods or of the node's
//! network: narrower rules are the operator's choice, and whether they hit a Service cannot be decided here. Which hooks
//! packets pass depends on the mode: `path`. `mend` has the commands.

mod mend;
mod path;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use portolan_model::Family;

use crate::facts::{Facts, Link, Role};
use crate::finding::{Code, Finding, Severity};
use crate::rules::{Chain, Hit, Hook, Kind, Owner, Packet, Test, is_named, walk};

pub(super) use mend::remove;
pub(super) use path::Path;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = stops(facts);
    findings.extend(present(facts));
    findings
}

const HOOKS: [(Hook, Code); 5] = [
    (Hook::Prerouting, Code::PreroutingDropped),
    (Hook::Input, Code::InputDropped),
    (Hook::Forward, Code::ForwardDropped),
    (Hook::Output, Code::OutputDropped),
    (Hook::Postrouting, Code::PostroutingDropped),
];

/// Returns true for base chains of other programs.
pub(super) fn is_foreign(chain: &Chain) -> bool {
    !Owner::of(&chain.place, &chain.name).knows_services()
}

/// Returns the description of packets of Services at a base chain.
pub fn service_packet(facts: &Facts, family: Family, base: &Chain) -> Packet {
    let Some(properties) = base.base else { return Packet::of(family) };
    let (input, output) = match properties.hook {
        Hook::Ingress | Hook::Prerouting | Hook::Input => (interfaces(facts), Some(Vec::new())),
        Hook::Forward => (interfaces(facts), interfaces(facts)),
        Hook::Output => (Some(Vec::new()), None),
        Hook::Postrouting | Hook::Egress => (None, interfaces(facts)),
    };
    let translated = Path::of(facts).is_translated_at(properties);
    Packet { input, output, translated, of_service: true, ..Packet::of(family) }
}

/// Returns the descriptions of packets of Services at a base chain. Packets that are forwarded are for pods of this node or
/// come from them, if the addresses of these are known.
fn service_packets(facts: &Facts, family: Family, base: &Chain) -> Vec<Packet> {
    let packet = service_packet(facts, family, base);
    let pods: Vec<IpNet> = facts.cluster.iter().flat_map(|cluster| cluster.pod_cidrs(family)).collect();
    if pods.is_empty() || base.base.is_none_or(|base| base.hook != Hook::Forward) {
        return vec![packet];
    }
    let of_pods = |pods: IpNet| {
        [
            Packet { destination: Some(pods), ..packet.clone() },
            Packet { source: Some(pods), ..packet.clone() },
        ]
    };
    pods.into_iter().flat_map(of_pods).collect()
}

/// Returns the interfaces through which packets of Services pass; `None` if no interface is known.
fn interfaces(facts: &Facts) -> Option<Vec<String>> {
    let used = |link: &&Link| link.role(&facts.links) != Role::None;
    let names: Vec<String> = facts.links.iter().filter(used).map(|link| link.name.clone()).collect();
    (!names.is_empty()).then_some(names)
}

/// Returns what stops packets of Services. A chain of both families is reported once.
fn stops(facts: &Facts) -> Vec<Finding> {
    let mut found: BTreeMap<(Code, String), Finding> = BTreeMap::new();
    for family in Family::BOTH {
        for (hook, code) in HOOKS {
            for base in facts.rules.base_chains(family, hook) {
                for finding in of_chain(facts, code, family, base) {
                    found.entry((code, finding.title.clone())).or_insert(finding);
                }
            }
        }
    }
    found.into_values().collect()
}

/// Returns what stops packets of Services in a base chain and where it leads.
fn of_chain(facts: &Facts, code: Code, family: Family, base: &Chain) -> Vec<Finding> {
    if !is_foreign(base) {
        return Vec::new();
    }
    let packets = service_packets(facts, family, base);
    let of_packet = |packet: &Packet| {
        let hits = walk(&facts.rules, base, packet);
        hits.iter().filter_map(|hit| stop(facts, code, hit, packet)).collect::<Vec<_>>()
    };
    packets.iter().flat_map(of_packet).collect()
}

/// Returns the finding for a rule that stops packets of a description.
fn stop(facts: &Facts, code: Code, hit: &Hit<'_>, packet: &Packet) -> Option<Finding> {
    if hit.kind != Kind::Stop || !is_wide(facts, hit) {
        return None;
    }
    let path = Path::of(facts);
    let severity =
        if hit.is_certain() && path.concerns_all(code) { Severity::Error } else { Severity::Warning };
    let finding = Finding::new(code, severity, title(hit), mend::command(facts, path, hit, packet));
    Some(match path.breaks(code) {
        Some(breaks) => Finding { breaks: breaks.to_owned(), ..finding },
        None => finding,
    })
}

/// Returns true if the rule stops all packets, or those of a whole interface that packets of Services use.
fn is_wide(facts: &Facts, hit: &Hit<'_>) -> bool {
    let is_used = |name: &str| {
        let used = |link: &Link| link.role(&facts.links) != Role::None && is_named(name, &link.name);
        facts.links.is_empty() || facts.links.iter().any(used)
    };
    let is_wide = |test: &&Test| match test {
        // Some packets fulfil it, so there are other interfaces.
        Test::Not(test) => match &**test {
            Test::Any(tests) => tests.iter().all(|test| test.interface().is_some()),
            test => test.interface().is_some(),
        },
        Test::Any(tests) => tests.iter().any(|test| test.interface().is_some_and(is_used)),
        test => test.interface().is_some_and(is_used),
    };
    hit.only_if.iter().all(is_wide)
}

fn title(hit: &Hit<'_>) -> String {
    let exceptions = if hit.unless { ", except for those that an earlier rule decides about" } else { "" };
    match hit.rule {
        None => format!("the policy of {} drops packets{exceptions}", hit.chain),
        Some(rule) => {
            let conditions: Vec<String> = hit.only_if.iter().map(ToString::to_string).collect();
            let which = if conditions.is_empty() {
                "all packets".to_owned()
            } else {
                format!("packets with {}", conditions.join(" and "))
            };
            format!("a rule of {} stops {which}{exceptions}: `{rule}`", hit.chain)
        }
    }
}

/// Returns a note for each firewall or container engine with rules here.
fn present(facts: &Facts) -> Vec<Finding> {
    let owners = facts.rules.chains().iter().map(|chain| Owner::of(&chain.place, &chain.name));
    let owners: BTreeSet<Owner> = owners.collect();
    let note = |code, title: String, mend: &str| Finding::new(code, Severity::Note, title, mend);
    let finding = |owner: Owner| match owner {
        Owner::Ufw | Owner::Firewalld | Owner::Docker | Owner::Podman | Owner::Libvirt => Some(note(
            Code::FirewallPresent,
            format!("{owner} has firewall rules on this node"),
            "nothing to do; write accepted traffic into its configuration, not only into its rules",
        )),
        Owner::Cilium | Owner::Calico | Owner::KubeRouter => Some(note(
            Code::OtherServiceProxy,
            format!("{owner} has rules on this node; it may also handle Services"),
            match owner {
                Owner::Cilium => "cilium config set kube-proxy-replacement false, unless it is",
                Owner::Calico => "set bpfEnabled to false in the FelixConfiguration, unless it is",
                _ => "run kube-router with --run-service-proxy=false, unless you do",
            },
        )),
        _ => None,
    };
    owners.into_iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests;
