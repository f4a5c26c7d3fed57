//! The kernel's virtual servers, network device, and ipsets of one family. Reads and writes them, and decides
//! nothing.

mod addresses;
mod rules;
mod send;
mod sets;
mod timeouts;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ipnet::IpNet;
use portolan_model::{Family, IpvsScheduler};
use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::ipvs::{self, FLAG_HASHED, FORWARD_MASQUERADE, RealServer, VirtualServer};
use portolan_wire::route::{self, Scope};

use super::device::{DEVICE, DISABLE_IPV6, device, enable_ipv6};
use super::difference::{Operation, Present, Real, WEIGHT};
use super::draining::UptimeSecs;
use super::frontend::{Config, Key};
use super::owners::{Evidence, Owners};
use super::refusal::{Item, Refused};
use super::set::Set;
use super::{Error, module, probe};
use portolan_sock::retry_on_change;
use send::{Sent, encode, refusal, send};

/// The sockets for one family, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct Kernel {
    family: Family,
    /// The number of IPVS in generic netlink, which the kernel assigns.
    number: u16,
    generic: Socket,
    netfilter: Socket,
    route: Socket,
    /// Receives the kernel's events about changes of addresses.
    events: Socket,
    bytes: usize,
    /// True if new addresses have got no local route in time. Routing rules of this node may lead elsewhere, so this is not waited
    /// for again.
    lacks_routes: bool,
    /// Sets that should count, and do not because an earlier version or another program made them.
    uncounted: BTreeSet<Set>,
    /// True if the set of our virtual servers has less room than it should, because an earlier version or another program made it.
    own_is_small: bool,
    /// True if the setting by which the device has IPv6 could not be written. This is logged once.
    lacks_ipv6: bool,
    /// Fields of timeouts that the kernel has refused. Each is logged once.
    refused_timeouts: BTreeSet<&'static str>,
}

impl Kernel {
    /// Opens the sockets. Returns `None` if this kernel has no IPVS.
    pub fn open(family: Family) -> Result<Option<Self>, Error> {
        let failed = Error::socket("netlink sockets");
        let mut generic = Socket::open(Protocol::Generic).map_err(&failed)?;
        let Some(number) = probe::number(&mut generic).map_err(Error::socket("asking for IPVS"))? else {
            return Ok(None);
        };
        let events = Socket::open(Protocol::Route).map_err(&failed)?;
        events.subscribe(&[route::GROUP_IPV4_ADDRESS, route::GROUP_IPV6_ADDRESS]).map_err(&failed)?;
        Ok(Some(Self {
            family,
            number,
            generic,
            netfilter: Socket::open(Protocol::Netfilter).map_err(&failed)?,
            route: Socket::open(Protocol::Route).map_err(&failed)?,
            events,
            bytes: 0,
            lacks_routes: false,
            uncounted: BTreeSet::new(),
            own_is_small: false,
            lacks_ipv6: false,
            refused_timeouts: BTreeSet::new(),
        }))
    }

    pub(super) const fn family(&self) -> Family {
        self.family
    }

    /// Returns the number of bytes sent since the last call.
    pub(super) fn take_bytes(&mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }

    /// Returns the device's index, if the device exists.
    pub(super) fn device(&mut self) -> Result<Option<u32>, Error> {
        device(&mut self.route).map_err(Error::socket("listing network devices"))
    }

    /// Returns the device's index. Creates the device if it is missing. Lets it have addresses of IPv6 if they are wanted.
    pub(super) fn ensure_device(&mut self) -> Result<u32, Error> {
        let index = self.find_or_make_device()?;
        if self.family == Family::Ipv6
            && let Err(error) = enable_ipv6(Path::new(DISABLE_IPV6))
            && !std::mem::replace(&mut self.lacks_ipv6, true)
        {
            tracing::error!(
                file = DISABLE_IPV6,
                %error,
                "this setting cannot be written, so {DEVICE} cannot have IPv6 addresses; \
                 run `sysctl -w net.ipv6.conf.{DEVICE}.disable_ipv6=0`"
            );
        }
        Ok(index)
    }

    fn find_or_make_device(&mut self) -> Result<u32, Error> {
        if let Some(index) = self.device()? {
            return Ok(index);
        }
        match self.route.query(&mut route::create_dummy(DEVICE), |_| Ok(())) {
            // The data plane of the other family has just created it.
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            outcome => outcome.map_err(Error::socket("making the network device kube-ipvs0"))?,
        }
        let gone = SocketError::System { call: "looking for kube-ipvs0", errno: Errno::ENOENT };
        self.device()?.ok_or(gone).map_err(Error::socket("making the network device kube-ipvs0"))
    }

    /// Removes the device if it has no address left.
    pub(super) fn remove_device(&mut self) -> Result<(), Error> {
        let failed = Error::socket("removing the network device kube-ipvs0");
        let Some(index) = self.device()? else { return Ok(()) };
        let mut in_use = false;
        let both = retry_on_change(|| {
            in_use = false;
            self.route.dump(&mut route::addresses(route::AF_UNSPEC), |frame| {
                if let route::RouteEvent::NewAddress(address) = route::RouteEvent::decode(frame)? {
                    in_use |= address.index == index && address.scope == Scope::UNIVERSE;
                }
                Ok(())
            })
        });
        both.map_err(&failed)?;
        if in_use {
            return Ok(());
        }
        match self.route.query(&mut route::delete_link(index), |_| Ok(())) {
            Err(error) if error.errno() == Some(Errno(ENODEV)) => Ok(()),
            outcome => outcome.map_err(failed),
        }
    }

    /// Returns true if addresses of other devices than ours have changed since the last call.
    pub(super) fn addresses_changed(&mut self, device: u32) -> Result<bool, Error> {
        let (mut changed, family) = (false, self.family);
        let received = self.events.receive(|frame| {
            if let route::RouteEvent::NewAddress(address) | route::RouteEvent::DeleteAddress(address) =
                route::RouteEvent::decode(frame)?
            {
                changed |= address.index != device && Family::of(address.local) == family;
            }
            Ok(())
        });
        match received {
            Err(SocketError::Overrun | SocketError::Truncated { .. } | SocketError::Decode(_)) => Ok(true),
            outcome => outcome.map(|_| changed).map_err(Error::socket("changes of addresses")),
        }
    }

    /// Lists the virtual servers of the family that could be ours, including those of other programs, with their
    /// settings.
    pub(super) fn virtual_servers(&mut self) -> Result<BTreeMap<Key, Option<Config>>, Error> {
        self.list_virtual_servers(|server| config(&server))
    }

    /// Lists those virtual servers, each with what `what` takes from it.
    pub(super) fn list_virtual_servers<T>(
        &mut self,
        what: impl Fn(VirtualServer) -> T,
    ) -> Result<BTreeMap<Key, T>, Error> {
        let (number, family) = (self.number, self.family);
        let listed = retry_on_change(|| {
            let mut servers = BTreeMap::new();
            self.generic.dump(&mut ipvs::virtual_servers(number), |frame| {
                if let ipvs::IpvsEvent::VirtualServer(server) = ipvs::IpvsEvent::decode(number, frame)?
                    && let Some(key) = Key::of(&server.identity)
                    && Family::of(key.address) == family
                {
                    servers.insert(key, what(server));
                }
                Ok(())
            })?;
            Ok(servers)
        });
        listed.map_err(Error::socket("listing virtual servers"))
    }

    /// Returns the owners of the virtual servers of the family.
    pub fn owners(&mut self, exclude: &[IpNet]) -> Result<Owners, Error> {
        let device = self.device()?;
        let addresses = device.map(|device| self.addresses(device)).transpose()?.unwrap_or_default();
        let mut sets = self.sets(&[Set::Own])?;
        if sets.is_empty() {
            sets = self.sets(&Set::NODE_PORTS)?;
        }
        let keys: BTreeSet<Key> = self.virtual_servers()?.into_keys().collect();
        Ok(Evidence { addresses: &addresses, sets: &sets, exclude }.owners(&keys))
    }

    /// Removes virtual servers, with their connections.
    pub fn remove_virtual_servers(&mut self, keys: &BTreeSet<Key>) -> Result<(), Error> {
        let operations: Vec<_> = keys.iter().map(|key| Operation::Delete(*key)).collect();
        first_refusal(self.operate(&operations)?)
    }

    /// Returns true if the kernel has a scheduler. The kernel loads its module, if there is one.
    pub(super) fn has_scheduler(&mut self, scheduler: IpvsScheduler) -> Result<bool, Error> {
        let lacks = probe::trial(&mut self.generic, self.number, self.family, scheduler)?;
        Ok(lacks.is_none())
    }

    /// Lists the real servers of a virtual server, with their numbers of connections.
    pub(super) fn real_servers(&mut self, key: &Key) -> Result<Vec<RealServer>, Error> {
        let (number, identity) = (self.number, key.identity());
        let listed = retry_on_change(|| {
            let mut servers = Vec::new();
            self.generic.dump(&mut ipvs::real_servers(number, &identity), |frame| {
                if let ipvs::IpvsEvent::RealServer(server) = ipvs::IpvsEvent::decode(number, frame)? {
                    servers.push(server);
                }
                Ok(())
            })?;
            Ok(servers)
        });
        listed.map_err(Error::socket("listing real servers"))
    }

    /// Returns a virtual server with its real servers.
    pub(super) fn present(&mut self, key: &Key, config: Option<Config>) -> Result<Present, Error> {
        let real = self.real_servers(key)?.iter().map(|server| (server.place, real(server))).collect();
        Ok(Present { config, real })
    }

    /// Counts the bytes sent and returns the refusals.
    fn note(&mut self, sent: Sent) -> Vec<Refused> {
        self.bytes = self.bytes.saturating_add(sent.bytes);
        sent.refused
    }

    /// Changes virtual servers. The removal of a missing one is no refusal. Changes nothing if a scheduler cannot be used.
    pub(super) fn operate(&mut self, operations: &[Operation]) -> Result<Vec<Refused>, Error> {
        if let Some(scheduler) =
            operations.iter().filter_map(Operation::scheduler).find(|of| !module::is_usable(*of))
        {
            return Err(Error::Scheduler { scheduler });
        }
        let number = self.number;
        let sent = send(
            &mut self.generic,
            "virtual servers",
            operations,
            |batch, operation| encode(batch, number, operation),
            |operation, errno| {
                let gone = matches!(operation, Operation::Delete(_) | Operation::DeleteReal(..));
                let error = || refusal(operation, errno);
                (!gone || !matches!(errno, Errno(ESRCH) | Errno::ENOENT))
                    .then(|| Refused { item: Item::Operation(*operation), error: error() })
            },
        );
        Ok(self.note(sent?))
    }
}

/// Returns the first refusal as an error.
pub(super) fn first_refusal(refused: Vec<Refused>) -> Result<(), Error> {
    refused.into_iter().next().map_or(Ok(()), |refused| Err(refused.error))
}

/// No such process: the kernel's error for a missing virtual server.
const ESRCH: i32 = 3;
/// No such device.
const ENODEV: i32 = 19;
const fn real(server: &RealServer) -> Real {
    match (server.forward, server.weight) {
        (FORWARD_MASQUERADE, 0) => Real::Draining(UptimeSecs::of_threshold(server.upper_threshold)),
        (FORWARD_MASQUERADE, WEIGHT) if server.upper_threshold == 0 => Real::Serving,
        _ => Real::Other,
    }
}

fn config(server: &VirtualServer) -> Option<Config> {
    let scheduler = IpvsScheduler::named(&server.scheduler)?;
    Some(Config { scheduler, flags: server.flags & !FLAG_HASHED, timeout: server.timeout })
}

/// Returns the number of virtual servers of a family in the network namespace of this thread, including those of other
/// programs. The kernel loads its module.
pub fn count_virtual_servers(family: Family) -> Result<usize, portolan_engine::Error> {
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(0) };
    Ok(kernel.virtual_servers()?.len())
}

/// Returns true if an earlier run of this mode left virtual servers in the network namespace of this thread. Those of
/// kube-proxy do not count.
pub fn is_left(family: Family) -> Result<bool, portolan_engine::Error> {
    let failed = Error::socket("listing network devices");
    let mut links = Socket::open(Protocol::Route).map_err(&failed)?;
    // Without the device, return before the kernel has to load its modules.
    if device(&mut links).map_err(&failed)?.is_none() {
        return Ok(false);
    }
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(false) };
    Ok(kernel.members(Set::Own)?.is_some())
}
