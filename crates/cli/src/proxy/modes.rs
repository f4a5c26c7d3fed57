//! Modes: which one runs, whether this node can run it, and the data planes of each.
//!
//! Configuration and node flow in; data planes, ready for the engine, flow out. This is the only place that knows all of
//! the modes.

mod iptables;
mod ipvs;
mod userspace;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_backend::dataplane::Chains;
use portolan_backend::iptables::Meter;
use portolan_backend::leftovers::Keep;
use portolan_backend::nft::{Nftables, Own};
use portolan_backend::userspace::Remains;
use portolan_backend::{Dataplane, Error};
use portolan_model::catalog::{PerFamily, UdpService};
use portolan_model::{Family, Settings};
use portolan_node::config::{Capture, Configuration, FieldErrors, Mode};

use super::checks::Finding;
use super::settings;
pub(super) use iptables::{are_loopback_addresses_routed, route_localnet};
pub(super) use userspace::{RelayCounters, Relays};

/// The mode that runs, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The one that the configuration names, if it does.
    pub(super) wanted: Option<Mode>,
    pub(super) mode: Mode,
    pub(super) reason: Reason,
    /// In the userspace mode, how it gets packets, and why.
    pub(super) capture: Option<(Capture, String)>,
}

/// Why a mode is the one that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// The configuration names it.
    Configured,
    /// The configuration names none: this is kube-proxy's choice.
    Default,
    /// The configuration names none, and iptables cannot be used.
    NoIptables(String),
    /// The configuration names IPVS, for which this node lacks something.
    NoIpvs(String),
}

impl Reason {
    /// For a label.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Default => "default",
            Self::NoIptables(_) => "no_iptables",
            Self::NoIpvs(_) => "no_ipvs",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("the configuration says so"),
            Self::Default => f.write_str("the configuration names no mode, and kube-proxy takes this one"),
            Self::NoIptables(why) => {
                write!(f, "the configuration names no mode, and iptables cannot be used: {why}")
            }
            Self::NoIpvs(missing) => {
                write!(f, "the configuration says ipvs, for which this node lacks something: {missing}")
            }
        }
    }
}

/// Puts the mode that runs into a configuration that names none, or IPVS where this node lacks something for it and
/// another mode may run in its place (`falls_back`). In the userspace mode, finds out how to capture where that is not said.
///
/// # Errors
/// What is wrong with the configuration in that mode.
pub(super) fn settle(
    configuration: &mut Configuration,
    families: &[Family],
    falls_back: bool,
    capture: Option<Capture>,
) -> Result<Choice, FieldErrors> {
    let wanted = configuration.mode;
    let (mode, reason) = match wanted {
        Some(Mode::Ipvs) if falls_back => match ipvs::missing(configuration, families) {
            Some(missing) => (Mode::Iptables, Reason::NoIpvs(missing)),
            None => (Mode::Ipvs, Reason::Configured),
        },
        Some(mode) => (mode, Reason::Configured),
        None => {
            let failures: Vec<String> =
                families.iter().filter_map(|&family| iptables::attempt(family).err()).collect();
            if failures.len() < families.len() {
                (Mode::Iptables, Reason::Default)
            } else {
                (Mode::Nftables, Reason::NoIptables(failures.join("; ")))
            }
        }
    };
    if wanted != Some(mode) {
        configuration.mode = Some(mode);
        configuration.validate()?;
    }
    let capture =
        (mode == Mode::Userspace).then(|| userspace::choose_capture(configuration, families, capture));
    configuration.capture = capture.as_ref().map_or_else(Capture::default, |(capture, _)| *capture);
    Ok(Choice { wanted, mode, reason, capture })
}

/// Says which mode runs, in the log.
pub(super) fn log(choice: &Choice) {
    let (mode, reason) = (choice.mode.name(), &choice.reason);
    if choice.fallback().is_some() {
        tracing::warn!(mode, %reason, "mode chosen; --ipvs-fallback=false makes this an error");
    } else {
        tracing::info!(mode, %reason, "mode chosen");
    }
    if let Some((capture, reason)) = &choice.capture {
        tracing::info!(capture = capture.name(), %reason, "way to capture chosen");
    }
}

impl Choice {
    /// What is told where another mode runs than the one that the configuration names.
    pub(super) fn fallback(&self) -> Option<String> {
        let wanted = self.wanted.filter(|wanted| *wanted != self.mode)?;
        let mode = self.mode.name();
        Some(format!("mode {mode} runs in place of {}: {}", wanted.name(), self.reason))
    }

    /// The mode that the configuration names, for a label.
    pub(super) fn wanted(&self) -> &'static str {
        self.wanted.map_or("", Mode::name)
    }
}

/// What keeps this node from running the mode of a configuration in a family. Trying leaves nothing behind.
pub(super) fn trial(configuration: &Configuration, family: Family) -> Option<Finding> {
    match configuration.mode_or_default() {
        Mode::Nftables => {
            let tried = Nftables::open(settings::neutral(family)).and_then(|mut dataplane| dataplane.probe());
            tried.err().map(|error| Finding::Kernel { family, reason: error.to_string() })
        }
        Mode::Iptables => iptables::attempt(family).err().map(|reason| Finding::Iptables { family, reason }),
        Mode::Ipvs => ipvs::missing(configuration, &[family]).map(|reason| Finding::Ipvs { family, reason }),
        Mode::Userspace => match configuration.capture {
            Capture::Tproxy => {
                let tried = userspace::attempt(configuration, family);
                tried.err().map(|error| Finding::Userspace { family, reason: error.to_string() })
            }
            Capture::Redirect => {
                iptables::attempt(family).err().map(|reason| Finding::Iptables { family, reason })
            }
        },
    }
}

/// What a data plane is made of, besides the settings that it takes in while it runs. Two that are equal make no
/// difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blueprint {
    Nftables,
    Iptables(portolan_backend::iptables::Options),
    Ipvs(ipvs::Options),
    Userspace(userspace::Options),
}

/// Numbers of modes that others read.
#[derive(Debug, Clone, Default)]
pub(super) struct Meters {
    pub(super) iptables: PerFamily<Arc<Meter>>,
    pub(super) ipvs: PerFamily<Arc<portolan_backend::ipvs::Meter>>,
}

impl Meters {
    /// How many real servers of a family go on with connections only, where the IPVS mode ran.
    pub(super) fn draining(&self, family: Family) -> Option<u64> {
        self.ipvs.get(family).draining().and_then(|count| u64::try_from(count).ok())
    }
}

/// What data planes share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) meters: Meters,
    pub(super) relays: Relays,
}

/// A data plane that changes nothing yet.
pub(super) struct Made {
    pub(super) dataplane: Box<dyn Dataplane + Send>,
    /// Where changes by others are noticed by notification, what is its own.
    pub(super) own: Option<Own>,
    pub(super) chains: Option<Chains>,
}

impl Blueprint {
    /// Whether its rules have kube-proxy's names, so that whoever removes kube-proxy's would remove them.
    pub(super) const fn has_names_of_kube_proxy(&self) -> bool {
        match self {
            Self::Iptables(_) | Self::Ipvs(_) => true,
            Self::Userspace(options) => options.redirect.is_some(),
            Self::Nftables => false,
        }
    }

    /// Of the mode that takes the relay's place when the process ends.
    pub(super) fn without_relay(
        configuration: &Configuration,
        family: Family,
        node: &settings::Node<'_>,
    ) -> Self {
        match userspace::options(configuration, family, node).redirect {
            Some(options) => Self::Iptables(options),
            None => Self::Nftables,
        }
    }

    /// Whether packets go to a relay.
    pub(super) const fn captures(&self) -> bool {
        matches!(self, Self::Userspace(_))
    }

    /// The one that a configuration asks for on this node.
    pub(super) fn new(configuration: &Configuration, family: Family, node: &settings::Node<'_>) -> Self {
        match configuration.mode_or_default() {
            Mode::Nftables => Self::Nftables,
            Mode::Iptables => Self::Iptables(iptables::options(configuration, family, node)),
            Mode::Ipvs => Self::Ipvs(ipvs::options(configuration)),
            Mode::Userspace => Self::Userspace(userspace::options(configuration, family, node)),
        }
    }

    /// Makes the data plane. Kernel settings that it needs are written.
    pub(super) fn make(&self, settings: Settings, shared: &mut Shared) -> Result<Made, Error> {
        match self {
            Self::Nftables => {
                let dataplane = Nftables::open(settings)?;
                let own = Some(dataplane.own());
                Ok(Made { dataplane: Box::new(dataplane), own, chains: None })
            }
            Self::Iptables(options) => {
                let meter = Arc::clone(shared.meters.iptables.get(settings.family));
                iptables::make(options, settings, meter)
            }
            Self::Ipvs(options) => {
                let meter = Arc::clone(shared.meters.ipvs.get(settings.family));
                ipvs::make(options, settings, meter)
            }
            Self::Userspace(options) => userspace::make(options, settings, &mut shared.relays),
        }
    }
}

/// Adds to endpoints that serve datagrams what has them in their place, so that the flows to it are not taken for stale.
pub(super) fn serve_by_relay(
    configuration: &Configuration,
    node_ip: Option<IpAddr>,
    services: &mut [UdpService],
) {
    let listeners = userspace::listeners(configuration, node_ip);
    for service in services.iter_mut().filter(|service| !service.serving.is_empty()) {
        service.serving.extend(&listeners);
    }
}

/// Writes the kernel settings of the mode, before anything is known of the Node.
pub(super) fn initialise(configuration: &Configuration, node: &settings::Node<'_>) {
    let ports = settings::node_ports(configuration, node.ips, Family::Ipv4);
    match configuration.mode_or_default() {
        Mode::Iptables if iptables::wants_localhost(configuration, &ports, Family::Ipv4) => {
            iptables::routes_localnet();
        }
        Mode::Ipvs => ipvs::write_settings(configuration.ipvs.strict_arp),
        Mode::Iptables | Mode::Nftables | Mode::Userspace => {}
    }
}

/// Puts kernel settings of the IPVS mode back; `strict_arp` is `ipvs.strictARP`, where it is known. Answers how many could
/// not be.
pub(super) fn put_back_ipvs(strict_arp: Option<bool>) -> usize {
    ipvs::put_back(strict_arp)
}

/// Data planes of other modes, whose rules an earlier run may have left. Those of the iptables mode are not among them:
/// as its rules are kube-proxy's, they go with what kube-proxy left.
pub(super) fn former(configuration: &Configuration, family: Family) -> Vec<Box<dyn Dataplane + Send>> {
    let mode = configuration.mode_or_default();
    let mut former: Vec<Box<dyn Dataplane + Send>> = Vec::new();
    if mode != Mode::Userspace || configuration.capture != Capture::Tproxy {
        former.push(Box::new(Remains::new(family)));
    }
    if mode != Mode::Nftables {
        match Nftables::open(settings::neutral(family)) {
            Ok(dataplane) => former.push(Box::new(dataplane)),
            Err(error) => {
                tracing::warn!(%family, %error, "rules of the nftables mode, if there are any, stay");
            }
        }
    }
    if mode != Mode::Ipvs
        && let Some(dataplane) = ipvs::former(configuration, family)
    {
        former.push(Box::new(dataplane));
    }
    former
}

/// What a mode, or connections of a former one, use of what kube-proxy may have left.
pub(super) fn keep(configuration: &Configuration, families: &[Family], chains: Vec<Chains>) -> Keep {
    let drains = || families.iter().any(|&family| ipvs::former(configuration, family).is_some());
    let ipvs = configuration.mode_or_default() == Mode::Ipvs || drains();
    Keep { chains, ipvs, firewall: true, exclude: configuration.ipvs.exclude_cidrs.clone() }
}
