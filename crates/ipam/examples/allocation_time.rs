//! Measures one allocation in a /12 that is 90 % full. Run it with `--release`.

use std::time::Instant;

use portolan_ipam::{AddressPools, AddressRange, Family};

const ROUNDS: u32 = 1_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let range = AddressRange::new("10.96.0.0/12".parse()?)?;
    // The worst case fills the upper band from its start. Usually the free addresses are scattered.
    for (name, is_scattered) in [("scattered", true), ("one block", false)] {
        let mut seed = fastrand::Rng::with_seed(1);
        let taken = (0..range.usable()).filter(|offset| {
            if is_scattered { seed.u8(0..10) < 9 } else { *offset < range.usable() / 10 * 9 }
        });
        let mut pools = AddressPools::new();
        pools.add(range, true, taken.filter_map(|offset| range.address_at(offset)));
        let mut seed = fastrand::Rng::with_seed(2);
        let start = Instant::now();
        for _ in 0..ROUNDS {
            let address = pools.find(Family::Ipv4, &mut || seed.u64(..))?;
            pools.take(address);
            pools.release(address);
        }
        let each = start.elapsed().as_nanos() / u128::from(ROUNDS);
        println!("/12, 90 % full, {name}: {each} ns to find, take and release an address");
    }
    Ok(())
}
