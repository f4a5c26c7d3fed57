//! The kernel settings that this mode needs. The owner of the node's settings writes them.

use std::str::FromStr;

/// The version of a kernel: major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

/// Parses the output of `uname -r`.
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

/// With 1, packets through virtual servers have conntrack entries. The file exists if the kernel's IPVS supports that.
pub const CONNTRACK_SETTING: &str = "/proc/sys/net/ipv4/vs/conntrack";

/// Returns the files below `/proc/sys` and their values, in the order of writing. Those of IPVS exist once the kernel
/// has loaded its module, which [`available`](super::available) causes. An unknown version counts as a new one.
///
/// - `conntrack`: the masquerading of translated packets needs conntrack.
/// - `conn_reuse_mode` 0: a client that reuses a port waits a second otherwise. Kernels from 5.9 on need no setting
///   for that; those before 4.1 do not have it.
/// - `expire_nodest_conn`: flows whose endpoint is removed start anew.
/// - `expire_quiescent_template`: clients do not stay with an endpoint of weight 0.
/// - `strictARP`: only the interface that has an address answers ARP requests for it and announces it.
pub fn kernel_settings(version: Option<KernelVersion>, strict_arp: bool) -> Vec<(&'static str, u64)> {
    let reuses_badly =
        version.is_some_and(|version| (KernelVersion(4, 1)..KernelVersion(5, 9)).contains(&version));
    let mut settings = vec![(CONNTRACK_SETTING, 1)];
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

/// Returns the kernel's default of a setting of [`kernel_settings`], which a clean-up restores once no virtual server
/// is left (`net/netfilter/ipvs/ip_vs_ctl.c`). `None` for forwarding, which stays on: pods of this node need it
/// without Services, too.
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
    fn port_reuse_needs_a_setting_in_old_kernels_only() {
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
    fn a_clean_up_resets_all_settings_but_forwarding() {
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
