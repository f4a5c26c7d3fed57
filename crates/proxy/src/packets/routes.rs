//! The IPv4 routes and the reverse-path filters of this node.

use std::net::{IpAddr, Ipv4Addr};

use portolan_doctor::finding::sysctl_name;
use portolan_explain::{Filter, Routes, Strictness, Way};
use portolan_node::sysctl::Host;
use portolan_sock::SocketError;
use portolan_sock::addresses;
use portolan_sock::routes::{self, Route};

/// The folder of kernel settings.
const ROOT: &str = "/proc/sys";
/// The folder of the IPv4 settings of interfaces, below that one.
const SETTINGS: &str = "net/ipv4/conf";

/// What the kernel says of the network namespace of the thread that reads it.
#[derive(Debug)]
pub(super) struct NodeRoutes {
    routes: routes::Routes,
    addresses: Vec<(IpAddr, String)>,
    host: Host,
}

impl NodeRoutes {
    /// Lists interfaces and addresses, without those that the IPVS mode adds for Services.
    pub(super) fn read() -> Result<Self, SocketError> {
        Ok(Self {
            routes: routes::Routes::open()?,
            addresses: addresses::list_with_devices_except(portolan_ipvs::DEVICE)?,
            host: Host::default(),
        })
    }
}

impl Routes for NodeRoutes {
    fn way_to(&self, destination: Ipv4Addr) -> Way {
        match self.routes.to(destination) {
            Ok(Some(Route { interface, source })) => Way::Through { interface, source },
            Ok(None) => Way::None,
            Err(_) => Way::Unknown,
        }
    }

    fn accepts(&self, interface: &str, source: Ipv4Addr, destination: Ipv4Addr) -> Option<bool> {
        self.routes.accepts(interface, source, destination).ok()?
    }

    fn filter(&self, interface: &str) -> Option<Filter> {
        let value = |path: &str| self.host.read(&format!("{ROOT}/{path}"))?.parse::<u8>().ok();
        // The name may come from a command line, and is no path.
        let names = self.host.names(&format!("{ROOT}/{SETTINGS}"));
        let own = names.iter().find(|name| *name == interface)?;
        filter(own, value)
    }

    fn holder(&self, address: Ipv4Addr) -> Option<String> {
        let is_it = |(known, _): &&(IpAddr, String)| *known == IpAddr::V4(address);
        self.addresses.iter().find(is_it).map(|(_, interface)| interface.clone())
    }

    fn has_address(&self, interface: &str) -> bool {
        self.addresses.iter().any(|(address, name)| address.is_ipv4() && name == interface)
    }
}

/// Returns the filter of an interface: the larger one of its value and that of all interfaces.
fn filter(interface: &str, value: impl Fn(&str) -> Option<u8>) -> Option<Filter> {
    let path = |name: &str| format!("{SETTINGS}/{name}/rp_filter");
    let (own, all) = (path(interface), path("all"));
    let (of_own, of_all) = (value(&own)?, value(&all)?);
    let (path, value) = if of_all > of_own { (all, of_all) } else { (own, of_own) };
    let strictness = match value {
        0 => Strictness::Off,
        1 => Strictness::Strict,
        _ => Strictness::Loose,
    };
    Some(Filter { strictness, setting: format!("{}={value}", sysctl_name(&path)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_value_decides() {
        let found = |own, all| {
            let value = |path: &str| Some(if path.contains("/all/") { all } else { own });
            filter("eth0.100", value).map(|filter| (filter.strictness, filter.setting))
        };
        let with = |strictness, setting: &str| Some((strictness, setting.to_owned()));
        assert_eq!(found(0, 0), with(Strictness::Off, "net.ipv4.conf.eth0/100.rp_filter=0"));
        assert_eq!(found(0, 1), with(Strictness::Strict, "net.ipv4.conf.all.rp_filter=1"));
        assert_eq!(found(2, 1), with(Strictness::Loose, "net.ipv4.conf.eth0/100.rp_filter=2"));
        assert_eq!(filter("eth0", |_| None), None);
    }
}
