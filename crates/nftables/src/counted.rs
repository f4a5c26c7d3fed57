//! Values that several Service ports may share, with the number of users.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Values with the number of times each was added. Most values are added once, so only the others have a count.
#[derive(Debug)]
pub(crate) struct Counted<T> {
    values: HashSet<T>,
    /// How many times a value was added after the first time.
    repeats: HashMap<T, u32>,
}

/// Addresses with the number of times each was added. An IPv4 address takes no more room than it needs.
#[derive(Debug, Default)]
pub(crate) struct CountedAddresses {
    ipv4: Counted<Ipv4Addr>,
    ipv6: Counted<Ipv6Addr>,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), repeats: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Counted<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        self.values.iter().copied()
    }

    /// Adds a value. Returns true if it is new.
    pub(crate) fn add(&mut self, value: T) -> bool {
        let new = self.values.insert(value);
        if !new {
            *self.repeats.entry(value).or_default() += 1;
        }
        new
    }

    /// Removes a value once. Returns true if it has no users left.
    pub(crate) fn remove(&mut self, value: &T) -> bool {
        let Some(repeats) = self.repeats.get_mut(value) else { return self.values.remove(value) };
        *repeats -= 1;
        if *repeats == 0 {
            self.repeats.remove(value);
        }
        false
    }
}

impl CountedAddresses {
    pub(crate) fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.iter().map(IpAddr::V4).chain(self.ipv6.iter().map(IpAddr::V6))
    }

    /// Adds an address. Returns true if it is new.
    pub(crate) fn add(&mut self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.add(address),
            IpAddr::V6(address) => self.ipv6.add(address),
        }
    }

    /// Removes an address once. Returns true if it has no users left.
    pub(crate) fn remove(&mut self, address: &IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.ipv4.remove(address),
            IpAddr::V6(address) => self.ipv6.remove(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts(steps in proptest::collection::vec((any::<bool>(), 0..6_u8), 0..100)) {
            let (mut addresses, mut expected) = (CountedAddresses::default(), BTreeMap::new());
            for (add, number) in steps {
                let address = match number % 2 {
                    0 => IpAddr::from([10, 0, 0, number]),
                    _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)]),
                };
                let count: &mut u32 = expected.entry(address).or_default();
                if add {
                    *count += 1;
                    prop_assert_eq!(addresses.add(address), *count == 1);
                } else {
                    prop_assert_eq!(addresses.remove(&address), *count == 1);
                    *count = count.saturating_sub(1);
                }
                let mut now: Vec<IpAddr> = addresses.iter().collect();
                now.sort_unstable();
                let there = expected.iter().filter(|(_, count)| **count > 0).map(|(address, _)| *address);
                prop_assert_eq!(now, there.collect::<Vec<_>>());
            }
        }
    }
}
