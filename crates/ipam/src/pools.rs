//! The addresses of all ranges, and which are taken.
//!
//! Ranges may overlap, as ServiceCIDRs may: an address is taken once, in every range that has it. A range whose network
//! or broadcast address lies inside a wider one can not give it, but the wider one can.

use std::net::IpAddr;

use thiserror::Error;

use crate::{family::Family, pool::Pool, random::Random, range::AddressRange};

#[cfg(test)]
mod tests;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPools {
    pools: Vec<RangePool>,
}

/// One range and what is taken of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RangePool {
    range: AddressRange,
    is_ready: bool,
    pool: Pool,
}

/// How full a range is. Overlapping ranges each count the addresses that they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The range.
    pub range: AddressRange,
    /// Addresses given out.
    pub allocated: u64,
    /// Addresses left.
    pub available: u64,
}

/// Why an address can not be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// No ready range of the family has the address.
    #[error("{address} is in no range of cluster IPs; the ranges are {ranges}")]
    NoSuchRange {
        /// The address asked for.
        address: IpAddr,
        /// The ready ranges.
        ranges: String,
    },
    /// In a range, but its network or broadcast address.
    #[error("{address} is not a valid address of {range}; those are {first}-{last}")]
    NotInRange {
        /// The address asked for.
        address: IpAddr,
        /// The range it lies in.
        range: AddressRange,
        /// First that can be given.
        first: IpAddr,
        /// Last that can be given.
        last: IpAddr,
    },
    /// Someone has it.
    #[error("{address} is already allocated")]
    Allocated {
        /// The address asked for.
        address: IpAddr,
    },
    /// No ready range of the family has a free address.
    #[error("range is full: no {family} address is left in {ranges}")]
    Full {
        /// The family asked for.
        family: Family,
        /// The ready ranges of the family.
        ranges: String,
    },
    /// There is no ready range of the family. Upstream calls that full, too.
    #[error("no range of {family} cluster IPs is ready")]
    NotReady {
        /// The family asked for.
        family: Family,
    },
}

impl AddressPools {
    /// No ranges.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range, or sets whether it is ready if it is there. `taken` are all addresses given out; those that are
    /// not in the range do not matter. Ranges are used in the order of their coming.
    pub fn add(&mut self, range: AddressRange, is_ready: bool, taken: impl IntoIterator<Item = IpAddr>) {
        if let Some(pool) = self.pools.iter_mut().find(|pool| pool.range == range) {
            pool.is_ready = is_ready;
            return;
        }
        let mut pool = Pool::new(range.usable(), range.static_band());
        for offset in taken.into_iter().filter_map(|address| range.offset_of(address)) {
            pool.take(offset);
        }
        self.pools.push(RangePool { range, is_ready, pool });
    }

    /// Forgets a range. Its addresses stay taken in other ranges that have them.
    pub fn remove(&mut self, range: AddressRange) {
        self.pools.retain(|pool| pool.range != range);
    }

    /// All ranges, in the order in which they are used.
    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        self.pools.iter().map(|pool| pool.range)
    }

    /// How full each range is.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.pools.iter().map(|RangePool { range, pool, .. }| Usage {
            range: *range,
            allocated: pool.taken(),
            available: pool.free(),
        })
    }

    /// Whether the address is given out, by the ranges that have it.
    pub fn is_taken(&self, address: IpAddr) -> bool {
        self.pools
            .iter()
            .any(|pool| pool.range.offset_of(address).is_some_and(|offset| pool.pool.is_taken(offset)))
    }

    /// Whether this address can be had: some ready range gives it, and no one has it.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressError> {
        if !self.ready().any(|pool| pool.range.accepts(address)) {
            return Err(self.why_not(address));
        }
        if self.is_taken(address) { Err(AddressError::Allocated { address }) } else { Ok(()) }
    }

    /// Takes the address in every range that has it, ready or not; false if it is taken or in none.
    pub fn take(&mut self, address: IpAddr) -> bool {
        !self.is_taken(address) && self.change(address, Pool::take)
    }

    /// Frees the address. One that is free already, or in no range, is no error.
    pub fn release(&mut self, address: IpAddr) -> bool {
        self.change(address, Pool::release)
    }

    /// Frees an address that was in use; see [`Pool::retire`].
    pub fn retire(&mut self, address: IpAddr) -> bool {
        self.change(address, Pool::retire)
    }

    /// A free address of the family, of the first ready range that has one; it stays free.
    pub fn find(&self, family: Family, random: &mut dyn Random) -> Result<IpAddr, AddressError> {
        let mut is_any_ready = false;
        for RangePool { range, pool, .. } in self.ready().filter(|pool| pool.range.family() == family) {
            is_any_ready = true;
            if let Some(address) = pool.find(random).and_then(|offset| range.address_at(offset)) {
                return Ok(address);
            }
        }
        Err(if is_any_ready {
            AddressError::Full { family, ranges: self.names(family) }
        } else {
            AddressError::NotReady { family }
        })
    }

    fn ready(&self) -> impl Iterator<Item = &RangePool> {
        self.pools.iter().filter(|pool| pool.is_ready)
    }

    fn change(&mut self, address: IpAddr, change: impl Fn(&mut Pool, u64) -> bool) -> bool {
        let mut is_changed = false;
        for RangePool { range, pool, .. } in &mut self.pools {
            is_changed |= range.offset_of(address).is_some_and(|offset| change(pool, offset));
        }
        is_changed
    }

    fn why_not(&self, address: IpAddr) -> AddressError {
        let around = self.ready().map(|pool| pool.range).find(|range| range.net().contains(&address));
        let valid = around.and_then(|range| Some((range, range.first()?, range.last()?)));
        match valid {
            Some((range, first, last)) => AddressError::NotInRange { address, range, first, last },
            None => AddressError::NoSuchRange { address, ranges: self.names(Family::of(address)) },
        }
    }

    fn names(&self, family: Family) -> String {
        let ranges = self.ready().map(|pool| pool.range).filter(|range| range.family() == family);
        ranges.map(|range| range.to_string()).collect::<Vec<_>>().join(",")
    }
}
