//! ServiceCIDR objects (networking.k8s.io/v1): validation of their ranges and changes, and of their deletion.

use std::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

use crate::{
    check::{Neighbours, RangeRefusal, check_range, family_of},
    range::AddressRange,
};

/// The reason why `spec.cidrs` is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CidrsRefusal {
    /// There is no entry, or there are more than two.
    #[error("spec.cidrs: has {0} entries; give one, or one of each family")]
    Count(usize),
    /// Both entries are of the same family.
    #[error("spec.cidrs[1]: {0} is of the same family as the first")]
    SameFamily(IpNet),
    /// An entry cannot be a range of cluster IPs. Upstream accepts an IPv6 prefix shorter than /64 and reports it as
    /// ready, but allocates no address from it. Here it is refused.
    #[error("spec.cidrs[{index}]: {reason}")]
    Range {
        /// The index of the entry.
        index: usize,
        /// The reason.
        reason: RangeRefusal,
    },
    /// An entry changed. An update may only add a second entry of the other family.
    #[error("spec.cidrs[{index}]: may not change; only a second range, of the other family, can be added")]
    Immutable {
        /// The index of the entry.
        index: usize,
    },
}

/// Checks `spec.cidrs` of a new ServiceCIDR, or of a changed one with the stored entries `old`. Unchanged entries are
/// not checked again.
pub fn check_cidrs(cidrs: &[IpNet], old: &[IpNet], neighbours: Neighbours<'_>) -> Result<(), CidrsRefusal> {
    let is_stored = |(index, stored): (usize, &IpNet)| cidrs.get(index) == Some(stored);
    if let Some(index) = (0..old.len()).zip(old).position(|entry| !is_stored(entry)) {
        return Err(CidrsRefusal::Immutable { index });
    }
    match *cidrs {
        [first, second] if family_of(first) == family_of(second) => {
            return Err(CidrsRefusal::SameFamily(second));
        }
        [_] | [_, _] => {}
        _ => return Err(CidrsRefusal::Count(cidrs.len())),
    }
    for (index, cidr) in cidrs.iter().enumerate().skip(old.len()) {
        check_range(*cidr, neighbours).map_err(|reason| CidrsRefusal::Range { index, reason })?;
    }
    Ok(())
}

/// Returns the first allocated address that blocks the deletion of a ServiceCIDR, or `None` if it may be deleted.
/// Deletion is allowed if other ranges cover each of its ranges, or if every allocated address stays in some range.
/// `others` are the ranges of ServiceCIDRs that are not being deleted: two that are deleted together must not count
/// for each other.
pub fn blocks_deletion(
    leaving: &[AddressRange],
    others: &[AddressRange],
    allocated: impl IntoIterator<Item = IpAddr>,
) -> Option<IpAddr> {
    if leaving.iter().all(|range| others.iter().any(|other| other.covers(*range))) {
        return None;
    }
    allocated.into_iter().find(|address| {
        leaving.iter().any(|range| range.accepts(*address))
            && !others.iter().any(|range| range.accepts(*address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_may_be_added_and_never_changed() {
        let check = |cidrs: &[&str], old: &[&str]| {
            let nets = |texts: &[&str]| texts.iter().map(|text| net(text)).collect::<Vec<_>>();
            check_cidrs(&nets(cidrs), &nets(old), Neighbours::default())
        };
        let (v4, other, v6) = ("10.0.0.0/24", "10.1.0.0/24", "fd00::/112");
        assert_eq!(check(&[v4], &[]), Ok(()));
        assert_eq!(check(&[v6, v4], &[]), Ok(()));
        assert_eq!(check(&[v4, v6], &[v4]), Ok(()));
        assert_eq!(check(&[v4, v6], &[v4, v6]), Ok(()));
        assert_eq!(check(&[], &[]), Err(CidrsRefusal::Count(0)));
        assert_eq!(check(&[v4, v6, other], &[v4, v6]), Err(CidrsRefusal::Count(3)));
        assert_eq!(check(&[v4, other], &[v4]), Err(CidrsRefusal::SameFamily(net(other))));
        for (cidrs, old, index) in [
            (&[other][..], &[v4][..], 0),
            (&[v6, v4], &[v4], 0),
            (&[v4], &[v4, v6], 1),
            (&[], &[v4], 0),
            (&[v4, "fd01::/112"], &[v4, v6], 1),
        ] {
            assert_eq!(check(cidrs, old), Err(CidrsRefusal::Immutable { index }), "{cidrs:?} {old:?}");
        }
        for (cidrs, index) in [(&["10.0.0.1/24"][..], 0), (&[v4, "fd00::/48"], 1), (&["127.0.0.0/24"], 0)] {
            let refusal = check(cidrs, &[]).unwrap_err();
            assert!(
                matches!(refusal, CidrsRefusal::Range { index: found, .. } if found == index),
                "{refusal}"
            );
        }
        // An entry that was stored before a check became stricter is kept.
        assert_eq!(check(&["127.0.0.0/24", v6], &["127.0.0.0/24"]), Ok(()));
    }

    #[test]
    fn a_range_goes_when_nothing_would_be_left_without_one() {
        let range = |text: &str| AddressRange::new(net(text)).unwrap();
        let (wide, narrow) = (range("192.168.0.0/16"), range("192.168.1.0/24"));
        let addresses =
            |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let edge = addresses(&["192.168.1.7", "192.168.1.0"]);
        // The narrow range lies in the wide one. Its edge addresses belong to the wide range only.
        assert_eq!(blocks_deletion(&[narrow], &[wide], edge.clone()), None);
        assert_eq!(blocks_deletion(&[wide], &[narrow], edge.clone()), Some(edge[1]));
        assert_eq!(blocks_deletion(&[wide], &[narrow], addresses(&["192.168.1.7"])), None);
        assert_eq!(blocks_deletion(&[narrow], &[], edge.clone()), Some(edge[0]));
        assert_eq!(blocks_deletion(&[narrow], &[], addresses(&["10.0.0.1"])), None);
        assert_eq!(blocks_deletion(&[narrow, range("fd00::/64")], &[wide], edge), None);
    }
}
