//! The network device of this mode, and the addresses of this node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

use portolan_sock::{Socket, SocketError};
use portolan_wire::route::{Address, Scope};

/// The network device of this mode, with kube-proxy's name. Its addresses make this host accept packets to Services.
pub const DEVICE: &str = "kube-ipvs0";

/// With 1, the kernel refuses IPv6 addresses of the device. A new device has the value of `net.ipv6.conf.default`. The setting
/// goes with the device, so a clean-up need not put it back.
pub(super) const DISABLE_IPV6: &str = "/proc/sys/net/ipv6/conf/kube-ipvs0/disable_ipv6";

/// The addresses of this node in the family.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// The addresses of our network device.
    pub device: BTreeSet<IpAddr>,
    /// Those of them that are not removed from a device that stays: loopback addresses and those of link scope. The kernel adds
    /// one of link scope to each device that is set up (`addrconf_dev_config` in `net/ipv6/addrconf.c`), and network managers set
    /// devices up. kube-proxy leaves them, too.
    pub(super) staying: BTreeSet<IpAddr>,
    /// The addresses of other devices, without loopback addresses and those of link scope.
    pub(super) node: BTreeSet<IpAddr>,
}

impl Addresses {
    /// Adds an address of a network device. `device` is the index of our device.
    pub(super) fn add(&mut self, address: &Address, device: u32) {
        if address.index == device {
            self.device.insert(address.local);
            if address.local.is_loopback() || address.scope == Scope::LINK {
                self.staying.insert(address.local);
            }
        } else if !address.local.is_loopback() && address.scope != Scope::LINK {
            self.node.insert(address.local);
        }
    }
}

/// Returns the index of the network device, if the device exists.
pub fn device(socket: &mut Socket) -> Result<Option<u32>, SocketError> {
    portolan_sock::addresses::device_index(socket, DEVICE)
}

/// Lets the device have IPv6 addresses. Writes the setting only if it differs. Does nothing if the file is missing: the kernel
/// has no IPv6.
pub(super) fn enable_ipv6(setting: &Path) -> io::Result<()> {
    match fs::read_to_string(setting) {
        Ok(value) if value.trim() == "0" => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => fs::write(setting, "0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_has_ipv6_unless_the_kernel_has_none() {
        assert!(DISABLE_IPV6.contains(DEVICE));
        let folder = std::env::temp_dir().join(format!("portolan-ipvs-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let setting = folder.join("disable_ipv6");
        enable_ipv6(&setting).unwrap();
        assert!(!setting.exists());
        fs::write(&setting, "1\n").unwrap();
        enable_ipv6(&setting).unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "0");
        assert!(enable_ipv6(&folder).is_err(), "it cannot be written");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_address_of_link_scope_stays_on_the_device() {
        let mut addresses = Addresses::default();
        for (index, text, scope) in [
            (7, "fd00::1", Scope::UNIVERSE),
            (7, "fe80::1", Scope::LINK),
            (7, "::1", Scope::UNIVERSE),
            (2, "fd00::2", Scope::UNIVERSE),
            (2, "fe80::2", Scope::LINK),
            (1, "::1", Scope::UNIVERSE),
        ] {
            let local = text.parse().unwrap();
            addresses.add(&Address { index, local, peer: local, prefix: 64, flags: 0, scope }, 7);
        }
        let texts = |set: &BTreeSet<IpAddr>| set.iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&addresses.device), ["::1", "fd00::1", "fe80::1"]);
        assert_eq!(texts(&addresses.staying), ["::1", "fe80::1"]);
        assert_eq!(texts(&addresses.node), ["fd00::2"]);
    }
}
