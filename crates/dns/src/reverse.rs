//! Names of addresses below `in-addr.arpa` and `ip6.arpa`, and which of them belong to the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use hickory_proto::rr::Name;
use hickory_proto::rr::domain::LabelIter;
use ipnet::IpNet;

/// Bits of one label below `in-addr.arpa`.
const BITS_V4: u8 = 8;
/// Bits of one label below `ip6.arpa`.
const BITS_V6: u8 = 4;

/// What a name below `in-addr.arpa` or `ip6.arpa` stands for: an address, or the range of a partial name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReverseName(IpNet);

impl ReverseName {
    /// Reads a name. Returns `None` if it is not below these two domains, or if its labels are not numbers in the only
    /// form that an address has.
    pub fn of(name: &Name) -> Option<Self> {
        let mut labels = name.iter();
        let arpa = labels.next_back()?;
        if !arpa.eq_ignore_ascii_case(b"arpa") {
            return None;
        }
        let family = labels.next_back()?;
        if family.eq_ignore_ascii_case(b"in-addr") {
            Self::of_ipv4(labels)
        } else if family.eq_ignore_ascii_case(b"ip6") {
            Self::of_ipv6(labels)
        } else {
            None
        }
    }

    fn of_ipv4(labels: LabelIter<'_>) -> Option<Self> {
        let mut address = 0_u32;
        let mut bits = 0_u8;
        for label in labels.rev() {
            let octet = str::from_utf8(label).ok()?.parse::<u8>().ok()?;
            // No leading zeros or signs, so that each address has one name.
            if octet.to_string().as_bytes() != label || bits >= 32 {
                return None;
            }
            bits = bits.checked_add(BITS_V4)?;
            address |= u32::from(octet).checked_shl(u32::from(32_u8.checked_sub(bits)?))?;
        }
        IpNet::new(Ipv4Addr::from_bits(address).into(), bits).ok().map(Self)
    }

    fn of_ipv6(labels: LabelIter<'_>) -> Option<Self> {
        let mut address = 0_u128;
        let mut bits = 0_u8;
        for label in labels.rev() {
            let [digit] = label else { return None };
            let nibble = char::from(*digit).to_digit(16)?;
            if bits >= 128 {
                return None;
            }
            bits = bits.checked_add(BITS_V6)?;
            address |= u128::from(nibble).checked_shl(u32::from(128_u8.checked_sub(bits)?))?;
        }
        IpNet::new(Ipv6Addr::from_bits(address).into(), bits).ok().map(Self)
    }

    /// Returns the address, if the name is complete.
    pub fn address(&self) -> Option<IpAddr> {
        (self.0.prefix_len() == self.0.max_prefix_len()).then(|| self.0.addr())
    }

    /// Returns all addresses whose names are this name or below it.
    pub fn range(&self) -> RangeInclusive<IpAddr> {
        self.0.network()..=self.0.broadcast()
    }

    /// Returns the zone that the name is in: the apex of one of the domains into which `ranges` are divided. A range
    /// whose length is no multiple of a label's bits is divided into several domains. Returns `None` if the name is in
    /// none of them.
    pub fn zone(&self, ranges: &[IpNet]) -> Option<Self> {
        let range = ranges.iter().find(|range| range.contains(&self.0.network()))?;
        let step = self.bits_of_label();
        let length = range.prefix_len().div_ceil(step).checked_mul(step)?;
        if self.0.prefix_len() < length {
            return None;
        }
        let apex = IpNet::new(self.0.network(), length).ok()?.trunc();
        Some(Self(apex))
    }

    /// Returns the domain name. Its labels are never too long, so it is `None` for no value of this type.
    pub fn name(&self) -> Option<Name> {
        let length = usize::from(self.0.prefix_len());
        let (mut labels, family): (Vec<String>, _) = match self.0.network() {
            IpAddr::V4(address) => (address.octets().map(|octet| octet.to_string()).into(), "in-addr"),
            IpAddr::V6(address) => {
                (format!("{:032x}", address.to_bits()).chars().map(String::from).collect(), "ip6")
            }
        };
        labels.truncate(length / usize::from(self.bits_of_label()));
        labels.reverse();
        let labels = labels.iter().map(String::as_str).chain([family, "arpa"]);
        Name::from_labels(labels.map(str::as_bytes)).ok()
    }

    fn bits_of_label(&self) -> u8 {
        match self.0 {
            IpNet::V4(_) => BITS_V4,
            IpNet::V6(_) => BITS_V6,
        }
    }
}

impl From<IpAddr> for ReverseName {
    fn from(address: IpAddr) -> Self {
        Self(address.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(name: &str) -> Option<ReverseName> {
        let labels = name.split('.').filter(|label| !label.is_empty());
        ReverseName::of(&Name::from_labels(labels.map(str::as_bytes)).unwrap())
    }

    fn zone(name: &str, ranges: &[&str]) -> Option<String> {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let zone = read(name)?.zone(&ranges)?;
        Some(zone.name()?.to_ascii())
    }

    #[test]
    fn names_of_the_specification() {
        let ipv4 = read("1.0.3.10.in-addr.arpa.").unwrap();
        assert_eq!(ipv4.address(), Some("10.3.0.1".parse().unwrap()));
        let name = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.";
        assert_eq!(read(name).unwrap().address(), Some("2001:db8::1".parse().unwrap()));
        assert_eq!(read(&name.to_ascii_uppercase()), read(name));
    }

    #[test]
    fn other_names_are_none() {
        for name in [
            ".",
            "arpa.",
            "1.uri.arpa.",
            "10.in-addr.example.",
            "256.in-addr.arpa.",
            "01.in-addr.arpa.",
            "+1.in-addr.arpa.",
            "a.in-addr.arpa.",
            "0.1.0.3.10.in-addr.arpa.",
            "g.ip6.arpa.",
            "10.ip6.arpa.",
        ] {
            assert_eq!(read(name), None, "{name}");
        }
    }

    #[test]
    fn partial_names_are_ranges() {
        let partial = read("3.10.in-addr.arpa.").unwrap();
        assert_eq!(partial.address(), None);
        assert_eq!(partial.range(), "10.3.0.0".parse().unwrap()..="10.3.255.255".parse().unwrap());
        assert_eq!(read("in-addr.arpa.").unwrap().range().start(), &IpAddr::from([0, 0, 0, 0]));
    }

    #[test]
    fn zones_are_on_label_boundaries() {
        let ranges = ["10.96.0.0/12", "fd00:1::/108"];
        assert_eq!(zone("1.0.97.10.in-addr.arpa.", &ranges).as_deref(), Some("97.10.in-addr.arpa."));
        assert_eq!(zone("97.10.in-addr.arpa.", &ranges).as_deref(), Some("97.10.in-addr.arpa."));
        assert_eq!(zone("10.in-addr.arpa.", &ranges), None);
        assert_eq!(zone("112.10.in-addr.arpa.", &ranges), None);
        let inside = ReverseName::from("fd00:1::5".parse::<IpAddr>().unwrap()).name().unwrap().to_ascii();
        let apex = zone(&inside, &ranges).unwrap();
        assert!(inside.ends_with(&apex));
        assert_eq!(apex.matches('.').count(), 108 / 4 + 2);
        assert_eq!(zone("1.2.3.4.in-addr.arpa.", &[]), None);
        assert_eq!(zone("1.2.3.4.in-addr.arpa.", &["0.0.0.0/0"]).as_deref(), Some("in-addr.arpa."));
    }

    proptest! {
        #[test]
        fn names_lead_back_to_their_address(address: IpAddr) {
            let name = ReverseName::from(address).name().unwrap();
            prop_assert_eq!(&name, &Name::from(address));
            prop_assert_eq!(ReverseName::of(&name).and_then(|name| name.address()), Some(address));
        }
    }
}
