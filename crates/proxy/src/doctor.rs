//! What `portolan doctor` has to know of the modes: which of their objects the kernel has, and whether this node can run a
//! mode.

use portolan_doctor::checks::Mode;
use portolan_doctor::facts::{self, Lack, Part, Unread};
use portolan_doctor::gather::{Listed, Whose};
use portolan_iptables::Programs;
use portolan_leftovers::{Kind, Object};
use portolan_model::Family;
use portolan_nftables::TABLE;
use portolan_node::config::Configuration;
use portolan_sock::SocketError;
use portolan_sock::namespace::in_new_network_namespace;

use super::finding::Finding;
use super::modes::{DefaultMode, Preferences};
use super::packets::Configured;
use super::{checks, cleanup, modes, settings};

/// Lists the objects of modes in the network namespace of this thread: Portolan's tables and policy routing, and what the IPVS
/// mode has besides chains; of the IPVS mode, only what a running kube-proxy does not use if `whose` says so. Changes nothing.
///
/// What is in `ipvs.excludeCIDRs` of a configuration belongs to other programs.
pub fn objects(whose: Whose, configured: Option<&Configured>) -> Listed {
    let exclude = configured.map(|configured| configured.configuration().ipvs.exclude_cidrs.as_slice());
    let exclude = exclude.unwrap_or_default();
    let (mut objects, mut errors) = cleanup::find_own();
    let (of_ipvs, failed) = match whose {
        Whose::All => portolan_leftovers::find_ipvs(exclude),
        Whose::Portolans => {
            let (found, failed) = portolan_leftovers::find_own(exclude);
            (found.objects, failed)
        }
    };
    objects.extend(of_ipvs);
    errors.extend(failed.iter().map(ToString::to_string));
    let unread = |reason| Unread { what: "objects of the modes".to_owned(), reason };
    Listed {
        objects: objects.into_iter().filter_map(of_part).collect(),
        unread: errors.into_iter().map(unread).collect(),
    }
}

/// Returns the object with what it is a part of.
fn of_part(object: Object) -> Option<facts::Object> {
    let part = match object.kind {
        Kind::Table if object.name == TABLE => Part::Nftables,
        Kind::Table => Part::Userspace,
        Kind::Rule | Kind::Route => Part::Routing,
        Kind::Chain | Kind::Jump | Kind::Set | Kind::VirtualServer | Kind::Address | Kind::Device => {
            Part::Ipvs
        }
        // It translates nothing.
        Kind::Counter => return None,
    };
    Some(facts::Object { part, kind: object.kind.name(), name: object.name })
}

/// Returns what this node lacks for a mode, as a start would find it. The trial runs in a network namespace of its own, which
/// ends with it. Needs root. Runs programs. The kernel may load modules.
pub fn lacks(mode: Mode) -> Result<Vec<Lack>, SocketError> {
    let families = settings::supported_families();
    // Which iptables the node uses shows in the node's own namespace only. The nftables mode needs none.
    let calls_programs = mode != Mode::Nftables;
    let find = |&family: &Family| Programs::find(family).ok();
    let programs: Vec<Programs> = families.iter().filter(|_| calls_programs).filter_map(find).collect();
    in_new_network_namespace(|| {
        // If this fails, so does the trial, and it returns the reason.
        let _ = programs.iter().try_for_each(Programs::leave_hint);
        tried(mode, &families)
    })
}

fn tried(mode: Mode, families: &[Family]) -> Vec<Lack> {
    let mut configuration = Configuration { mode: Some(mode), ..Configuration::default() };
    let preferences =
        Preferences { ipvs_fallback: false, default_mode: DefaultMode::Iptables, capture: None };
    if let Err(error) = modes::settle(&mut configuration, families, preferences, None, Vec::new) {
        return vec![Lack { reason: error.to_string(), is_fatal: true }];
    }
    let findings = checks::mode(&configuration, families);
    let may_leave_out = modes::configured(&configuration).may_leave_out_a_family();
    let is_fatal = !may_leave_out || findings.len() == families.len();
    findings.iter().map(|finding| Lack { reason: reason(finding), is_fatal }).collect()
}

/// Returns the family and what the trial said, without the mend.
fn reason(finding: &Finding) -> String {
    match finding {
        Finding::Kernel { family, reason }
        | Finding::Iptables { family, reason }
        | Finding::Ipvs { family, reason }
        | Finding::Userspace { family, reason } => format!("{family}: {reason}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_parts_of_modes() {
        let part = |kind, name: &str| {
            of_part(Object::new(kind, Some(Family::Ipv4), name)).map(|object| (object.part, object.kind))
        };
        assert_eq!(part(Kind::Table, "portolan"), Some((Part::Nftables, "table")));
        assert_eq!(part(Kind::Table, "portolan-userspace"), Some((Part::Userspace, "table")));
        assert_eq!(part(Kind::Table, "portolan-relay"), Some((Part::Userspace, "table")));
        assert_eq!(part(Kind::Route, "local default in table 28783"), Some((Part::Routing, "route")));
        assert_eq!(part(Kind::Set, "KUBE-CLUSTER-IP"), Some((Part::Ipvs, "ipset")));
        assert_eq!(part(Kind::Counter, "ct_state_invalid_dropped_pkts"), None);
    }

    #[test]
    fn the_reason_has_no_mend() {
        let finding = Finding::Kernel { family: Family::Ipv4, reason: "it has no numgen".to_owned() };
        assert_eq!(reason(&finding), "IPv4: it has no numgen");
    }
}
