//! The userspace data plane of one family: its capture rules, and a handle of the relay that both families share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_model::catalog::UdpService;
use portolan_model::{Backend, Capture, Family, Forwarding, Protocol, ServicePortName, Settings};
use portolan_relay::{Capturing, Handle, RelayOptions};

use super::kernel::{self, Kernel};
use super::seen;
use portolan_conntrack::{Check, Cleaner, Translations};
use portolan_engine::dataplane::{
    About, Collection, Commit, Condition, Dataplane, Error, Refusal, Removal, Takeover,
};
use portolan_engine::drift::Own;
use portolan_engine::table::{Changes, Merged, Table};
use portolan_iptables::Programs;
use portolan_nftables::Listeners;
use portolan_sock::addresses;

pub(super) use portolan_nftables::CAPTURE_MODE as MODE;

/// How many times UDP flows are deleted from conntrack at most before capture ends.
const MAX_DELETIONS: u32 = 10;
/// The time between two such deletions.
const DELETE_INTERVAL: Duration = Duration::from_millis(20);
/// How often a retired data plane checks whether the relay's last connection has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Captures the Services of one family for the relay.
#[derive(Debug)]
pub struct Userspace {
    kernel: Kernel,
    listeners: Listeners,
    relay: Handle,
    family: Family,
    /// Changes that have not been passed to the kernel's data plane, because the policy routing or the table of the
    /// relay's connections could not be written.
    pending: Merged,
    /// Number of objects that a check has written. The comparison after it reports them.
    mended: usize,
    /// Marks the relay as one that traffic is captured for; `None` once this data plane captures nothing.
    capturing: Option<Capturing>,
    /// How many times UDP flows have been deleted since another data plane took over; [`MAX_DELETIONS`] as soon as none was
    /// left.
    deletions: u32,
    /// When capture ended, in time since the removal began. `None` while packets are captured.
    ended: Option<Duration>,
}

/// The rules of a data plane that has no relay yet. They can be opened before the relay listens.
#[derive(Debug)]
pub struct Rules {
    kernel: Kernel,
    listeners: Listeners,
    family: Family,
}

impl Rules {
    /// Opens rules that capture by `tproxy` for a relay with these options, in the network namespace of this thread. Changes nothing
    /// in the kernel.
    pub fn tproxy(settings: Settings, relay: &RelayOptions) -> Result<Self, Error> {
        let family = settings.family;
        let listeners = kernel::listeners(Capture::Tproxy, relay.ports, &settings);
        Ok(Self { kernel: Kernel::tproxy(settings, listeners)?, listeners, family })
    }

    /// Creates rules that capture by translation, with these iptables programs.
    pub fn redirect(
        programs: Programs,
        settings: Settings,
        options: portolan_iptables::IptablesOptions,
        relay: &RelayOptions,
    ) -> Self {
        let family = settings.family;
        let listeners = kernel::listeners(Capture::Redirect, relay.ports, &settings);
        Self { kernel: Kernel::redirect(programs, settings, options, relay.ports), listeners, family }
    }

    /// Returns the data plane with its relay.
    pub fn with_relay(self, relay: Handle) -> Userspace {
        let Self { kernel, listeners, family } = self;
        Userspace {
            kernel,
            listeners,
            capturing: Some(relay.capturing()),
            deletions: 0,
            ended: None,
            relay,
            family,
            pending: Merged::default(),
            mended: 0,
        }
    }
}

impl Userspace {
    /// Opens a data plane that captures by `tproxy`, in the network namespace of this thread. The relay must have been
    /// started there. Changes nothing in the kernel.
    pub fn open(settings: Settings, relay: Handle) -> Result<Self, Error> {
        Ok(Rules::tproxy(settings, relay.options())?.with_relay(relay))
    }

    /// Creates a data plane that captures by translation, with these iptables programs. The relay must have been started
    /// by [`spawn_translated`]. Changes nothing in the kernel.
    pub fn open_redirect(
        programs: Programs,
        settings: Settings,
        options: portolan_iptables::IptablesOptions,
        relay: Handle,
    ) -> Self {
        Rules::redirect(programs, settings, options, relay.options()).with_relay(relay)
    }

    /// Returns what identifies notifications of this data plane's own changes. `None` if the kernel does not notify of
    /// changes.
    pub fn own(&self) -> Option<Own> {
        match &self.kernel {
            Kernel::Tproxy { rules, .. } => Some(rules.own()),
            Kernel::Redirect(rules) => rules.own(),
        }
    }

    /// Returns the relay.
    pub const fn relay(&self) -> &Handle {
        &self.relay
    }

    /// Sends changes to the relay, before the kernel captures anything by them. Returns the changes that the kernel's
    /// rules need.
    fn take(&self, changes: &Changes) -> Changes {
        let is_carried = |name: &ServicePortName| name.protocol != Protocol::Sctp;
        let carried: Vec<_> =
            changes.forwardings.iter().filter(|change| is_carried(&change.name)).cloned().collect();
        // Also without changes: the relay accepts nothing before it knows its table.
        self.relay.apply(self.family, carried);
        let seen = changes.forwardings.iter().filter_map(|change| seen::change(change, self.listeners));
        Changes { forwardings: seen.collect(), health_checks: changes.health_checks.clone() }
    }

    /// Returns the table that the kernel's rules implement.
    fn seen(&self, table: &Table) -> Table {
        let listeners = self.listeners;
        table.seen_by(move |forwarding| seen::forwarding(forwarding, listeners))
    }

    /// Deletes a table's UDP flows from conntrack, and returns how many there were. The kernel treats each datagram of a
    /// flow like the first one until it forgets the flow.
    fn delete_flows(&self, table: &Table) -> usize {
        let family = self.family;
        let udp = table.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let services: Vec<UdpService> =
            udp.map(|(name, forwarding)| udp_service(name, &forwarding)).collect();
        if services.is_empty() {
            return 0;
        }
        // If the addresses cannot be listed, flows to node ports end by timeout, or when their client uses another port.
        let own = addresses::list().unwrap_or_default();
        let check = Check::new(family, &services, own).including_replies();
        match Cleaner::open(family).and_then(|mut cleaner| cleaner.clean(&check)) {
            Ok(report) => report.deleted,
            Err(error) => {
                tracing::warn!(%family, %error, "UDP flows of the userspace mode last until they time out");
                0
            }
        }
    }
}

/// Adds the refusals of those Service ports that cannot be carried. What the rules lack for them does not matter then.
fn refuse_sctp<'a>(commit: &mut Commit, names: impl Iterator<Item = &'a Arc<ServicePortName>>) {
    commit.refused.retain(|refusal| refusal.name.protocol != Protocol::Sctp);
    let left_out = names.filter(|name| name.protocol == Protocol::Sctp);
    commit.refused.extend(left_out.map(|name| Refusal::whole(name.clone(), seen::SCTP)));
}

/// Starts a relay for a data plane of [`Userspace::open_redirect`], in the network namespace of this thread. The options
/// must have [`Capture::Redirect`].
pub fn spawn_translated(families: &[Family], options: portolan_relay::RelayOptions) -> Result<Handle, Error> {
    let translations = Translations::open()?;
    portolan_relay::spawn_with(families, options, Some(Box::new(translations))).map_err(Error::of_mode)
}

fn udp_service(name: &Arc<ServicePortName>, forwarding: &Forwarding) -> UdpService {
    let backends = forwarding.cluster.iter().chain(&forwarding.local);
    let mut serving: Vec<SocketAddr> = backends.map(Backend::socket).collect();
    serving.sort_unstable();
    serving.dedup();
    UdpService::new(name.clone(), forwarding.frontends.to_vec(), serving)
}

impl Dataplane for Userspace {
    fn about(&self) -> About {
        let rules = self.kernel.rules_ref().about();
        // What `tproxy` needs besides rules has no notifications.
        let is_notified = rules.is_notified && !matches!(self.kernel, Kernel::Tproxy { .. });
        About { place: self.kernel.place(), is_notified, claims: rules.claims, ..About::of(MODE) }
    }

    fn apply(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        let (seen, changes_seen) = (self.seen(table), self.take(changes));
        let mut commit = self.kernel.rules().apply(&seen, &changes_seen)?;
        let present = changes.forwardings.iter().filter(|change| change.new.is_some());
        refuse_sctp(&mut commit, present.map(|change| &change.name));
        Ok(commit)
    }

    fn compare(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        let options = self.relay.options();
        self.listeners = kernel::listeners(options.capture, options.ports, table.settings());
        self.pending.add(self.take(changes));
        // This comes before any capture: without policy routing, captured packets would be lost.
        let written = self.kernel.ensure(table.settings())?;
        let (seen, changes_seen) = (self.seen(table), self.pending.take());
        let mut commit = self.kernel.rules().compare(&seen, &changes_seen)?;
        // Until then, packets may have been captured with another mark.
        let removed = self.kernel.remove_others(table.settings())?;
        commit.objects += written + removed + std::mem::take(&mut self.mended);
        refuse_sctp(&mut commit, table.iter().map(|(name, _)| name));
        Ok(commit)
    }

    /// Also checks the policy routing, of whose route no notification tells, and the table of the relay's connections. Repairs
    /// them, and says so if something was missing.
    fn check(&mut self, table: &Table) -> Result<Condition, Error> {
        let written = self.kernel.ensure(table.settings())?;
        self.mended += written;
        let seen = self.seen(table);
        if written > 0 {
            return Ok(Condition::Changed);
        }
        self.kernel.rules().check(&seen)
    }

    fn collect(&mut self) -> Result<Collection, Error> {
        self.kernel.rules().collect()
    }

    /// With `tproxy`, UDP flows are first deleted from conntrack while they are still captured: the next datagram of each
    /// is the first of a flow that the other mode translates. An answer that is under way makes a new flow, so the
    /// deletion is repeated. With translation, new flows begin until the rules are gone, so flows are deleted after that.
    ///
    /// The policy routing and the table of the relay's connections stay until the relay has no connections of either
    /// family, or until its time to drain is over. Translated connections need neither.
    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Removal, Error> {
        let Some(ended) = self.ended else {
            let forgets_first = matches!(self.kernel, Kernel::Tproxy { .. });
            if forgets_first && self.deletions < MAX_DELETIONS {
                let all = self.delete_flows(takeover.table) == 0;
                self.deletions = if all { MAX_DELETIONS } else { self.deletions.saturating_add(1) };
                return Ok(Removal::Continues(if all { Duration::ZERO } else { DELETE_INTERVAL }));
            }
            if let Removal::Continues(wait) = self.kernel.rules().remove_part(takeover)? {
                return Ok(Removal::Continues(wait));
            }
            self.ended = Some(takeover.elapsed);
            self.capturing = None;
            self.delete_flows(takeover.table);
            return Ok(Removal::Continues(POLL_INTERVAL));
        };
        let is_translated = matches!(self.kernel, Kernel::Redirect(_));
        let is_idle = is_translated || self.relay.counters().open.load(Ordering::Relaxed) == 0;
        if !is_idle && takeover.elapsed.saturating_sub(ended) < self.relay.options().drain {
            return Ok(Removal::Continues(POLL_INTERVAL));
        }
        self.kernel.remove_rest(self.family)?;
        Ok(Removal::Done)
    }

    fn suspend_removal(&mut self) {
        self.kernel.rules().suspend_removal();
    }
}
