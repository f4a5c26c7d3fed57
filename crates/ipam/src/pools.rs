//! The addresses of all ranges and which of them are taken.
//!
//! Ranges may overlap, as ServiceCIDRs may. An address is taken once, in every range that contains it. If the network
//! or broadcast address of a range lies inside a wider one, only the wider range can allocate it.

use std::net::IpAddr;

use thiserror::Error;

use crate::{family::Family, pool::Pool, random::Random, range::AddressRange};

#[cfg(test)]
mod tests;

/// All ranges of cluster IPs and their allocated addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPools {
    pools: Vec<RangePool>,
}

/// A range and its allocated addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RangePool {
    range: AddressRange,
    is_ready: bool,
    pool: Pool,
}

/// The usage of a range. Overlapping ranges each count the addresses that they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The range.
    pub range: AddressRange,
    /// Number of allocated addresses.
    pub allocated: u64,
    /// Number of free addresses.
    pub available: u64,
}

/// The reason why an address cannot be allocated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// No ready range of the family contains the address.
    #[error("{address} is in no range of cluster IPs; the ranges are {ranges}")]
    NoSuchRange {
        /// The requested address.
        address: IpAddr,
        /// The ready ranges.
        ranges: String,
    },
    /// The address is the network or broadcast address of its range.
    #[error("{address} is not a valid address of {range}; those are {first}-{last}")]
    NotInRange {
        /// The requested address.
        address: IpAddr,
        /// The range that contains the address.
        range: AddressRange,
        /// The first address that can be allocated.
        first: IpAddr,
        /// The last address that can be allocated.
        last: IpAddr,
    },
    /// The address is taken.
    #[error("{address} is already allocated")]
    Allocated {
        /// The requested address.
        address: IpAddr,
    },
    /// No ready range of the family has a free address.
    #[error("range is full: no {family} address is left in {ranges}")]
    Full {
        /// The requested family.
        family: Family,
        /// The ready ranges of the family.
        ranges: String,
    },
    /// No range of the family is ready. Upstream reports this as a full range, too.
    #[error("no range of {family} cluster IPs is ready")]
    NotReady {
        /// The requested family.
        family: Family,
    },
}

impl AddressPools {
    /// Creates a set without ranges.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range, or sets whether it is ready if it is present. `taken` are all allocated addresses; those outside
    /// of the range are ignored. Addresses are allocated from ranges in the order in which they were added.
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

    /// Removes a range. Its addresses stay taken in other ranges that contain them.
    pub fn remove(&mut self, range: AddressRange) {
        self.pools.retain(|pool| pool.range != range);
    }

    /// Iterates over all ranges in the order of allocation.
    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        self.pools.iter().map(|pool| pool.range)
    }

    /// Iterates over the usage of each range.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.pools.iter().map(|RangePool { range, pool, .. }| Usage {
            range: *range,
            allocated: pool.taken(),
            available: pool.free(),
        })
    }

    /// Returns true if the address is taken in any range that contains it.
    pub fn is_taken(&self, address: IpAddr) -> bool {
        self.pools
            .iter()
            .any(|pool| pool.range.offset_of(address).is_some_and(|offset| pool.pool.is_taken(offset)))
    }

    /// Checks that the address can be allocated: a ready range can allocate it, and it is not taken.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressError> {
        self.check_range(address)?;
        if self.is_taken(address) { Err(AddressError::Allocated { address }) } else { Ok(()) }
    }

    /// Checks that a ready range can allocate the address, whether it is taken or not.
    pub fn check_range(&self, address: IpAddr) -> Result<(), AddressError> {
        let is_accepted = self.ready().any(|pool| pool.range.accepts(address));
        if is_accepted { Ok(()) } else { Err(self.why_not(address)) }
    }

    /// Takes the address in every range that contains it, ready or not. Returns false if it is taken or in no range.
    pub fn take(&mut self, address: IpAddr) -> bool {
        !self.is_taken(address) && self.change(address, Pool::take)
    }

    /// Frees the address. Returns false if it is free already or in no range.
    pub fn release(&mut self, address: IpAddr) -> bool {
        self.change(address, Pool::release)
    }

    /// Frees an address that was in use; see [`Pool::retire`].
    pub fn retire(&mut self, address: IpAddr) -> bool {
        self.change(address, Pool::retire)
    }

    /// Finds a free address in the first ready range of the family that has one. The address stays free.
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
