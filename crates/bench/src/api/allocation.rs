//! Measures the allocator alone: the time to find, allocate and release one address in a /12 that is 90 % full.

use std::time::Instant;

use portolan_ipam::{AddressPools, AddressRange, Family};

const ROUNDS: u32 = 1_000_000;

/// Times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allocation {
    /// The free addresses are scattered over the range.
    pub(super) scattered: u32,
    /// The free addresses are the last ones of the range.
    pub(super) block: u32,
}

/// Measures both cases.
pub(super) fn measure() -> anyhow::Result<Allocation> {
    Ok(Allocation { scattered: one(true)?, block: one(false)? })
}

fn one(is_scattered: bool) -> anyhow::Result<u32> {
    let range = AddressRange::new("10.96.0.0/12".parse()?)?;
    let mut random = fastrand::Rng::with_seed(1);
    let last = range.usable() / 10 * 9;
    let taken =
        (0..range.usable()).filter(|offset| if is_scattered { random.u8(0..10) < 9 } else { *offset < last });
    let mut pools = AddressPools::new();
    pools.add(range, true, taken.filter_map(|offset| range.address_at(offset)));
    let mut random = fastrand::Rng::with_seed(2);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let address = pools.find(Family::Ipv4, &mut || random.u64(..))?;
        pools.take(address);
        pools.release(address);
    }
    Ok(u32::try_from(start.elapsed().as_nanos() / u128::from(ROUNDS))?)
}
