//! The userspace data plane of one family: its capture rules, and a handle of the relay that both families share.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{
    Backend, Capture, Change, Coalesced, Family, Forwarding, Protocol, ServicePortName, Settings,
};
use portolan_relay::{Capturing, Handle};

use super::kernel::{self, Kernel};
use super::seen;
use crate::addresses::Addresses;
use crate::conntrack::{Check, Cleaner, Translations};
use crate::dataplane::{Chains, Commit, Dataplane, Error, HealthCheckPort, Refusal};
use crate::iptables::{self, Programs};
use crate::nft::{Listeners, Own};

pub(super) use crate::nft::CAPTURE_MODE as MODE;

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
    /// The listeners' addresses have changed, so that the rules lead to the former ones.
    has_moved: bool,
    relay: Handle,
    settings: Settings,
    /// The table as the engine passed it in. The kernel's rules have the relay's listeners in place of the endpoints.
    table: HashMap<Arc<ServicePortName>, Arc<Forwarding>>,
    /// Changes that have not been passed to the kernel's data plane, because the policy routing or the table of the
    /// relay's connections could not be written.
    pending: Coalesced,
    /// The SCTP Service ports: the relay does not carry SCTP.
    left_out: HashSet<Arc<ServicePortName>>,
    /// Marks the relay as one that traffic is captured for; `None` once this data plane captures nothing.
    capturing: Option<Capturing>,
    /// How many times UDP flows have been deleted since another data plane took over; [`MAX_DELETIONS`] as soon as none was
    /// left.
    deletions: u32,
    /// When capture ended; `None` while packets are captured.
    retired: Option<Instant>,
}

impl Userspace {
    /// Opens a data plane that captures by `tproxy`, in the network namespace of this thread. The relay must have been
    /// started there. Changes nothing in the kernel.
    pub fn open(settings: Settings, relay: Handle) -> Result<Self, Error> {
        let listeners = kernel::listeners(Capture::Tproxy, relay.options().ports, &settings);
        Ok(Self::new(Kernel::tproxy(settings.clone(), listeners)?, listeners, settings, relay))
    }

    /// Creates a data plane that captures by translation, with these iptables programs. The relay must have been started
    /// by [`spawn_translated`]. Changes nothing in the kernel.
    pub fn open_redirect(
        programs: Programs,
        settings: Settings,
        options: iptables::Options,
        relay: Handle,
    ) -> Self {
        let ports = relay.options().ports;
        let listeners = kernel::listeners(Capture::Redirect, ports, &settings);
        Self::new(Kernel::redirect(programs, settings.clone(), options, ports), listeners, settings, relay)
    }

    fn new(kernel: Kernel, listeners: Listeners, settings: Settings, relay: Handle) -> Self {
        Self {
            kernel,
            listeners,
            has_moved: false,
            capturing: Some(relay.capturing()),
            deletions: 0,
            retired: None,
            relay,
            settings,
            table: HashMap::new(),
            pending: Coalesced::default(),
            left_out: HashSet::new(),
        }
    }

    /// Returns what identifies notifications of this data plane's own changes. `None` if the kernel does not notify of
    /// changes.
    pub fn own(&self) -> Option<Own> {
        match &self.kernel {
            Kernel::Tproxy { rules, .. } => Some(rules.own()),
            Kernel::Redirect(rules) => {
                rules.writers().map(|writers| Own::Chains(self.settings.family, writers))
            }
        }
    }

    /// Records that another program changed the rules.
    pub fn mark_unknown(&mut self) {
        self.kernel.mark_unknown();
    }

    /// Returns the relay.
    pub const fn relay(&self) -> &Handle {
        &self.relay
    }

    /// Stores changes and sends them to the relay, before the kernel captures anything by them. Returns the changes that
    /// the kernel's rules need.
    fn take(&mut self, changes: &[Change]) -> Vec<Change> {
        let mut seen = Vec::with_capacity(changes.len());
        let mut carried = Vec::with_capacity(changes.len());
        for change in changes {
            let old = match &change.new {
                Some(new) => self.table.insert(change.name.clone(), new.clone()),
                None => self.table.remove(&change.name),
            };
            // The stored state is the old one: a coalesced change may name an older state.
            let change = Change { old, ..change.clone() };
            seen.extend(seen::change(&change, self.listeners));
            if change.name.protocol != Protocol::Sctp {
                carried.push(change);
            } else if change.new.is_some() {
                self.left_out.insert(change.name);
            } else {
                self.left_out.remove(&change.name);
            }
        }
        // Also without changes: the relay accepts nothing before it knows its table.
        self.relay.apply(carried);
        seen
    }

    /// Deletes this table's UDP flows from conntrack, and returns how many there were. The kernel treats each datagram of
    /// a flow like the first one until it forgets the flow.
    fn delete_flows(&self) -> usize {
        let family = self.settings.family;
        let udp = self.table.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let services: Vec<UdpService> = udp.map(|(name, forwarding)| udp_service(name, forwarding)).collect();
        if services.is_empty() {
            return 0;
        }
        // If the addresses cannot be listed, flows to node ports end by timeout, or when their client uses another port.
        let own = Addresses::open().and_then(|addresses| addresses.list()).unwrap_or_default();
        let check = Check::new(family, &services, own).including_replies();
        match Cleaner::open(family).and_then(|mut cleaner| cleaner.clean(&check)) {
            Ok(report) => report.deleted,
            Err(error) => {
                tracing::warn!(%family, %error, "UDP flows of the userspace mode last until they time out");
                0
            }
        }
    }

    /// Returns a change for every Service port, to rewrite rules that lead to the listeners' former addresses.
    fn all_changes(&self) -> Vec<Change> {
        let all = self.table.iter().map(|(name, forwarding)| {
            let new = Some(forwarding.clone());
            Change { name: name.clone(), family: self.settings.family, old: None, new }
        });
        all.filter_map(|change| seen::change(&change, self.listeners)).collect()
    }

    /// Returns the Service ports that cannot be carried: those among `changes`, or all if `changes` is `None`.
    fn refusals(&self, changes: Option<&[Change]>) -> Vec<Refusal> {
        let refusal = |name: &Arc<ServicePortName>| Refusal::whole(name.clone(), seen::SCTP);
        match changes {
            None => self.left_out.iter().map(refusal).collect(),
            Some(changes) => {
                let names = changes.iter().map(|change| &change.name);
                names.filter(|name| self.left_out.contains(*name)).map(refusal).collect()
            }
        }
    }
}

/// Starts a relay for a data plane of [`Userspace::open_redirect`], in the network namespace of this thread. The options
/// must have [`Capture::Redirect`].
pub fn spawn_translated(families: &[Family], options: portolan_relay::Options) -> Result<Handle, Error> {
    let translations = Translations::open()?;
    portolan_relay::spawn_with(families, options, Some(Box::new(translations)))
        .map_err(|error| Error::Other(Box::new(error)))
}

fn udp_service(name: &Arc<ServicePortName>, forwarding: &Forwarding) -> UdpService {
    let backends = forwarding.cluster.iter().chain(&forwarding.local);
    let mut serving: Vec<SocketAddr> = backends.map(Backend::socket).collect();
    serving.sort_unstable();
    serving.dedup();
    UdpService { name: name.clone(), frontends: forwarding.frontends.to_vec(), serving }
}

impl Dataplane for Userspace {
    fn mode(&self) -> &'static str {
        MODE
    }

    fn place(&self) -> &'static str {
        self.kernel.place()
    }

    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let seen = self.take(changes);
        let mut commit = self.kernel.rules().apply(&seen)?;
        commit.refused.extend(self.refusals(Some(changes)));
        Ok(commit)
    }

    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let seen = self.take(changes);
        self.pending.extend(seen);
        if std::mem::take(&mut self.has_moved) {
            self.pending.extend(self.all_changes());
        }
        // This comes before any capture: without policy routing, captured packets would be lost.
        let written = self.kernel.ensure(&self.settings)?;
        let seen = self.pending.take();
        let mut commit = self.kernel.rules().compare(&seen)?;
        commit.objects += written;
        commit.refused.extend(self.refusals(None));
        Ok(commit)
    }

    fn open_health_check_ports(&mut self, health_checks: &[HealthCheckPort]) -> bool {
        self.kernel.rules().open_health_check_ports(health_checks)
    }

    fn configure(&mut self, settings: Settings) {
        let options = self.relay.options();
        let listeners = kernel::listeners(options.capture, options.ports, &settings);
        self.has_moved |= listeners != self.listeners;
        self.listeners = listeners;
        self.settings = settings.clone();
        self.kernel.rules().configure(settings);
    }

    fn collect(&mut self) -> Result<bool, Error> {
        self.kernel.rules().collect()
    }

    fn needs_collection(&self) -> bool {
        self.kernel.rules_ref().needs_collection()
    }

    fn needs_checks(&self) -> bool {
        matches!(self.kernel, Kernel::Tproxy { .. }) || self.kernel.rules_ref().needs_checks()
    }

    /// Also checks what no notification covers: the policy routing and the table of the relay's connections. Repairs
    /// them, and returns false if something was missing.
    fn is_intact(&mut self) -> Result<bool, Error> {
        let written = self.kernel.ensure(&self.settings)?;
        Ok(written == 0 && self.kernel.rules().is_intact()?)
    }

    fn remove(&mut self) -> Result<(), Error> {
        self.kernel.rules().remove()?;
        self.kernel.remove_rest(self.settings.family)
    }

    fn remove_part(&mut self) -> Result<bool, Error> {
        self.retire(None)
    }

    fn chains(&self) -> Option<Chains> {
        self.kernel.rules_ref().chains()
    }

    /// With `tproxy`, UDP flows are first deleted from conntrack while they are still captured: the next datagram of each
    /// is the first of a flow that the other mode translates. An answer that is under way makes a new flow, so the
    /// deletion is repeated. With translation, new flows begin until the rules are gone, so flows are deleted after that.
    ///
    /// The policy routing and the table of the relay's connections stay until the relay has no connections of either
    /// family, or until its time to drain is over. Translated connections need neither.
    fn retire(&mut self, kept: Option<Chains>) -> Result<bool, Error> {
        let Some(since) = self.retired else {
            let forgets_first = matches!(self.kernel, Kernel::Tproxy { .. });
            if forgets_first && self.deletions < MAX_DELETIONS {
                let all = self.delete_flows() == 0;
                self.deletions = if all { MAX_DELETIONS } else { self.deletions.saturating_add(1) };
                return Ok(true);
            }
            if !self.kernel.rules().retire(kept)? {
                self.retired = Some(Instant::now());
                self.capturing = None;
                self.delete_flows();
            }
            return Ok(true);
        };
        let is_translated = matches!(self.kernel, Kernel::Redirect(_));
        let is_idle = is_translated || self.relay.counters().open.load(Ordering::Relaxed) == 0;
        if !is_idle && since.elapsed() < self.relay.options().drain {
            return Ok(true);
        }
        self.kernel.remove_rest(self.settings.family)?;
        Ok(false)
    }

    fn next_attempt(&self) -> Option<Instant> {
        match self.retired {
            None if matches!(self.kernel, Kernel::Tproxy { .. }) && self.deletions < MAX_DELETIONS => {
                Instant::now().checked_add(DELETE_INTERVAL)
            }
            None => self.kernel.rules_ref().next_attempt(),
            Some(_) => Instant::now().checked_add(POLL_INTERVAL),
        }
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.table.iter())
    }
}
