//! The end of this mode on a node: rules first, virtual servers when their connections have ended, then the rest. It begins a
//! moment after another mode is in force, when the packets that this mode led in are through.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_sock::{Protocol, Socket};

use super::Error;
use super::dataplane::{Ipvs, State};
use super::frontend::Key;
use super::kernel::{Kernel, device};
use super::set::Set;
use crate::dataplane::{Chains, Dataplane as _, PASSAGE};

/// Between two looks at whether connections have ended.
const PAUSE: Duration = Duration::from_secs(1);
/// How often sets may be found in use.
const PATIENCE: u32 = 500;

/// Another mode does the work; connections of this one go on for a while.
#[derive(Debug)]
pub(super) struct Retiring {
    until: Instant,
    /// When to begin, and from then on when to look at connections again.
    next: Instant,
    has_rules: bool,
    /// Those that are to go before virtual servers do. The kernel takes its time for each.
    sets: VecDeque<Set>,
    /// How often one may be in use: a rule of somebody else may refer to it.
    patience: u32,
}

impl Retiring {
    pub(super) fn new(drain: Duration) -> Self {
        let sets = Set::ALL.into_iter().filter(|set| *set != Set::Own).collect();
        let now = Instant::now();
        let until = now.checked_add(drain).unwrap_or(now);
        let next = now.checked_add(PASSAGE).unwrap_or(now);
        Self { until, next, has_rules: true, sets, patience: PATIENCE }
    }

    /// When there is something to do again, where packets or connections are waited for.
    pub(super) fn due(&self) -> Option<Instant> {
        (self.has_rules || self.sets.is_empty()).then_some(self.next)
    }
}

/// Whether there are virtual servers of a family in the network namespace of this thread, those of other programs included. Loads the
/// kernel's module.
pub fn has_virtual_servers(family: Family) -> Result<bool, crate::Error> {
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(false) };
    Ok(!kernel.virtual_servers()?.is_empty())
}

/// Whether an earlier run of this mode left virtual servers in the network namespace of this thread. Those of kube-proxy
/// are none.
pub fn is_left(family: Family) -> Result<bool, crate::Error> {
    let failed = Error::socket("listing network devices");
    let mut links = Socket::open(Protocol::Route).map_err(&failed)?;
    // Where there is none, the kernel is not made to load its modules.
    if device(&mut links).map_err(&failed)?.is_none() {
        return Ok(false);
    }
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(false) };
    Ok(kernel.members(Set::Own)?.is_some())
}

impl Ipvs {
    /// Removes a piece of what nothing needs, and everything when the time is over. Says whether something is left.
    pub(super) fn retire(
        &mut self,
        retiring: &mut Retiring,
        kept: Option<Chains>,
    ) -> Result<bool, crate::Error> {
        self.forget();
        let now = Instant::now();
        if retiring.has_rules {
            if now < retiring.next {
                return Ok(true);
            }
            self.remove_rules(kept)?;
            retiring.has_rules = false;
        } else if let Some(set) = retiring.sets.pop_front() {
            // The kernel lets go of what a rule referred to a moment after the rule.
            if !self.kernel.destroy(set)? && retiring.patience > 0 {
                retiring.patience = retiring.patience.saturating_sub(1);
                retiring.sets.push_back(set);
            }
        } else if retiring.next <= now {
            retiring.next = now.checked_add(PAUSE).unwrap_or(now);
            let is_left = self.remove_servers(retiring.until <= now)?;
            if !is_left {
                let family = self.desired.settings().family;
                tracing::info!(%family, "the last connection has ended, and no virtual server is left");
            }
            return Ok(is_left);
        }
        Ok(true)
    }

    /// Removes everything at once, connections included.
    pub(super) fn withdraw(&mut self) -> Result<(), crate::Error> {
        self.forget();
        self.remove_rules(None)?;
        for set in Set::ALL.into_iter().filter(|set| *set != Set::Own) {
            self.kernel.destroy(set)?;
        }
        self.remove_servers(true).map(|_| ())
    }

    fn forget(&mut self) {
        if self.state != State::Waiting {
            self.state = State::Unknown;
        }
    }

    fn remove_rules(&self, kept: Option<Chains>) -> Result<(), crate::Error> {
        let own = self.chains();
        let kept = kept
            .filter(|kept| own.is_some_and(|own| (own.variant, own.family) == (kept.variant, kept.family)));
        let is_kept = |table: &str, chain: &str| kept.is_some_and(|kept| (kept.uses)(table, chain));
        let text = self.present_rules()?.removal(is_kept);
        Ok(self.restore(&text)?)
    }

    /// Removes virtual servers without connections, or all of them, and the addresses that none uses any more. Says
    /// whether some stay.
    fn remove_servers(&mut self, all: bool) -> Result<bool, crate::Error> {
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
        self.remove_addresses(&left, &owners.noted)?;
        if left.is_empty() {
            // It tells which virtual servers and addresses are ours, so that what fails is done at the next try.
            self.kernel.destroy(Set::Own)?;
            self.remove_device()?;
        }
        Ok(!left.is_empty())
    }

    fn remove_addresses(
        &mut self,
        left: &BTreeSet<Key>,
        noted: &BTreeSet<IpAddr>,
    ) -> Result<(), crate::Error> {
        let Some(device) = self.kernel.device()? else { return Ok(()) };
        let used: BTreeSet<IpAddr> = left.iter().map(|key| key.address).collect();
        let addresses = self.kernel.addresses(device)?.device;
        let unused: Vec<IpAddr> = addresses
            .into_iter()
            .filter(|address| !used.contains(address))
            .filter(|address| noted.contains(address) || !self.options.excludes(*address))
            .collect();
        Ok(self.kernel.remove_addresses(device, &unused)?)
    }

    /// Removes the device once neither family has virtual servers of ours. Those of node ports need no address on it, but only
    /// where it is are they looked for after a restart, and at a clean-up.
    fn remove_device(&mut self) -> Result<(), crate::Error> {
        for family in Family::BOTH {
            if self.kernel.has_set(Set::Own, family)? {
                return Ok(());
            }
        }
        Ok(self.kernel.remove_device()?)
    }
}
