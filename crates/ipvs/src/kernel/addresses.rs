//! Reads and writes the addresses of the network device.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_sock::{Errno, SocketError, retry_on_change};
use portolan_wire::Batch;
use portolan_wire::route::{self, path};

use super::send::{on_device, send};
use super::{Kernel, first_refusal};
use crate::Error;
use crate::device::{Addresses, DEVICE};
use crate::refusal::{Item, Refused};

/// How long the local routes of new addresses are waited for, and the pause between two questions.
const DELIVERED_WITHIN: Duration = Duration::from_secs(5);
const DELIVERY_PAUSE: Duration = Duration::from_millis(1);

/// The device does not have the address, or has it with another prefix (`inet_rtm_deladdr` in `net/ipv4/devinet.c`,
/// `inet6_addr_del` in `net/ipv6/addrconf.c`).
const EADDRNOTAVAIL: i32 = 99;

impl Kernel {
    /// Lists the addresses of this node in the family.
    pub fn addresses(&mut self, device: u32) -> Result<Addresses, Error> {
        let mut addresses = Addresses::default();
        self.listed_addresses()?.iter().for_each(|address| addresses.add(address, device));
        Ok(addresses)
    }

    /// Lists the addresses of this node in the family, with their devices and prefixes.
    fn listed_addresses(&mut self) -> Result<Vec<route::Address>, Error> {
        let family = self.address_family();
        let listed = retry_on_change(|| {
            let mut addresses = Vec::new();
            self.route.dump(&mut route::addresses(family), |frame| {
                if let route::RouteEvent::NewAddress(address) = route::RouteEvent::decode(frame)? {
                    addresses.push(address);
                }
                Ok(())
            })?;
            Ok(addresses)
        });
        listed.map_err(Error::socket("listing addresses"))
    }

    /// Adds addresses to the device, and waits until packets to them are delivered to this node.
    pub(crate) fn bind(&mut self, device: u32, addresses: &[IpAddr]) -> Result<Vec<Refused>, Error> {
        let ours: Vec<_> = addresses.iter().map(|address| on_device(device, *address)).collect();
        let refused = self.change_addresses(&ours, route::put_address, Some(Errno::EEXIST))?;
        let without: BTreeSet<IpAddr> = refused.iter().filter_map(Refused::address).collect();
        let start = Instant::now();
        for address in addresses.iter().filter(|address| !without.contains(address)) {
            let IpAddr::V6(address) = address else { continue };
            while !self.is_delivered(*address).map_err(Error::socket("addresses"))? {
                if self.lacks_routes || start.elapsed() > DELIVERED_WITHIN {
                    if !std::mem::replace(&mut self.lacks_routes, true) {
                        tracing::warn!(%address, device = DEVICE, "the kernel has no local route to this address of the device");
                    }
                    return Ok(refused);
                }
                sleep(DELIVERY_PAUSE);
            }
        }
        Ok(refused)
    }

    /// Returns true if packets to an address are delivered to this node. The kernel adds the local route of an IPv6 address a
    /// moment after it has acknowledged the address (`addrconf_dad_work` in `net/ipv6/addrconf.c`). Packets before that leave
    /// by another route, and conntrack then leaves all packets of their connection untranslated.
    fn is_delivered(&mut self, address: Ipv6Addr) -> Result<bool, SocketError> {
        let mut is_local = false;
        let asked = self.route.query(&mut path::to_ipv6(address), |frame| {
            is_local |= path::is_local(frame);
            Ok(())
        });
        match asked {
            // There is no route at all.
            Err(SocketError::Refused(_)) => Ok(false),
            asked => asked.map(|()| is_local),
        }
    }

    /// Removes addresses from the device. A refusal is an error.
    pub fn remove_addresses(&mut self, device: u32, addresses: &[IpAddr]) -> Result<(), Error> {
        first_refusal(self.unbind(device, addresses)?)
    }

    /// Removes addresses from the device. An address that the device does not have is no refusal.
    pub(crate) fn unbind(&mut self, device: u32, addresses: &[IpAddr]) -> Result<Vec<Refused>, Error> {
        let ours: Vec<_> = addresses.iter().map(|address| on_device(device, *address)).collect();
        let refused = self.change_addresses(&ours, route::take_address, None)?;
        let (missed, mut refused): (Vec<Refused>, Vec<Refused>) =
            refused.into_iter().partition(|refused| refused.error.errno() == Some(Errno(EADDRNOTAVAIL)));
        let missed: BTreeSet<IpAddr> = missed.iter().filter_map(Refused::address).collect();
        if !missed.is_empty() {
            // Other programs may have added them, with another prefix.
            let mut listed = self.listed_addresses()?;
            listed.retain(|address| address.index == device && missed.contains(&address.local));
            let done = Some(Errno(EADDRNOTAVAIL));
            refused.extend(self.change_addresses(&listed, route::take_address, done)?);
        }
        Ok(refused)
    }

    /// Sends a message for each address. Refusals with the error `done` mean that there is nothing to do.
    fn change_addresses(
        &mut self,
        addresses: &[route::Address],
        write: fn(&mut Batch, &route::Address),
        done: Option<Errno>,
    ) -> Result<Vec<Refused>, Error> {
        let sent = send(&mut self.route, "addresses", addresses, write, |address, errno| {
            let local = address.local;
            let error = || Error::Refused { what: format!("address {local} of {DEVICE}"), errno };
            (Some(errno) != done).then(|| Refused { item: Item::Address(local), error: error() })
        });
        Ok(self.note(sent?))
    }

    const fn address_family(&self) -> u8 {
        match self.family {
            Family::Ipv4 => route::AF_INET,
            Family::Ipv6 => route::AF_INET6,
        }
    }
}
