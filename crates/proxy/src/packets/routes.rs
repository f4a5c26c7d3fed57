//! The routes and the reverse-path filters of this node, and whether it forwards.

use std::net::{IpAddr, Ipv4Addr};

use portolan_doctor::finding::sysctl_name;
use portolan_explain::{Filter, Lead, Routes, Strictness, Way};
use portolan_model::Family;
use portolan_model::catalog::PerFamily;
use portolan_node::sysctl::Host;
use portolan_sock::routes::{self, Route};
use portolan_sock::{Errno, SocketError, addresses};
use portolan_userspace::RULE_PRIORITY;
use portolan_wire::route::policy::MarkRule;
use portolan_wire::route::{AF_INET, AF_INET6};

/// The folder of kernel settings.
const ROOT: &str = "/proc/sys";
/// The folder of the IPv4 settings of interfaces, below that one.
const SETTINGS: &str = "net/ipv4/conf";
/// The folder of the IPv6 settings of interfaces.
const SETTINGS_IPV6: &str = "net/ipv6/conf";
/// Folders of settings that are no interface's.
const NO_INTERFACES: [&str; 3] = ["all", "default", "lo"];

/// What the kernel says of the network namespace of the thread that reads it.
#[derive(Debug)]
pub(super) struct NodeRoutes {
    routes: routes::Routes,
    /// True if routes depend on the destination only, besides those of our own relay's packets. A packet may have a mark
    /// that a rule of routing tests.
    is_plain: PerFamily<bool>,
    addresses: Vec<(IpAddr, String)>,
    host: Host,
}

impl NodeRoutes {
    /// Lists interfaces and addresses, without those that the IPVS mode adds for Services.
    pub(super) fn read() -> Result<Self, SocketError> {
        let routes = routes::Routes::open()?;
        let is_ours = |rule: &Option<MarkRule>| rule.is_some_and(|rule| rule.priority == RULE_PRIORITY);
        // A kernel without IPv6 has no list of its rules.
        let is_plain = |family| routes.policies(family).is_ok_and(|rules| rules.iter().all(is_ours));
        Ok(Self {
            is_plain: PerFamily { ipv4: is_plain(AF_INET), ipv6: is_plain(AF_INET6) },
            routes,
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

    fn forwards(&self, family: Family, interface: Option<&str>) -> Option<bool> {
        let names = |folder: &str| self.host.names(&format!("{ROOT}/{folder}"));
        let value = |folder: &str, interface: &str, setting: &str| {
            self.host.read(&format!("{ROOT}/{folder}/{interface}/{setting}"))?.parse::<u8>().ok()
        };
        forwards(family, interface, names, value)
    }

    fn lead(&self, destination: IpAddr) -> Lead {
        if !*self.is_plain.get(Family::of(destination)) {
            return Lead::Unknown;
        }
        self.routes.lead(destination).map_or(Lead::Unknown, of_kernel)
    }
}

fn of_kernel(lead: routes::Lead) -> Lead {
    match lead {
        routes::Lead::Here | routes::Lead::Through { has_carrier: true, .. } => Lead::On,
        routes::Lead::Through { interface, has_carrier: false } => Lead::NoCarrier { interface },
        routes::Lead::Refused(Errno::ENETUNREACH) => Lead::NoRoute,
        routes::Lead::Refused(Errno::EHOSTUNREACH | Errno::EACCES) => Lead::Refuses,
        routes::Lead::Refused(Errno::EINVAL) => Lead::Discards,
        routes::Lead::Refused(_) => Lead::Unknown,
    }
}

/// Returns true if the node forwards packets of a family that arrive at an interface, or at any. `names` lists a folder of
/// settings, and `value` reads one.
fn forwards(
    family: Family,
    interface: Option<&str>,
    names: impl Fn(&str) -> Vec<String>,
    value: impl Fn(&str, &str, &str) -> Option<u8>,
) -> Option<bool> {
    let (folder, setting) = match family {
        Family::Ipv4 => (SETTINGS, "forwarding"),
        // Of IPv6 one setting decides for all interfaces. Since Linux 6.17 an interface may be an exception.
        Family::Ipv6 if value(SETTINGS_IPV6, "all", "forwarding")? != 0 => return Some(true),
        Family::Ipv6 => (SETTINGS_IPV6, "force_forwarding"),
    };
    let names: Vec<String> =
        names(folder).into_iter().filter(|name| !NO_INTERFACES.contains(&name.as_str())).collect();
    let is_on = |name: &String| value(folder, name, setting).is_some_and(|value| value != 0);
    match interface {
        // The name may come from a command line, and is no path.
        Some(interface) => names.iter().find(|name| *name == interface).map(is_on),
        // Without any interface, the settings could not be listed.
        None => (!names.is_empty()).then(|| names.iter().any(is_on)),
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

    #[test]
    fn an_interface_forwards_or_any() {
        let names = |_: &str| ["all", "default", "lo", "eth0", "cali1"].map(str::to_owned).to_vec();
        let found = |family, interface: Option<&str>, on: &[(&str, &str)]| {
            let value = |_: &str, name: &str, setting: &str| {
                Some(u8::from(on.iter().any(|(of, which)| (*of, *which) == (name, setting))))
            };
            forwards(family, interface, names, value)
        };
        let (four, six) = (Family::Ipv4, Family::Ipv6);
        assert_eq!(found(four, None, &[("all", "forwarding"), ("lo", "forwarding")]), Some(false));
        assert_eq!(found(four, None, &[("cali1", "forwarding")]), Some(true));
        assert_eq!(found(four, Some("eth0"), &[("cali1", "forwarding")]), Some(false));
        assert_eq!(found(four, Some("../eth0"), &[]), None);
        assert_eq!(found(six, Some("eth0"), &[("eth0", "forwarding")]), Some(false));
        assert_eq!(found(six, Some("eth0"), &[("all", "forwarding")]), Some(true));
        assert_eq!(found(six, Some("eth0"), &[("eth0", "force_forwarding")]), Some(true));
        assert_eq!(forwards(six, None, names, |_: &str, _: &str, _: &str| None), None);
        assert_eq!(forwards(four, None, |_: &str| Vec::new(), |_: &str, _: &str, _: &str| Some(0)), None);
    }
}
