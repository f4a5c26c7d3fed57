//! The edge of the userspace data plane: one family's capture, and the relay that both families share.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{Backend, Change, Family, Forwarding, Protocol, ServicePortName, Settings};
use portolan_relay::{Capturing, Handle};

use super::{routing, seen};
use crate::addresses::Addresses;
use crate::conntrack::{Check, Cleaner};
use crate::dataplane::{Commit, Dataplane, Error, Refusal};
use crate::nft::{Capture, Connections, Nftables, Own};

pub(super) use crate::nft::CAPTURE_MODE as MODE;

/// How often flows are forgotten at most before nothing is captured any more.
const FORGETTING: u32 = 10;
/// The time between.
const FORGET_AGAIN: Duration = Duration::from_millis(20);
/// How often it is looked whether the relay's last connection has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Services of one family, captured for the relay.
#[derive(Debug)]
pub struct Userspace {
    kernel: Nftables,
    connections: Connections,
    capture: Capture,
    relay: Handle,
    settings: Settings,
    /// As they came; the kernel's data plane knows them with the relay's listeners.
    table: HashMap<Arc<ServicePortName>, Arc<Forwarding>>,
    /// Those of SCTP.
    left_out: HashSet<Arc<ServicePortName>>,
    /// Until then the relay has to take connections in.
    capturing: Option<Capturing>,
    /// How often flows have been forgotten since another data plane is in force.
    forgotten: u32,
    /// Since when it captures nothing.
    retired: Option<Instant>,
}

impl Userspace {
    /// For the network namespace of this thread, in which the relay must have been started. Changes nothing.
    pub fn open(settings: Settings, relay: Handle) -> Result<Self, Error> {
        let ports = relay.options().ports;
        let loopback = match settings.family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let capture = Capture {
            cluster: SocketAddr::new(loopback, ports.cluster),
            local: SocketAddr::new(loopback, ports.local),
        };
        let kernel = Nftables::open_capture(settings.clone(), capture)?;
        let connections = Connections::open()?;
        Ok(Self {
            kernel,
            connections,
            capturing: Some(relay.capturing()),
            forgotten: 0,
            retired: None,
            capture,
            relay,
            settings,
            table: HashMap::new(),
            left_out: HashSet::new(),
        })
    }

    /// Finds out whether this kernel has all that is needed. Changes nothing.
    pub fn probe(&mut self) -> Result<(), Error> {
        self.kernel.probe()
    }

    /// The table that captures, as [`Nftables::own`] says it.
    pub fn own(&self) -> Own {
        self.kernel.own()
    }

    /// Says that somebody else changed the table.
    pub fn suspect(&mut self) {
        self.kernel.suspect();
    }

    /// The relay.
    pub const fn relay(&self) -> &Handle {
        &self.relay
    }

    /// Tells the relay before the kernel, so that whatever is captured is known. Answers what the kernel has to do.
    fn take(&mut self, changes: &[Change]) -> Vec<Change> {
        let mut seen = Vec::with_capacity(changes.len());
        let mut told = Vec::with_capacity(changes.len());
        for change in changes {
            let old = match &change.new {
                Some(new) => self.table.insert(change.name.clone(), new.clone()),
                None => self.table.remove(&change.name),
            };
            // What is here counts: changes that were put together may name an older state.
            let change = Change { old, ..change.clone() };
            seen.extend(seen::change(&change, self.capture));
            if change.name.protocol != Protocol::Sctp {
                told.push(change);
            } else if change.new.is_some() {
                self.left_out.insert(change.name);
            } else {
                self.left_out.remove(&change.name);
            }
        }
        if !told.is_empty() {
            self.relay.apply(told);
        }
        seen
    }

    /// The kernel takes datagrams of a flow that was captured for what needs no translation, until it forgets the flow.
    /// Answers how many there were.
    fn forget_flows(&self) -> usize {
        let family = self.settings.family;
        let udp = self.table.iter().filter(|(name, _)| name.protocol == Protocol::Udp);
        let services: Vec<UdpService> = udp.map(|(name, forwarding)| udp_service(name, forwarding)).collect();
        if services.is_empty() {
            return 0;
        }
        // Where they cannot be told, flows to node ports end by themselves, or with their client's next port.
        let own = Addresses::open().and_then(|addresses| addresses.list()).unwrap_or_default();
        let check = Check::new(family, &services, own).and_answers();
        match Cleaner::open(family).and_then(|mut cleaner| cleaner.clean(&check)) {
            Ok(report) => report.deleted,
            Err(error) => {
                tracing::warn!(%family, %error, "UDP flows of the userspace mode last until they time out");
                0
            }
        }
    }

    /// All that is refused, at a comparison; else what is refused of these changes.
    fn refusals(&self, changes: Option<&[Change]>) -> Vec<Refusal> {
        let refusal = |name: &Arc<ServicePortName>| Refusal { name: name.clone(), reason: seen::SCTP };
        match changes {
            None => self.left_out.iter().map(refusal).collect(),
            Some(changes) => {
                let names = changes.iter().map(|change| &change.name);
                names.filter(|name| self.left_out.contains(*name)).map(refusal).collect()
            }
        }
    }
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

    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let seen = self.take(changes);
        let mut commit = self.kernel.apply(&seen)?;
        commit.refused.extend(self.refusals(Some(changes)));
        Ok(commit)
    }

    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let seen = self.take(changes);
        // Before anything is captured: without it, captured packets would be lost.
        let written = routing::ensure(&self.settings)? + self.connections.ensure(&self.settings)?;
        let mut commit = self.kernel.compare(&seen)?;
        commit.objects += written;
        commit.refused.extend(self.refusals(None));
        Ok(commit)
    }

    fn configure(&mut self, settings: Settings) {
        self.settings = settings.clone();
        self.kernel.configure(settings);
    }

    fn collect(&mut self) -> Result<bool, Error> {
        self.kernel.collect()
    }

    fn needs_collection(&self) -> bool {
        self.kernel.needs_collection()
    }

    fn needs_checks(&self) -> bool {
        true
    }

    /// Notifications tell of the table that captures, and not of the rest.
    fn is_intact(&mut self) -> Result<bool, Error> {
        let written = routing::ensure(&self.settings)? + self.connections.ensure(&self.settings)?;
        Ok(written == 0 && self.kernel.is_intact()?)
    }

    fn remove(&mut self) -> Result<(), Error> {
        self.kernel.remove()?;
        self.connections.remove(self.settings.family)?;
        Ok(routing::remove(self.settings.family)?)
    }

    /// First the kernel forgets UDP flows, while they are still captured: the next datagram of each is the first of a flow
    /// that the other mode translates. An answer that was under way makes a flow that has to be forgotten once more.
    ///
    /// What brings packets of connections to the relay stays until the relay has no more connections of either family, or
    /// its time to drain is over.
    fn remove_some(&mut self) -> Result<bool, Error> {
        let Some(since) = self.retired else {
            if self.forgotten < FORGETTING {
                let all = self.forget_flows() == 0;
                self.forgotten = if all { FORGETTING } else { self.forgotten.saturating_add(1) };
                return Ok(true);
            }
            if !self.kernel.remove_some()? {
                self.retired = Some(Instant::now());
                self.capturing = None;
                self.forget_flows();
            }
            return Ok(true);
        };
        let is_idle = self.relay.counters().open.load(Ordering::Relaxed) == 0;
        if !is_idle && since.elapsed() < self.relay.options().drain {
            return Ok(true);
        }
        self.connections.remove(self.settings.family)?;
        routing::remove(self.settings.family)?;
        Ok(false)
    }

    fn way_due(&self) -> Option<Instant> {
        match self.retired {
            None if self.forgotten < FORGETTING => Instant::now().checked_add(FORGET_AGAIN),
            None => self.kernel.way_due(),
            Some(_) => Instant::now().checked_add(LOOK_AGAIN),
        }
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.table.iter())
    }
}
