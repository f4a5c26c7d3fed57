//! Reads the facts of this node. Everything here is I/O; what is read is interpreted by pure functions.
//!
//! The network namespace is that of the calling thread. What cannot be read is noted in [`Facts::unread`], and the rest is
//! read all the same.

mod files;
mod legacy;
mod links;
mod mode;
mod processes;
mod rules;

use std::fmt::Display;

use portolan_node::sysctl::Host;

use crate::facts::{AffinityLists, Facts, Object, Program, Unread};
use crate::rules::Ruleset;

/// Returns the facts of this node. Blocks while the programs of the older iptables run.
pub fn facts(host: &Host) -> Facts {
    let mut facts = Facts { kernel: files::kernel(host), ..Facts::default() };
    match links::read(host) {
        Ok(links) => facts.links = links,
        Err(error) => facts.unread.push(unread("network interfaces", &error)),
    }
    files::settings(host, &mut facts);
    facts.conntrack = files::conntrack(host);
    facts.has_ipvs = files::has_ipvs(host);
    facts.affinity = affinity(host);
    match processes::read() {
        Ok(proxies) => facts.proxies = proxies,
        Err(error) => facts.unread.push(unread("processes", &error)),
    }
    if facts.proxies.processes.len() == 1 {
        facts.answered_mode = mode::answered();
    }
    let (rules, unread) = ruleset(host);
    (facts.rules, facts.rules_are_partial) = (rules, !unread.is_empty());
    facts.unread.extend(unread);
    facts
}

/// Whose objects a list has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Those of all modes, Portolan's and kube-proxy's.
    All,
    /// Those of Portolan that a running kube-proxy does not use.
    Portolans,
}

/// Objects of modes in the network namespace of this thread.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The objects.
    pub objects: Vec<Object>,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// Lists objects of modes in the network namespace of this thread, and changes nothing. The caller supplies it, because it
/// knows the objects of each mode.
pub type ListObjects<'a> = &'a dyn Fn(Whose) -> Listed;

/// Adds the objects of modes. Beside a kube-proxy that runs alone, these are the objects that it does not use.
pub fn add_objects(facts: &mut Facts, list: ListObjects<'_>) {
    let runs = |program| facts.proxies.processes.iter().any(|process| process.program == program);
    let is_kube_proxy_alone = runs(Program::KubeProxy) && !runs(Program::Portolan);
    let Listed { objects, unread } = list(if is_kube_proxy_alone { Whose::Portolans } else { Whose::All });
    facts.objects = objects;
    facts.unread.extend(unread);
}

/// Returns the lists of clients with session affinity in the iptables mode. Without the module of these lists there are none.
pub fn affinity(host: &Host) -> Option<AffinityLists> {
    files::affinity(host)
}

/// Returns the firewall rules of all programs, and what could not be read. Tables of proxies have no rules. Blocks while the
/// programs of the older iptables run.
pub fn ruleset(host: &Host) -> (Ruleset, Vec<Unread>) {
    let (mut chains, mut failures) = (Vec::new(), Vec::new());
    match rules::read() {
        Ok(read) => chains.extend(read),
        Err(error) => failures.push(unread("nftables", &error)),
    }
    for (family, read) in legacy::read(host) {
        match read {
            Ok(read) => chains.extend(read),
            Err(error) => failures.push(unread(&format!("the older iptables, {family}"), &error)),
        }
    }
    (Ruleset::new(chains), failures)
}

fn unread(what: &str, reason: &impl Display) -> Unread {
    Unread { what: what.to_owned(), reason: reason.to_string() }
}
