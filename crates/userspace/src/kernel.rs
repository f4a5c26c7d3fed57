//! The kernel's part: the rules that bring packets of Services to the relay, by `tproxy` or by translation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_model::{Capture, Family, Settings};
use portolan_relay::{OWN_MARK, Ports};

use super::routing;
use portolan_engine::dataplane::{Dataplane, Error};
use portolan_iptables::{Iptables, IptablesOptions, Programs, Redirect};
use portolan_nftables::{Connections, Listeners, Nftables};

/// The way in which packets of Services come to the relay.
#[derive(Debug)]
pub(super) enum Kernel {
    /// By `tproxy`, with the destination unchanged.
    Tproxy { rules: Box<Nftables>, connections: Connections },
    /// By translation. The kernel goes on translating existing connections when the rules are gone.
    Redirect(Box<Iptables>),
}

impl Kernel {
    pub(super) fn tproxy(settings: Settings, listeners: Listeners) -> Result<Self, Error> {
        let rules = Box::new(Nftables::open_capture(settings, listeners)?);
        Ok(Self::Tproxy { rules, connections: Connections::open()? })
    }

    pub(super) fn redirect(
        programs: Programs,
        settings: Settings,
        options: IptablesOptions,
        ports: Ports,
    ) -> Self {
        let redirect = Redirect { own_mark: OWN_MARK, ports: (ports.cluster, ports.local) };
        // Node ports must be open on the same addresses as with `tproxy`.
        let options = IptablesOptions { redirect: Some(redirect), localhost_node_ports: false, ..options };
        Self::Redirect(Box::new(Iptables::new(programs, settings, options)))
    }

    /// Returns where the rules are; see [`About::place`](portolan_engine::dataplane::About::place).
    pub(super) const fn place(&self) -> &'static str {
        match self {
            Self::Tproxy { .. } => "userspace",
            Self::Redirect(_) => "userspace-redirect",
        }
    }

    pub(super) fn rules(&mut self) -> &mut (dyn Dataplane + Send) {
        match self {
            Self::Tproxy { rules, .. } => &mut **rules,
            Self::Redirect(rules) => &mut **rules,
        }
    }

    pub(super) fn rules_ref(&self) -> &(dyn Dataplane + Send) {
        match self {
            Self::Tproxy { rules, .. } => &**rules,
            Self::Redirect(rules) => &**rules,
        }
    }

    /// Writes what captured packets need besides rules. Returns how many objects were written.
    pub(super) fn ensure(&mut self, settings: &Settings) -> Result<usize, Error> {
        match self {
            Self::Tproxy { connections, .. } => {
                Ok(routing::ensure(settings)? + connections.ensure(settings)?)
            }
            Self::Redirect(_) => Ok(0),
        }
    }

    /// Removes what packets needed that other rules captured. Returns how many objects were removed or written.
    pub(super) fn remove_others(&self, settings: &Settings) -> Result<usize, Error> {
        match self {
            Self::Tproxy { .. } => Ok(routing::remove_others(settings)?),
            Self::Redirect(_) => Ok(0),
        }
    }

    /// Removes what [`Self::ensure`] writes.
    pub(super) fn remove_rest(&mut self, family: Family) -> Result<(), Error> {
        match self {
            Self::Tproxy { connections, .. } => {
                connections.remove(family)?;
                Ok(routing::remove(family)?)
            }
            Self::Redirect(_) => Ok(()),
        }
    }
}

/// Returns the listeners' addresses that rules must use.
pub(super) fn listeners(capture: Capture, ports: Ports, settings: &Settings) -> Listeners {
    let unspecified = match settings.family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let loopback = match settings.family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let address = match capture {
        Capture::Tproxy => loopback,
        // `REDIRECT` (the unspecified address) translates to the address of the interface that a packet arrives on, which
        // may have none. So it is used only if the node's address is not known.
        Capture::Redirect => settings.node_ip.unwrap_or(unspecified),
    };
    let at = |port| SocketAddr::new(address, port);
    Listeners { cluster: at(ports.cluster), local: at(ports.local) }
}
