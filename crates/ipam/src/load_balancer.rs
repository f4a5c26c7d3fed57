//! Addresses of Services of type LoadBalancer: which ones a Service keeps, takes and releases.
//!
//! A Service gets one address of each of its families that has a range. An address that a Service has stays with it
//! until the Service is deleted, changes its type, drops the family or requests another address, even if its range was
//! removed.

use std::{borrow::Cow, cell::LazyCell, net::IpAddr};

use ipnet::IpNet;
use thiserror::Error;

use crate::{
    check::{Neighbours, RangeRefusal, check_load_balancers, overlap},
    family::Family,
    nodes::Nodes,
    plan::{Holder, Holders},
    pools::{AddressError, AddressPools},
    random::Random,
    range::AddressRange,
    service::ServiceKey,
};

#[cfg(test)]
mod tests;

/// What a Service has and wants.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// Its families, in its order.
    pub families: Vec<Family>,
    /// The addresses that are recorded for it.
    pub held: Vec<IpAddr>,
    /// The addresses that it requests.
    pub requested: Vec<IpAddr>,
    /// True if a request that cannot be met is an error. If false, the Service waits for the address, and keeps the one
    /// that it has.
    pub is_strict: bool,
    /// Free addresses that its status lists already. They are preferred to other free ones.
    pub listed: Vec<IpAddr>,
}

/// The addresses of a Service after a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Addresses that the Service has and keeps.
    pub keep: Vec<IpAddr>,
    /// Addresses that it gets.
    pub take: Vec<IpAddr>,
    /// Addresses that it loses.
    pub release: Vec<IpAddr>,
}

/// The reason why a requested address is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequestRefusal {
    /// The text is not an IP address.
    #[error("must be a valid IP address")]
    NotAnAddress,
    /// Two requested addresses are of the same family.
    #[error("is the second {0} address; a Service gets one of each family")]
    FamilyTwice(Family),
    /// The Service does not have the family.
    #[error("is an {0} address, and spec.ipFamilies does not have this family")]
    OtherFamily(Family),
    /// No range contains the address, or it is the network or broadcast address of its range.
    #[error("is no address that can be allocated; the ranges of --load-balancer-ip-range are {0}")]
    NotInRange(String),
    /// A Service has the address.
    #[error("is already allocated to Service {0}")]
    HeldBy(ServiceKey),
    /// An object other than a Service has the address, or a write under way takes it.
    #[error("is already allocated")]
    Allocated,
    /// A Node has the address.
    #[error("is an address of a Node")]
    OfNode,
}

/// The allocated addresses, and what limits the allocation of others.
#[derive(Debug, Clone, Copy)]
pub struct Supply<'a> {
    /// The ranges and their taken addresses.
    pub pools: &'a AddressPools,
    /// The Nodes. Their addresses are never allocated.
    pub nodes: &'a Nodes,
}

/// Checks the ranges of `--load-balancer-ip-range`: any number of both families, none of which overlaps another one.
pub fn check_ranges(nets: &[IpNet], neighbours: Neighbours<'_>) -> Result<Vec<AddressRange>, RangeRefusal> {
    for (index, net) in nets.iter().enumerate() {
        if let Some(other) = nets.iter().take(index).copied().find(|other| overlap(*net, *other)) {
            return Err(RangeRefusal::Overlap(other, *net));
        }
    }
    nets.iter().map(|net| check_load_balancers(*net, neighbours)).collect()
}

/// Plans the addresses of a Service. Every refused request is returned with its address. Without errors, a family for
/// which no address is free is left out: the Service waits for it.
pub fn plan(
    supply: Supply<'_>,
    holders: &dyn Holders,
    demand: &Demand,
    random: &mut dyn Random,
) -> Result<Allocation, Vec<(IpAddr, RequestRefusal)>> {
    let mut errors = unfit(demand);
    // A copy of the pools, if Nodes have addresses in them. Few writes need one.
    let free = LazyCell::new(|| supply.without_nodes());
    let mut allocation = Allocation::default();
    for family in &demand.families {
        let of_family =
            |addresses: &[IpAddr]| addresses.iter().copied().find(|address| Family::of(*address) == *family);
        let held = of_family(&demand.held);
        let requested = of_family(&demand.requested).filter(|_| demand.is_strict || held.is_none());
        match (requested, held) {
            (Some(requested), _) if demand.held.contains(&requested) => allocation.keep.push(requested),
            (Some(requested), _) => match supply.check(holders, requested) {
                Ok(()) => allocation.take.push(requested),
                Err(refusal) if demand.is_strict => errors.push((requested, refusal)),
                Err(_) => allocation.take.extend(of_family(&demand.listed)),
            },
            (None, Some(held)) => allocation.keep.push(held),
            (None, None) => {
                let listed = of_family(&demand.listed);
                allocation.take.extend(listed.or_else(|| free.find(*family, random).ok()));
            }
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let lost = demand.held.iter().filter(|address| !allocation.keep.contains(address));
    allocation.release = lost.copied().collect();
    Ok(allocation)
}

/// Returns the requested addresses that do not fit the families of the Service.
fn unfit(demand: &Demand) -> Vec<(IpAddr, RequestRefusal)> {
    let mut seen = Vec::new();
    let mut errors = Vec::new();
    for address in demand.requested.iter().filter(|_| demand.is_strict) {
        let family = Family::of(*address);
        if seen.contains(&family) {
            errors.push((*address, RequestRefusal::FamilyTwice(family)));
        } else if !demand.families.contains(&family) {
            errors.push((*address, RequestRefusal::OtherFamily(family)));
        }
        seen.push(family);
    }
    errors
}

impl<'a> Supply<'a> {
    /// Returns the families of which an address is free.
    pub fn free_families(self) -> Vec<Family> {
        let pools = self.without_nodes();
        // Any free address is as good as another one here.
        let is_free = |family: &Family| pools.find(*family, &mut || 0).is_ok();
        [Family::Ipv4, Family::Ipv6].into_iter().filter(is_free).collect()
    }

    /// Returns `Ok` if the address can be allocated.
    pub fn check(self, holders: &dyn Holders, address: IpAddr) -> Result<(), RequestRefusal> {
        if self.nodes.has_address(address) {
            return Err(RequestRefusal::OfNode);
        }
        match (self.pools.check(address), holders.of_address(address)) {
            (Ok(()), Holder::Unknown) => Ok(()),
            (Ok(()) | Err(AddressError::Allocated { .. }), Holder::Service(holder)) => {
                Err(RequestRefusal::HeldBy(holder))
            }
            (Ok(()) | Err(AddressError::Allocated { .. }), _) => Err(RequestRefusal::Allocated),
            (Err(_), _) => Err(RequestRefusal::NotInRange(self.ranges())),
        }
    }

    fn ranges(self) -> String {
        let ranges: Vec<String> = self.pools.ranges().map(|range| range.to_string()).collect();
        if ranges.is_empty() { "none".to_owned() } else { ranges.join(",") }
    }

    /// Returns the pools with the addresses of Nodes taken.
    fn without_nodes(self) -> Cow<'a, AddressPools> {
        let mut inside = self.pools.ranges().flat_map(|range| self.nodes.addresses_in(range)).peekable();
        if inside.peek().is_none() {
            return Cow::Borrowed(self.pools);
        }
        let mut pools = self.pools.clone();
        for address in inside {
            pools.take(address);
        }
        Cow::Owned(pools)
    }
}
