//! Lists what a clean-up removes, and what it leaves. Reads the kernel and changes nothing.

use portolan_leftovers::{Found, Held, Keep, Kind, Object};
use portolan_model::Family;
use portolan_nftables::{CAPTURE_TABLE, CONNECTIONS_TABLE, TABLE};
use portolan_node::config::Configuration;

use super::Scope;
use super::settings::{self, Memory};

/// The tables of this program.
const OWN: [&str; 3] = [TABLE, CAPTURE_TABLE, CONNECTIONS_TABLE];

/// What there is at one moment.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) found: Found,
    /// What could not be read.
    pub(super) errors: Vec<String>,
}

impl Survey {
    /// Returns what there is before anything is removed. Assumes that the kernel settings are put back.
    pub(super) fn before(scope: Scope<'_>, memory: &Memory) -> Self {
        let firewall =
            settings::are_loopback_addresses_routed() && !memory.ends_routing_of_loopback_addresses();
        Self::of(scope, firewall)
    }

    /// Returns what is left.
    pub(super) fn after(scope: Scope<'_>) -> Self {
        Self::of(scope, settings::are_loopback_addresses_routed())
    }

    /// Returns what there is of this program's tables, and of the policy routing of its userspace mode.
    pub(super) fn of_own() -> Self {
        let mut survey = Self::default();
        for family in Family::BOTH {
            survey.add_own(family);
        }
        survey
    }

    fn of(scope: Scope<'_>, firewall: bool) -> Self {
        let mut survey = Self::of_own();
        let (found, errors) = if scope.only_ours {
            portolan_leftovers::find_own(&scope.configuration.ipvs.exclude_cidrs)
        } else {
            portolan_leftovers::find(&keep(scope.configuration, firewall))
        };
        let Found { objects, held, kept } = found;
        survey.found.objects.extend(objects);
        survey.found.held.extend(held);
        survey.found.kept.extend(kept);
        survey.errors.extend(errors.iter().map(ToString::to_string));
        if !scope.only_ours {
            survey.add_counters();
        }
        survey
    }

    /// Adds this program's tables, and the policy routing of the userspace mode.
    fn add_own(&mut self, family: Family) {
        if let Err(error) = portolan_leftovers::find_tables(family, &OWN, &mut self.found) {
            self.errors.push(format!("our nftables tables ({family}): {error}"));
        }
        match portolan_userspace::find_routing(family) {
            Ok(routing) => {
                let table = portolan_userspace::TABLE;
                for rule in routing.rules {
                    let name =
                        format!("{}: mark {:#x}/{:#x} to table {table}", rule.priority, rule.mark, rule.mask);
                    self.found.objects.push(Object::new(Kind::Rule, Some(family), name));
                }
                if routing.has_route {
                    let name = format!("local default in table {table}");
                    self.found.objects.push(Object::new(Kind::Route, Some(family), name));
                }
            }
            Err(error) => {
                self.errors.push(format!("policy routing of the userspace mode ({family}): {error}"));
            }
        }
    }

    fn add_counters(&mut self) {
        match portolan_iptables::counter_names() {
            Ok(names) => {
                let counter = |name| Object::new(Kind::Counter, None, name);
                self.found.objects.extend(names.into_iter().map(counter));
            }
            Err(error) => self.errors.push(format!("the kernel's counters (nfacct): {error}")),
        }
    }
}

/// Returns what a clean-up keeps of kube-proxy's leftovers. `firewall` tells whether loopback addresses are routed.
pub(super) fn keep(configuration: &Configuration, firewall: bool) -> Keep {
    Keep { exclude: configuration.ipvs.exclude_cidrs.clone(), firewall, ..Keep::default() }
}

/// Returns why an object is there after its removal.
pub(super) fn why_left(object: Object) -> Held {
    let reason = match object.kind {
        Kind::Set | Kind::Counter => "a rule of another program refers to it",
        _ => {
            "it was not removed, or is there again: stop the agent or the kube-proxy that writes it, then run this again"
        }
    };
    Held { object, reason: reason.to_owned() }
}
