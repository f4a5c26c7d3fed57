//! What is left in the kernel of proxies that do not run any more, and of other modes of the running one.
//!
//! kube-proxy and Portolan's modes iptables, IPVS and userspace (with redirect) have chains with the same names. So no mend
//! removes chains unless it is certain that they are unused, and `kube-proxy --cleanup` is printed only if kube-proxy runs and
//! Portolan does not. A start of Portolan removes what its mode does not use and keeps the rest: this is the mend everywhere
//! else.

use std::collections::BTreeSet;

use super::proxies::{IPVS_DEVICE, OWN_TABLE, Rules, USERSPACE_TABLE, is_services};
use crate::facts::{Facts, Mode, Object, Part, Process, Program};
use crate::finding::{Code, Finding, Fix, Severity};

/// Number of objects of one kind that a title names.
const NAMED: usize = 3;
/// The word for sets in lists of objects.
const SET: &str = "ipset";
/// The mend if Portolan runs.
const RESTART: &str = "restart Portolan, which then removes what its mode does not use: \
                       systemctl restart portolan-proxy (or portolan-up), or delete its pod";
/// The same, if connections of a former mode may have to end before.
const WAIT_AND_RESTART: &str = "after a change of the mode, wait for connections of the former one (userspace: five minutes, \
                                ipvs: an hour); then restart Portolan, which removes what its mode does not use: \
                                systemctl restart portolan-proxy (or portolan-up), or delete its pod";
/// The mend if no proxy runs.
const START: &str = "start Portolan, which then removes what its mode does not use; \
                     or remove everything: portolan-proxy cleanup";
/// The mend if it is not known whether a proxy runs.
const FIND_OUT: &str = "if Portolan runs on this node, restart it: it then removes what its mode does not use; \
                        if no proxy runs, remove everything: portolan-proxy cleanup";
/// What sets break to which no rule refers.
const SETS_BREAK: &str = "Nothing by itself: the running mode does not use these sets. They take memory.";

/// Who programs Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Running {
    /// Portolan, in this mode. `None` if its command line does not name it.
    Portolan(Option<Mode>),
    /// kube-proxy.
    KubeProxy,
    /// No proxy.
    NoProxy,
    /// This is not known: processes of other containers are not visible.
    Unknown,
}

impl Running {
    /// Returns who programs Services; `None` if several processes do.
    fn of(facts: &Facts) -> Option<Self> {
        match facts.proxies.processes.as_slice() {
            [] if facts.proxies.complete => Some(Self::NoProxy),
            [] => Some(Self::Unknown),
            [Process { program: Program::Portolan, mode, .. }] => {
                Some(Self::Portolan(mode.as_deref().and_then(Mode::named)))
            }
            [Process { program: Program::KubeProxy, .. }] => Some(Self::KubeProxy),
            _ => None,
        }
    }

    const fn mend(self) -> &'static str {
        match self {
            Self::Portolan(_) | Self::KubeProxy => RESTART,
            Self::NoProxy => START,
            Self::Unknown => FIND_OUT,
        }
    }
}

/// What the kernel has of each mode, in words.
#[derive(Debug, Default)]
struct Present {
    /// Portolan's table of the nftables mode.
    nftables: Vec<String>,
    /// The tables of the userspace mode.
    userspace: Vec<String>,
    /// The policy routing of the userspace mode.
    routing: Vec<String>,
    /// Chains of the iptables mode. The IPVS mode, and the userspace mode with redirect, have them, too.
    chains: Vec<String>,
    /// What only the IPVS mode has.
    ipvs: Vec<String>,
}

impl Present {
    fn of(facts: &Facts, rules: Rules) -> Self {
        let listed = |part, is_there: bool, what: &str| {
            let words = words(&facts.objects, part);
            if words.is_empty() && is_there { vec![what.to_owned()] } else { words }
        };
        Self {
            nftables: listed(Part::Nftables, rules.own, &format!("table {OWN_TABLE}")),
            userspace: listed(Part::Userspace, rules.userspace, &format!("table {USERSPACE_TABLE}")),
            routing: words(&facts.objects, Part::Routing),
            chains: chains(facts),
            ipvs: listed(Part::Ipvs, rules.device, &format!("device {IPVS_DEVICE}")),
        }
    }

    /// Returns everything if it belongs to more than one mode.
    fn of_several_modes(&self) -> Option<Vec<String>> {
        let Self { nftables, userspace, routing, chains, ipvs } = self;
        let modes: [&[&Vec<String>]; 3] = [&[nftables], &[userspace, routing], &[chains, ipvs]];
        let count = modes.iter().filter(|mode| mode.iter().any(|words| !words.is_empty())).count();
        (count > 1).then(|| modes.concat().into_iter().flatten().cloned().collect())
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let rules = Rules::of(facts);
    match Running::of(facts) {
        None => Vec::new(),
        Some(Running::KubeProxy) => beside_kube_proxy(facts, rules).into_iter().collect(),
        Some(Running::Portolan(Some(mode))) => beside_mode(facts, rules, mode),
        Some(running) => beside_unknown_mode(facts, rules, running),
    }
}

/// Finds what Portolan left beside a kube-proxy that runs. Without such, finds rules of two modes of kube-proxy.
fn beside_kube_proxy(facts: &Facts, rules: Rules) -> Option<Finding> {
    let mut left: Vec<String> = Part::ALL.into_iter().flat_map(|part| words(&facts.objects, part)).collect();
    let tables = [(rules.own, OWN_TABLE), (rules.userspace, USERSPACE_TABLE)];
    if left.is_empty() {
        left.extend(tables.iter().filter(|(is, _)| *is).map(|(_, name)| format!("table {name}")));
    }
    if !left.is_empty() {
        let title = format!("kube-proxy runs, and Portolan, which does not run, left: {}", left.join(", "));
        let mend = "portolan-proxy cleanup --only-ours";
        return Some(Finding::new(Code::LeftoversOfPortolan, Severity::Warning, title, mend));
    }
    (rules.kube_proxy && rules.chains).then(|| {
        let title =
            "the kernel has rules of two modes of kube-proxy: its table of nftables, and chains of iptables";
        let mend = "kube-proxy --cleanup, then start the proxy again";
        Finding::new(Code::LeftoversOfKubeProxy, Severity::Warning, title, mend)
    })
}

/// Finds what Portolan does not use in the mode in which it runs. While that mode has no rules, the rules of a former one serve.
fn beside_mode(facts: &Facts, rules: Rules, mode: Mode) -> Vec<Finding> {
    let (has_rules, has_chains) = match mode {
        Mode::Nftables => (rules.own, false),
        Mode::Iptables | Mode::Ipvs => (rules.chains, true),
        Mode::Userspace => (rules.userspace || rules.chains, true),
    };
    if !has_rules {
        return Vec::new();
    }
    let mut present = Present::of(facts, rules);
    let mut findings = Vec::new();
    if mode == Mode::Ipvs {
        present.ipvs.clear();
    } else if !has_chains && !present.ipvs.is_empty() {
        present.ipvs.append(&mut present.chains);
    }
    let unused_chains: &[String] = if has_chains { &[] } else { &present.chains };
    findings.extend(of_kube_proxy(facts, rules, Running::Portolan(Some(mode)), unused_chains));

    let of_another = |left: &[String], mend: &str| {
        (!left.is_empty()).then(|| {
            let title =
                format!("Portolan runs in the {mode} mode, and another mode left: {}", left.join(", "));
            Finding::new(Code::LeftoversOfAnotherMode, Severity::Warning, title, mend)
        })
    };
    if mode != Mode::Nftables {
        findings.extend(of_another(&present.nftables, RESTART));
    }
    if mode != Mode::Userspace {
        findings.extend(of_another(&present.userspace, WAIT_AND_RESTART));
        findings.extend(routing(&present.routing, WAIT_AND_RESTART));
    } else if rules.userspace && rules.chains {
        let both = [present.userspace.join(", "), present.chains.join(", ")].join(", ");
        let title = format!("packets are captured in both ways of the userspace mode, by {both}");
        findings.push(Finding::new(Code::LeftoversOfAnotherMode, Severity::Warning, title, WAIT_AND_RESTART));
    }
    findings.extend(ipvs(&present.ipvs, WAIT_AND_RESTART));
    findings
}

/// Finds what cannot all be in use, whatever the mode is.
fn beside_unknown_mode(facts: &Facts, rules: Rules, running: Running) -> Vec<Finding> {
    let present = Present::of(facts, rules);
    let mut findings: Vec<Finding> = of_kube_proxy(facts, rules, running, &[]).into_iter().collect();
    if let Some(all) = present.of_several_modes() {
        let title = format!(
            "the kernel has objects of several modes, and no command line says which one serves: {}",
            all.join(", ")
        );
        let mend = match running {
            Running::Portolan(_) => WAIT_AND_RESTART,
            _ => running.mend(),
        };
        findings.push(Finding::new(Code::LeftoversOfAnotherMode, Severity::Warning, title, mend));
    } else if running == Running::NoProxy {
        // With chains or tables, these serve in the mode of the proxy that ended.
        if present.chains.is_empty() {
            findings.extend(ipvs(&present.ipvs, START));
        }
        if present.userspace.is_empty() {
            findings.extend(routing(&present.routing, START));
        }
    }
    findings
}

/// Finds the table of kube-proxy's nftables mode, and chains that are certainly unused, beside other rules.
///
/// A fix removes all chains of kube-proxy. So there is none if chains may be in use: by Portolan, by a kube-proxy that is not
/// visible, or by virtual servers of the IPVS mode. While Portolan changes from the nftables mode to another one, its own table is
/// still there beside chains that are in use, so only the command line is certain.
fn of_kube_proxy(facts: &Facts, rules: Rules, running: Running, chains: &[String]) -> Option<Finding> {
    let is_beside_others = rules.own || rules.userspace || rules.chains;
    let mut what = Vec::new();
    if rules.kube_proxy && is_beside_others {
        what.push("the table kube-proxy".to_owned());
    }
    what.extend_from_slice(chains);
    if what.is_empty() {
        return None;
    }
    let title = format!("kube-proxy left {}, beside other rules for Services", what.join(", "));
    let has_ipvs = rules.device || facts.objects.iter().any(|object| object.part == Part::Ipvs);
    let serves = match running {
        Running::Portolan(Some(Mode::Nftables)) => rules.own,
        Running::Portolan(_) => !rules.chains && (rules.own || rules.userspace),
        _ => false,
    };
    let is_safe = serves && facts.proxies.complete && !has_ipvs;
    let mend = match running {
        _ if is_safe => "portolan doctor --fix".to_owned(),
        Running::Portolan(_) if !facts.proxies.complete => {
            format!("stop kube-proxy if it runs on this node; then {RESTART}")
        }
        _ => running.mend().to_owned(),
    };
    let fix = is_safe.then_some(Fix::RemoveLeftovers);
    Some(Finding { fix, ..Finding::new(Code::LeftoversOfKubeProxy, Severity::Warning, title, mend) })
}

/// Finds what the IPVS mode left. Sets alone break nothing.
fn ipvs(left: &[String], mend: &str) -> Option<Finding> {
    if left.is_empty() {
        return None;
    }
    let title = format!("the IPVS mode, which does not run, left: {}", left.join(", "));
    if left.iter().all(|words| words.starts_with(SET)) {
        let finding = Finding::new(Code::LeftoversOfIpvs, Severity::Note, title, mend);
        return Some(Finding { breaks: SETS_BREAK.to_owned(), ..finding });
    }
    Some(Finding::new(Code::LeftoversOfIpvs, Severity::Warning, title, mend))
}

/// Finds the policy routing of the userspace mode.
fn routing(left: &[String], mend: &str) -> Option<Finding> {
    (!left.is_empty()).then(|| {
        let title =
            format!("the userspace mode, which does not run, left policy routing: {}", left.join(", "));
        Finding::new(Code::LeftoversOfRouting, Severity::Warning, title, mend)
    })
}

/// Returns the chains of the modes with kube-proxy's names in words, for each program that lists them.
fn chains(facts: &Facts) -> Vec<String> {
    let of_services = facts.rules.chains().iter().filter(|chain| is_services(chain));
    let programs: BTreeSet<&str> = of_services.map(|chain| chain.place.command()).collect();
    programs.into_iter().map(|program| format!("chains KUBE-* of {program}")).collect()
}

/// Returns the objects of a part in words: those of one kind together, and of both families once.
fn words(objects: &[Object], part: Part) -> Vec<String> {
    let mut kinds: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for object in objects.iter().filter(|object| object.part == part) {
        match kinds.iter_mut().find(|(kind, _)| *kind == object.kind) {
            Some((_, names)) => {
                names.insert(object.name.as_str());
            }
            None => kinds.push((object.kind, BTreeSet::from([object.name.as_str()]))),
        }
    }
    kinds.into_iter().map(|(kind, names)| named(kind, &names)).collect()
}

/// Returns the first names of a kind, and the number of the others.
fn named(kind: &str, names: &BTreeSet<&str>) -> String {
    let plural = match names.len() {
        1 => "",
        _ if kind.ends_with('s') => "es",
        _ => "s",
    };
    let first: Vec<&str> = names.iter().copied().take(NAMED).collect();
    let more = match names.len().saturating_sub(first.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{kind}{plural} {}{more}", first.join(", "))
}

#[cfg(test)]
mod tests;
