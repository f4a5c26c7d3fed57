//! What the modes nftables, iptables and IPVS read of the kernel. Any rules are described in terms of Services, without a panic.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use portolan_iptables::Reading;
use portolan_model::Family;
use portolan_model::observed::Observed;

fn describe(observed: &Observed) {
    for difference in observed.difference(&[]) {
        assert!(!difference.to_string().is_empty());
    }
}

/// The output of `iptables-save -c`.
pub(crate) fn iptables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for family in Family::BOTH {
        if let Some(reading) = Reading::of_save(family, &text) {
            describe(&reading.observed);
        }
    }
}

/// Messages of IPVS, ipset and rtnetlink, then the output of `iptables-save`.
pub(crate) fn ipvs(bytes: &[u8]) {
    let exclude = IpNet::from(Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 28));
    for family in Family::BOTH {
        portolan_ipvs::fuzzing::observe(family, bytes, &[exclude]).iter().for_each(describe);
    }
}

/// Messages of `nf_tables`, as tables of Portolan and of kube-proxy.
pub(crate) fn nftables(bytes: &[u8]) {
    for family in Family::BOTH {
        portolan_nftables::fuzzing::observe(family, bytes).iter().for_each(describe);
    }
}
