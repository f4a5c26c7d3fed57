//! Classes: everything about a Service port that must be a constant in a rule.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use super::value::MAX_CLASS;

/// The set of endpoints that a packet's endpoint is chosen from, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Balance {
    /// True for the local endpoints, false for those of the cluster.
    pub(crate) local: bool,
    /// Number of endpoints in the set, at least 1: the modulus of `numgen`.
    pub(crate) backends: u16,
    /// Session affinity timeout in seconds. `None` without session affinity.
    pub(crate) affinity: Option<u32>,
}

/// The kind of traffic and the sets of endpoints it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// Traffic to a cluster IP.
    Internal(Balance),
    /// External traffic with `externalTrafficPolicy: Cluster`.
    External(Balance),
    /// External traffic with `externalTrafficPolicy: Local`: the cluster endpoints, for local pods and this node
    /// itself (the short cut), and the number of local endpoints, which may be 0, for all other clients.
    ExternalLocal(Balance, u16),
}

impl Class {
    /// Returns the endpoint chains that the chain of this class goes to.
    pub(crate) fn balances(self) -> impl Iterator<Item = Balance> {
        let (first, second) = match self {
            Self::Internal(balance) | Self::External(balance) | Self::ExternalLocal(balance, 0) => {
                (balance, None)
            }
            Self::ExternalLocal(balance, local) => {
                (balance, Some(Balance { local: true, backends: local, ..balance }))
            }
        };
        std::iter::once(first).chain(second)
    }

    pub(crate) fn affinity(self) -> Option<u32> {
        match self {
            Self::Internal(balance) | Self::External(balance) | Self::ExternalLocal(balance, _) => {
                balance.affinity
            }
        }
    }
}

/// Writes the name of the chain: `endpoints-3`, `local-endpoints-1-affinity-10800`.
impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}endpoints-{}", if self.local { "local-" } else { "" }, self.backends)?;
        write_affinity(f, self.affinity)
    }
}

/// Writes the name of the chain: `internal-3`, `internal-local-1`, `external-3`, `external-local-3-1-affinity-10800`.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal(b) if b.local => write!(f, "internal-local-{}", b.backends),
            Self::Internal(b) => write!(f, "internal-{}", b.backends),
            Self::External(b) => write!(f, "external-{}", b.backends),
            Self::ExternalLocal(b, local) => write!(f, "external-local-{}-{local}", b.backends),
        }?;
        write_affinity(f, self.affinity())
    }
}

fn write_affinity(f: &mut fmt::Formatter<'_>, affinity: Option<u32>) -> fmt::Result {
    affinity.map_or(Ok(()), |seconds| write!(f, "-affinity-{seconds}"))
}

/// The name does not belong to a class chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAClass;

impl FromStr for Class {
    type Err = NotAClass;

    fn from_str(name: &str) -> Result<Self, NotAClass> {
        let (head, affinity) = split_affinity(name)?;
        let cluster = |backends| Balance { local: false, backends, affinity };
        if let Some(rest) = head.strip_prefix("internal-local-") {
            Ok(Self::Internal(Balance { local: true, ..cluster(count(rest)?) }))
        } else if let Some(rest) = head.strip_prefix("internal-") {
            Ok(Self::Internal(cluster(count(rest)?)))
        } else if let Some(rest) = head.strip_prefix("external-local-") {
            let (backends, local) = rest.split_once('-').ok_or(NotAClass)?;
            let local = if local == "0" { 0 } else { count(local)? };
            Ok(Self::ExternalLocal(cluster(count(backends)?), local))
        } else {
            let rest = head.strip_prefix("external-").ok_or(NotAClass)?;
            Ok(Self::External(cluster(count(rest)?)))
        }
    }
}

impl FromStr for Balance {
    type Err = NotAClass;

    fn from_str(name: &str) -> Result<Self, NotAClass> {
        let (head, affinity) = split_affinity(name)?;
        let (local, rest) = match head.strip_prefix("local-") {
            Some(rest) => (true, rest),
            None => (false, head),
        };
        let backends = count(rest.strip_prefix("endpoints-").ok_or(NotAClass)?)?;
        Ok(Self { local, backends, affinity })
    }
}

fn split_affinity(name: &str) -> Result<(&str, Option<u32>), NotAClass> {
    match name.split_once("-affinity-") {
        None => Ok((name, None)),
        Some((head, seconds)) => Ok((head, Some(canonical(seconds)?))),
    }
}

fn count(text: &str) -> Result<u16, NotAClass> {
    canonical(text)
}

/// Parses a positive number, in the spelling of `Display` only.
fn canonical<T: FromStr + PartialEq + From<u8>>(text: &str) -> Result<T, NotAClass> {
    if text.starts_with(['0', '+']) { Err(NotAClass) } else { text.parse().map_err(|_| NotAClass) }
}

/// The classes in use, with their numbers. A class without users stays until it is collected: it may be used again a
/// moment later, and its chain costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    known: HashMap<Class, Entry>,
    numbers: BTreeMap<u16, Class>,
    balances: HashMap<Balance, u32>,
}

#[derive(Debug)]
struct Entry {
    number: u16,
    users: u32,
}

impl Classes {
    /// Adds a user to a class. Returns its number, and true if the class is new and its chain has yet to be created.
    /// Returns `None` if all numbers are in use.
    pub(crate) fn acquire(&mut self, class: Class) -> Option<(u16, bool)> {
        if let Some(entry) = self.known.get_mut(&class) {
            entry.users += 1;
            return Some((entry.number, false));
        }
        let number = self.unused_number()?;
        self.insert(class, number, 1);
        Some((number, true))
    }

    /// Adds a class found in the kernel, without users. Returns false if the class is known or its number cannot be
    /// used.
    pub(crate) fn adopt(&mut self, class: Class, number: u16) -> bool {
        let free = number != 0
            && number <= MAX_CLASS
            && !self.known.contains_key(&class)
            && !self.numbers.contains_key(&number);
        if free {
            self.insert(class, number, 0);
        }
        free
    }

    pub(crate) fn release(&mut self, class: Class) {
        if let Some(entry) = self.known.get_mut(&class) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    pub(crate) fn number(&self, class: Class) -> Option<u16> {
        self.known.get(&class).map(|entry| entry.number)
    }

    /// Returns every known class with its number, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, Class)> + '_ {
        self.numbers.iter().map(|(&number, &class)| (number, class))
    }

    /// Returns every endpoint chain that a known class needs.
    pub(crate) fn balances(&self) -> impl Iterator<Item = Balance> + '_ {
        self.balances.keys().copied()
    }

    pub(crate) fn needs(&self, balance: Balance) -> bool {
        self.balances.contains_key(&balance)
    }

    pub(crate) fn needs_affinity(&self) -> bool {
        self.balances.keys().any(|balance| balance.affinity.is_some())
    }

    /// Returns true if any class has no users.
    pub(crate) fn any_idle(&self) -> bool {
        self.known.values().any(|entry| entry.users == 0)
    }

    /// Removes the classes without users and returns them with their numbers.
    pub(crate) fn take_idle(&mut self) -> Vec<(u16, Class)> {
        let idle: Vec<_> = self
            .known
            .iter()
            .filter(|(_, entry)| entry.users == 0)
            .map(|(&class, entry)| (entry.number, class))
            .collect();
        for &(number, class) in &idle {
            self.known.remove(&class);
            self.numbers.remove(&number);
            for balance in class.balances() {
                if let Some(users) = self.balances.get_mut(&balance) {
                    *users -= 1;
                    if *users == 0 {
                        self.balances.remove(&balance);
                    }
                }
            }
        }
        idle
    }

    fn insert(&mut self, class: Class, number: u16, users: u32) {
        self.known.insert(class, Entry { number, users });
        self.numbers.insert(number, class);
        for balance in class.balances() {
            *self.balances.entry(balance).or_default() += 1;
        }
    }

    fn unused_number(&self) -> Option<u16> {
        let last = self.numbers.last_key_value().map_or(0, |(&number, _)| number);
        if last < MAX_CLASS {
            return Some(last + 1);
        }
        (1..=MAX_CLASS).find(|number| !self.numbers.contains_key(number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn balance() -> impl Strategy<Value = Balance> {
        (any::<bool>(), 1..=u16::MAX, proptest::option::of(1..=86_400_u32))
            .prop_map(|(local, backends, affinity)| Balance { local, backends, affinity })
    }

    fn class() -> impl Strategy<Value = Class> {
        let cluster = || balance().prop_map(|b| Balance { local: false, ..b });
        prop_oneof![
            balance().prop_map(Class::Internal),
            cluster().prop_map(Class::External),
            (cluster(), any::<u16>()).prop_map(|(b, local)| Class::ExternalLocal(b, local)),
        ]
    }

    proptest! {
        #[test]
        fn names_are_read_back(class in class(), balance in balance()) {
            prop_assert_eq!(class.to_string().parse(), Ok(class));
            prop_assert_eq!(balance.to_string().parse(), Ok(balance));
            prop_assert_eq!(balance.to_string().parse::<Class>(), Err(NotAClass));
        }
    }

    #[test]
    fn other_names_are_not_classes() {
        for name in [
            "services",
            "internal-",
            "internal-0",
            "internal-03",
            "external-3-x",
            "external-local-3",
            "internal-+3",
        ] {
            assert_eq!(name.parse::<Class>(), Err(NotAClass), "{name}");
        }
    }

    #[test]
    fn an_idle_class_is_kept_until_collected() {
        let three = Class::Internal(Balance { local: false, backends: 3, affinity: None });
        let mut classes = Classes::default();
        assert_eq!(classes.acquire(three), Some((1, true)));
        classes.release(three);
        assert_eq!(classes.acquire(three), Some((1, false)), "it came back before it was collected");
        assert!(classes.take_idle().is_empty());
        classes.release(three);
        assert_eq!(classes.take_idle(), vec![(1, three)]);
        assert_eq!(classes.balances().count(), 0);
    }
}
