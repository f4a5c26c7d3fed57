//! The retirement of this mode on a node: first its rules, then each virtual server when its connections have ended,
//! then the rest. Two chains get other rules, which stay until the last address is removed from the device. It starts a moment after another mode has become active, when the packets that entered this mode
//! have passed.
//!
//! What connections use is removed over netlink, whether or not programs of iptables can be run. Without them there are no guards,
//! and the rules are removed over netlink where iptables is a front end of nftables. Those of the older iptables stay.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use portolan_iptables::{Programs, Variant};
use portolan_model::Family;
use portolan_wire::ipset::Member;

use super::Ipvs;
use crate::Error;
use crate::device::Addresses;
use crate::frontend::Key;
use crate::kernel::first_refusal;
use crate::rules::{self, Part, Rules};
use crate::set::Set;
use portolan_engine::dataplane::{Claims, Removal, TRANSIT_TIME, Takeover};

/// The time between two checks for connections.
const PAUSE: Duration = Duration::from_secs(1);
/// How often sets may be found in use before the removal goes on without them. There are at most a hundred attempts in a
/// second, and a busy node may take seconds to release a set.
const PATIENCE: u32 = 2000;
/// How often programs of iptables may fail for a reason that may pass. The attempts take some seconds.
const FAILURES: u32 = 5;

/// The progress of a retirement: another mode is active, and connections of this one drain.
#[derive(Debug)]
pub(super) struct Retiring {
    /// True once the packets that had entered this mode have passed.
    has_waited: bool,
    /// True until the rules are removed. Chains that stay for other programs have none.
    has_rules: bool,
    /// True while rules guard the addresses that connections still need: see [`Rules::of_guards`].
    has_guards: bool,
    /// Sets to be removed before the virtual servers. Each removal takes the kernel some time.
    sets: VecDeque<Set>,
    /// How often a set may still be found in use. A rule of another program may refer to one for good.
    patience: u32,
    /// How often programs of iptables may still fail for a reason that may pass.
    failures: u32,
    older_rules: OlderRules,
}

/// What is known of rules of the older iptables, which refer to sets and which only its programs remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OlderRules {
    /// The programs have removed them.
    Removed,
    /// The programs could not be run, so rules may be left.
    Unknown,
    /// The log says that rules are left.
    Reported,
}

/// What is left after a look for connections.
struct Left {
    /// True if virtual servers are.
    servers: bool,
    /// The addresses on the device that they use.
    addresses: BTreeSet<IpAddr>,
}

impl Default for Retiring {
    fn default() -> Self {
        let sets = Set::ALL.into_iter().filter(|set| *set != Set::Own).collect();
        Self {
            has_waited: false,
            has_rules: true,
            has_guards: false,
            sets,
            patience: PATIENCE,
            failures: FAILURES,
            older_rules: OlderRules::Removed,
        }
    }
}

impl Retiring {
    /// Returns true if the retirement goes on without the programs of iptables after this error. One that may pass is tried again a few
    /// times before.
    fn goes_on_without_programs(&mut self, error: &Error) -> bool {
        if !error.is_of_programs() {
            return false;
        }
        let may_pass = !error.is_lasting() && self.failures > 0;
        self.failures = self.failures.saturating_sub(may_pass.into());
        !may_pass
    }
}

impl Ipvs {
    /// Carries out the next step of the retirement; after the time to drain, removes all virtual servers.
    pub(super) fn retire_step(
        &mut self,
        retiring: &mut Retiring,
        takeover: &Takeover<'_>,
    ) -> Result<Removal, Error> {
        if !retiring.has_waited {
            retiring.has_waited = true;
            return Ok(Removal::Continues(TRANSIT_TIME));
        }
        let drains = takeover.elapsed < self.options.drain;
        if retiring.has_rules {
            retiring.has_guards = drains && self.guard(takeover, retiring)?;
            self.remove_rules(takeover.kept, retiring.has_guards, retiring)?;
            retiring.has_rules = false;
            if retiring.has_guards {
                retiring.sets.retain(|set| *set != Set::IpvsIps);
            }
        } else if let Some(set) = retiring.sets.pop_front() {
            self.remove_set(set, retiring)?;
        } else {
            return self.end_connections(retiring, takeover.kept, !drains);
        }
        Ok(Removal::Continues(Duration::ZERO))
    }

    /// The kernel releases a set a moment after the rule that referred to it is removed.
    fn remove_set(&mut self, set: Set, retiring: &mut Retiring) -> Result<(), Error> {
        if self.kernel.destroy(set)? {
            return Ok(());
        }
        if retiring.patience > 0 {
            retiring.patience = retiring.patience.saturating_sub(1);
            retiring.sets.push_back(set);
        } else if retiring.older_rules != OlderRules::Removed {
            self.empty_set(set, retiring)?;
        } else {
            let name = set.name(self.desired.settings().family);
            tracing::warn!(set = name, "a rule of another program refers to this ipset, which stays");
        }
        Ok(())
    }

    /// Removes the members of a set that rules refer to, so that these match nothing. Only root may remove the rules.
    fn empty_set(&mut self, set: Set, retiring: &mut Retiring) -> Result<(), Error> {
        let members = self.kernel.members(set)?.unwrap_or_default();
        let members: Vec<(Set, Member)> = members.into_iter().map(|member| (set, member)).collect();
        first_refusal(self.kernel.remove(&members)?)?;
        if std::mem::replace(&mut retiring.older_rules, OlderRules::Reported) == OlderRules::Unknown {
            let family = self.desired.settings().family;
            let save = match family {
                Family::Ipv4 => "iptables-legacy-save",
                Family::Ipv6 => "ip6tables-legacy-save",
            };
            tracing::warn!(
                %family,
                set = set.name(family),
                "rules of iptables-legacy or of another program refer to ipsets of the former ipvs mode, which stay without members: \
                 remove the rules that `{save} | grep -e KUBE- -e PORTOLAN-` lists on the node, or restart the node"
            );
        }
        Ok(())
    }

    /// Removes virtual servers without connections, or `all`, and after the last address the guards.
    fn end_connections(
        &mut self,
        retiring: &mut Retiring,
        kept: Option<Claims>,
        all: bool,
    ) -> Result<Removal, Error> {
        let Left { servers, addresses } = self.remove_servers(all)?;
        if retiring.has_guards && addresses.is_empty() {
            self.remove_rules(kept, false, retiring)?;
            retiring.has_guards = false;
            retiring.sets.push_back(Set::IpvsIps);
            return Ok(Removal::Continues(Duration::ZERO));
        }
        if servers {
            if retiring.has_guards {
                self.guard_only(&addresses)?;
            }
            return Ok(Removal::Continues(PAUSE));
        }
        // The set names our virtual servers and addresses, so it goes last: after a failure, the next attempt needs it.
        self.kernel.destroy(Set::Own)?;
        self.remove_device()?;
        let family = self.desired.settings().family;
        tracing::info!(%family, "the last connection has ended, and no virtual server is left");
        Ok(Removal::Done)
    }

    /// Returns the chains that this mode uses.
    pub(super) fn claims(&self) -> Claims {
        let family = self.desired.settings().family;
        // Without programs, only the front end of nftables can be changed.
        let variant = self.programs.as_ref().map_or(Variant::Nft, Programs::variant);
        Claims { place: variant.place(), family, uses: rules::uses }
    }

    /// Puts the guards in the place of the rules of their chains, if the device has addresses. Returns true if they are there. If they
    /// cannot be written, the retirement goes on without them.
    fn guard(&mut self, takeover: &Takeover<'_>, retiring: &mut Retiring) -> Result<bool, Error> {
        let Some(device) = self.kernel.device()? else { return Ok(false) };
        let addresses = self.kernel.addresses(device)?;
        let noted = self.kernel.owners(&self.options.exclude)?.noted;
        let own = self.own_addresses(&addresses, &noted).collect();
        if BTreeSet::is_empty(&own) {
            return Ok(false);
        }
        self.guard_only(&own)?;
        let rules = Rules::of_guards(takeover.table.settings());
        let write = |present| self.restore(&rules.restore(&present, Part::Before));
        match self.present_rules().and_then(write) {
            Err(error) if retiring.goes_on_without_programs(&error) => {
                tracing::warn!(%error, "connections of this node to addresses of Services may fail until the former ones have ended");
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }

    /// Makes the set of addresses name these alone, except for those that another interface has now.
    fn guard_only(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let Some(device) = self.kernel.device()? else { return Ok(()) };
        let of_node = self.kernel.addresses(device)?.node;
        let wanted: BTreeSet<Member> =
            addresses.difference(&of_node).map(|address| Member::Ip(*address)).collect();
        let present = self.kernel.members(Set::IpvsIps)?;
        if present.is_none() {
            self.kernel.create(Set::IpvsIps)?;
        }
        let present = present.unwrap_or_default();
        let of_set = |member: &Member| (Set::IpvsIps, *member);
        let add: Vec<_> = wanted.difference(&present).map(of_set).collect();
        let remove: Vec<_> = present.difference(&wanted).map(of_set).collect();
        first_refusal(self.kernel.add(&add)?)?;
        first_refusal(self.kernel.remove(&remove)?)
    }

    /// Removes the rules, but for the guards if there are any. Chains that rules of other programs lead to stay without rules, and
    /// are not waited for: those rules may be there for good, and an empty chain refers to no ipset. Where programs of iptables
    /// cannot be run, the rules go over netlink.
    fn remove_rules(
        &mut self,
        kept: Option<Claims>,
        has_guards: bool,
        retiring: &mut Retiring,
    ) -> Result<(), Error> {
        // The guards are written by programs, and so are chains that an active mode claims. So another attempt may succeed.
        let needs_programs = has_guards || kept.is_some();
        let present = match self.present_rules() {
            Err(error) if !needs_programs && retiring.goes_on_without_programs(&error) => {
                return self.remove_rules_over_netlink(&error, retiring);
            }
            present => present?,
        };
        let kept = kept.filter(|kept| kept.are_where(&self.claims()));
        let is_kept = |table: &str, chain: &str| kept.is_some_and(|kept| (kept.uses)(table, chain));
        if has_guards {
            return self.restore(&present.removal_beside_guards(is_kept));
        }
        match self.restore(&present.removal(is_kept)) {
            Err(error @ Error::Rules(portolan_iptables::Error::LockFile { .. })) if !needs_programs => {
                return self.remove_rules_over_netlink(&error, retiring);
            }
            outcome => outcome?,
        }
        present.staying(is_kept).into_iter().for_each(warn_of_held);
        Ok(())
    }

    /// Removes the rules where iptables is a front end of nftables. Those of the older iptables stay, if there are any.
    fn remove_rules_over_netlink(&mut self, error: &Error, retiring: &mut Retiring) -> Result<(), Error> {
        let family = self.desired.settings().family;
        tracing::info!(%family, %error, "the rules of the former ipvs mode are removed over netlink");
        if retiring.older_rules == OlderRules::Removed {
            retiring.older_rules = OlderRules::Unknown;
        }
        for chain in self.kernel.remove_rules()? {
            warn_of_held(&chain);
        }
        Ok(())
    }

    /// Removes virtual servers without connections, or all of them, and the addresses that no virtual server uses.
    fn remove_servers(&mut self, all: bool) -> Result<Left, Error> {
        let (mut left, mut gone) = (BTreeSet::new(), BTreeSet::new());
        let owners = self.kernel.owners(&self.options.exclude)?;
        for key in owners.own {
            let has_connections = !all
                && self.kernel.real_servers(&key)?.iter().any(|real| real.active > 0 || real.inactive > 0);
            if has_connections {
                left.insert(key);
            } else {
                gone.insert(key);
            }
        }
        self.kernel.remove_virtual_servers(&gone)?;
        let addresses = self.remove_addresses(&left, &owners.noted)?;
        Ok(Left { servers: !left.is_empty(), addresses })
    }

    /// Removes the addresses that no virtual server uses. Returns those that one of ours uses.
    fn remove_addresses(
        &mut self,
        left: &BTreeSet<Key>,
        noted: &BTreeSet<IpAddr>,
    ) -> Result<BTreeSet<IpAddr>, Error> {
        let Some(device) = self.kernel.device()? else { return Ok(BTreeSet::new()) };
        let used: BTreeSet<IpAddr> = left.iter().map(|key| key.address).collect();
        let addresses = self.kernel.addresses(device)?;
        let unused: Vec<IpAddr> =
            self.own_addresses(&addresses, noted).filter(|address| !used.contains(address)).collect();
        self.kernel.remove_addresses(device, &unused)?;
        Ok(addresses.device.intersection(&used).copied().collect())
    }

    /// Returns the addresses of the device that are ours.
    fn own_addresses(&self, addresses: &Addresses, noted: &BTreeSet<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let removable = addresses.device.difference(&addresses.staying).copied();
        removable.filter(|address| noted.contains(address) || !self.options.excludes(*address))
    }

    /// Removes the device once neither family has virtual servers of ours. Those of node ports need no address on it,
    /// but a restart and a clean-up look for them only where the device exists.
    fn remove_device(&mut self) -> Result<(), Error> {
        for family in Family::BOTH {
            if self.kernel.has_set(Set::Own, family)? {
                return Ok(());
            }
        }
        self.kernel.remove_device()
    }
}

fn warn_of_held(chain: &str) {
    tracing::warn!(chain, "a rule of another program leads to this chain, which stays without rules");
}
