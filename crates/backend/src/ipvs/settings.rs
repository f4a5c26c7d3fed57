//! Kernel settings that this mode needs. Whoever owns the node's settings writes them.

use std::str::FromStr;

/// Version of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

/// From what `uname -r` prints.
impl FromStr for KernelVersion {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self(major, minor)),
            _ => Err(()),
        }
    }
}

/// The files below `/proc/sys` and their values, in the order to write them. Those of IPVS are there once the kernel has
/// loaded its module, which [`available`](super::available) makes it do. A version that is not known is taken for a new
/// one.
///
/// - `conntrack`: translated packets are masqueraded only where conntrack follows them.
/// - `conn_reuse_mode` 0: a client that takes a port again waits a second otherwise. Kernels from 5.9 on do better by
///   themselves; those before 4.1 do not have it.
/// - `expire_nodest_conn`: flows whose endpoint is gone start anew.
/// - `expire_quiescent_template`: clients do not stay with an endpoint that takes nothing new.
/// - `strictARP`: other hosts are told of addresses by the interface that has them only.
pub fn kernel_settings(version: Option<KernelVersion>, strict_arp: bool) -> Vec<(&'static str, u64)> {
    let reuses_badly =
        version.is_some_and(|version| (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&version));
    let mut settings = vec![("/proc/sys/net/ipv4/vs/conntrack", 1)];
    if reuses_badly {
        settings.push(("/proc/sys/net/ipv4/vs/conn_reuse_mode", 0));
    }
    settings.extend([
        ("/proc/sys/net/ipv4/vs/expire_nodest_conn", 1),
        ("/proc/sys/net/ipv4/vs/expire_quiescent_template", 1),
        ("/proc/sys/net/ipv4/ip_forward", 1),
    ]);
    if strict_arp {
        settings.extend([
            ("/proc/sys/net/ipv4/conf/all/arp_ignore", 1),
            ("/proc/sys/net/ipv4/conf/all/arp_announce", 2),
        ]);
    }
    settings
}

/// The kernel's own value of those of [`kernel_settings`] that a clean-up takes back once no virtual server is left
/// (`net/netfilter/ipvs/ip_vs_ctl.c`). Forwarding stays on: pods of this node need it without Services, too.
pub fn kernel_default(path: &str) -> Option<u64> {
    match path {
        "/proc/sys/net/ipv4/vs/conn_reuse_mode" => Some(1),
        "/proc/sys/net/ipv4/ip_forward" => None,
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!("6.1.0-18-cloud-amd64".parse(), Ok(KernelVersion(6, 1)));
        assert_eq!("4.19".parse(), Ok(KernelVersion(4, 19)));
        assert_eq!("linux".parse::<KernelVersion>(), Err(()));
        assert!(KernelVersion(5, 10) > KernelVersion(5, 9));
    }

    #[test]
    fn a_port_taken_again_needs_a_setting_in_old_kernels_only() {
        let has = |version| {
            let settings = kernel_settings(version, false);
            settings.contains(&("/proc/sys/net/ipv4/vs/conn_reuse_mode", 0))
        };
        assert!(!has(Some(KernelVersion(4, 0))));
        assert!(has(Some(KernelVersion(4, 1))));
        assert!(has(Some(KernelVersion(5, 8))));
        assert!(!has(Some(KernelVersion(5, 9))));
        assert!(!has(None));
    }

    #[test]
    fn all_but_forwarding_is_taken_back() {
        let settings = kernel_settings(Some(KernelVersion(5, 8)), true);
        let kept: Vec<_> = settings.iter().filter(|(path, _)| kernel_default(path).is_none()).collect();
        assert_eq!(kept, [&("/proc/sys/net/ipv4/ip_forward", 1)]);
        assert!(settings.iter().all(|(path, value)| kernel_default(path) != Some(*value)));
    }

    #[test]
    fn strict_arp_adds_two() {
        assert_eq!(kernel_settings(None, true).len(), kernel_settings(None, false).len() + 2);
    }
}
