//! Modes: which one runs, whether this node can run it, and how its data planes are created.
//!
//! The input is the configuration and the node. The output is data planes for the engine. Only this module knows all
//! modes.

mod iptables;
mod ipvs;
mod userspace;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_backend::drift::Own;
use portolan_backend::engine::Boxed;
use portolan_backend::iptables::Meter;
use portolan_backend::leftovers::Keep;
use portolan_backend::nft::Nftables;
use portolan_backend::userspace::Remains;
use portolan_backend::{Claims, Error};
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
    /// The mode that the configuration names, if any.
    pub(super) wanted: Option<Mode>,
    pub(super) mode: Mode,
    pub(super) reason: Reason,
    /// In the userspace mode: how packets are captured, and why.
    pub(super) capture: Option<(Capture, String)>,
}

/// Why a mode was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// The configuration names it.
    Configured,
    /// The configuration names no mode. This is kube-proxy's default.
    Default,
    /// The configuration names no mode, and iptables cannot be used.
    NoIptables(String),
    /// The configuration names IPVS, and this node lacks something for it.
    NoIpvs(String),
}

impl Reason {
    /// Returns the value of a metric label.
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

/// Chooses the mode and writes it into the configuration. If none is named, the mode is iptables, or nftables if
/// iptables cannot be used. If IPVS is named, the node lacks something for it and `falls_back` is set, the mode is
/// iptables. In the userspace mode, also chooses how packets are captured, unless `capture` says so.
///
/// # Errors
/// The configuration is invalid in that mode.
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

/// Logs which mode runs.
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
    /// Returns the text to report if another mode runs than the configured one.
    pub(super) fn fallback(&self) -> Option<String> {
        let wanted = self.wanted.filter(|wanted| *wanted != self.mode)?;
        let mode = self.mode.name();
        Some(format!("mode {mode} runs in place of {}: {}", wanted.name(), self.reason))
    }

    /// Returns the configured mode as the value of a metric label. Empty if none is named.
    pub(super) fn wanted(&self) -> &'static str {
        self.wanted.map_or("", Mode::name)
    }
}

/// Returns why this node cannot run the configured mode in a family. Leaves nothing in the kernel.
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

/// The options from which a data plane is created, apart from the [`Settings`] that it can change while it runs. Two
/// equal blueprints give equivalent data planes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Blueprint {
    Nftables,
    Iptables(portolan_backend::iptables::Options),
    Ipvs(ipvs::Options),
    Userspace(userspace::Options),
}

/// Counters of the data planes that metrics read.
#[derive(Debug, Clone, Default)]
pub(super) struct Meters {
    pub(super) iptables: PerFamily<Arc<Meter>>,
    pub(super) ipvs: PerFamily<Arc<portolan_backend::ipvs::Meter>>,
}

impl Meters {
    /// Returns how many real servers of a family are draining. `None` if the IPVS mode has not run.
    pub(super) fn draining(&self, family: Family) -> Option<u64> {
        self.ipvs.get(family).draining().and_then(|count| u64::try_from(count).ok())
    }
}

/// The state that data planes share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) meters: Meters,
    pub(super) relays: Relays,
}

/// A new data plane. It has not changed any rule yet.
pub(super) struct Made {
    pub(super) dataplane: Boxed,
    /// The rules that this data plane owns, if the kernel sends notifications when other programs change them.
    pub(super) own: Option<Own>,
}

impl Blueprint {
    /// Returns true if the rules have kube-proxy's names. The removal of kube-proxy's rules would then remove them
    /// too.
    pub(super) const fn has_names_of_kube_proxy(&self) -> bool {
        match self {
            Self::Iptables(_) | Self::Ipvs(_) => true,
            Self::Userspace(options) => options.redirect.is_some(),
            Self::Nftables => false,
        }
    }

    /// Returns the blueprint of the mode that replaces the relay when the process ends.
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

    /// Returns true if packets go to a relay.
    pub(super) const fn captures(&self) -> bool {
        matches!(self, Self::Userspace(_))
    }

    /// Returns the blueprint that a configuration asks for on this node.
    pub(super) fn new(configuration: &Configuration, family: Family, node: &settings::Node<'_>) -> Self {
        match configuration.mode_or_default() {
            Mode::Nftables => Self::Nftables,
            Mode::Iptables => Self::Iptables(iptables::options(configuration, family, node)),
            Mode::Ipvs => Self::Ipvs(ipvs::options(configuration)),
            Mode::Userspace => Self::Userspace(userspace::options(configuration, family, node)),
        }
    }

    /// Creates the data plane. Writes the kernel settings that it needs.
    pub(super) fn make(&self, settings: Settings, shared: &mut Shared) -> Result<Made, Error> {
        match self {
            Self::Nftables => {
                let dataplane = Nftables::open(settings)?;
                let own = Some(dataplane.own());
                Ok(Made { dataplane: Box::new(dataplane), own })
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

/// Adds the relay's listeners to the serving endpoints of UDP Services, so that flows to the relay do not count as
/// stale.
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

/// Writes the kernel settings of the mode for `--init-only`, before the Node object is known.
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

/// Sets the kernel settings of the IPVS mode back to the kernel's defaults. `strict_arp` is `ipvs.strictARP`, if
/// known. Returns how many could not be written.
pub(super) fn put_back_ipvs(strict_arp: Option<bool>) -> usize {
    ipvs::put_back(strict_arp)
}

/// Returns data planes of other modes, whose rules an earlier run may have left. The iptables mode is not among them:
/// its rules have kube-proxy's names and are removed with kube-proxy's leftovers.
pub(super) fn former(configuration: &Configuration, family: Family) -> Vec<Boxed> {
    let mode = configuration.mode_or_default();
    let mut former: Vec<Boxed> = Vec::new();
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

/// Returns what the mode, or draining connections of a former mode, use of kube-proxy's leftovers.
pub(super) fn keep(configuration: &Configuration, families: &[Family], chains: Vec<Claims>) -> Keep {
    let drains = || families.iter().any(|&family| ipvs::former(configuration, family).is_some());
    let ipvs = configuration.mode_or_default() == Mode::Ipvs || drains();
    Keep { chains, ipvs, firewall: true, exclude: configuration.ipvs.exclude_cidrs.clone() }
}
