//! The modes under test: how the data plane of each is opened, what it does otherwise than nftables mode, and what is
//! in the kernel of it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;
use portolan_backend::Dataplane;
use portolan_backend::iptables::{Iptables, Options, Programs, Variant};
use portolan_backend::ipvs::{self, Ipvs};
use portolan_backend::nft::Nftables;
use portolan_backend::userspace::{TRANSLATED, Userspace, spawn_translated};
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, NodePortAddresses, Protocol, Settings};
use portolan_testkit::Namespace;

/// Says that the kernel has to have IPVS; otherwise tests of it leave themselves out where it has not.
const IPVS_MUST_RUN: &str = "PORTOLAN_TEST_IPVS";
/// What the older iptables locks here: each network namespace is a file of its own, and no test waits for another, or
/// for anything else on this machine.
const LOCK: &str = "/proc/thread-self/ns/net";

/// A mode, with the kernel's part that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// nftables.
    Nftables,
    /// iptables, as a front end of nftables.
    IptablesNft,
    /// iptables with tables of its own.
    IptablesLegacy,
    /// A relay in user space, captured for by `tproxy`.
    Userspace,
    /// The same, captured for by translation, with iptables as a front end of nftables.
    RedirectNft,
    /// The same, with the older iptables.
    RedirectLegacy,
    /// IPVS.
    Ipvs,
}

/// Runs each test, a function of the [`Mode`], in every mode, in a module of the mode's name.
#[macro_export]
macro_rules! in_every_mode {
    ($($test:ident),+ $(,)?) => {
        $crate::in_every_mode!(@ nftables Nftables $($test)+);
        $crate::in_every_mode!(@ iptables_nft IptablesNft $($test)+);
        $crate::in_every_mode!(@ iptables_legacy IptablesLegacy $($test)+);
        $crate::in_every_mode!(@ userspace Userspace $($test)+);
        $crate::in_every_mode!(@ redirect_nft RedirectNft $($test)+);
        $crate::in_every_mode!(@ redirect_legacy RedirectLegacy $($test)+);
        $crate::in_every_mode!(@ ipvs Ipvs $($test)+);
    };
    (@ $module:ident $mode:ident $($test:ident)+) => {
        mod $module {
            $(#[test]
            fn $test() {
                $crate::Mode::$mode.run(super::$test);
            })+
        }
    };
}

/// A mode's own settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeOptions {
    /// Node ports answer on loopback, where the mode can (`iptables.localhostNodePorts`).
    pub localhost_node_ports: bool,
    /// Where node ports answer at some addresses only, 127.0.0.1 is one of them.
    pub lists_loopback: bool,
}

impl Default for ModeOptions {
    fn default() -> Self {
        Self { localhost_node_ports: true, lists_loopback: false }
    }
}

impl Mode {
    /// Runs a test, or says why not: the kernel has nothing to run the mode with.
    pub fn run(self, test: impl FnOnce(Self)) {
        match self.missing() {
            None => test(self),
            Some(missing) => eprintln!("left out: {missing}"),
        }
    }

    /// As rows of decision tables call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::IptablesNft | Self::IptablesLegacy => "iptables",
            Self::Userspace => "userspace",
            Self::RedirectNft | Self::RedirectLegacy => "redirect",
            Self::Ipvs => "ipvs",
        }
    }

    /// Whether the mode carries a protocol.
    pub fn carries(self, protocol: Protocol) -> bool {
        !self.relays() || protocol != Protocol::Sctp
    }

    /// Whether a relay carries what is sent.
    pub const fn relays(self) -> bool {
        matches!(self, Self::Userspace | Self::RedirectNft | Self::RedirectLegacy)
    }

    const fn variant(self) -> Option<Variant> {
        match self {
            Self::Nftables | Self::Userspace | Self::Ipvs => None,
            Self::IptablesNft | Self::RedirectNft => Some(Variant::Nft),
            Self::IptablesLegacy | Self::RedirectLegacy => Some(Variant::Legacy),
        }
    }

    /// Newer kernels may be built without the tables of the older iptables.
    fn missing(self) -> Option<String> {
        let namespace = Namespace::new("look").unwrap();
        if self == Self::Ipvs {
            let missing = namespace.run(|| ipvs::available("rr", &Family::BOTH)).unwrap().err()?;
            assert!(std::env::var_os(IPVS_MUST_RUN).is_none(), "{missing}");
            return Some(missing.to_string());
        }
        if self.variant() != Some(Variant::Legacy) {
            return None;
        }
        let look = |family| save(&namespace, Variant::Legacy, family, "nat");
        Family::BOTH.into_iter().find_map(|family| look(family).err()).filter(|why| {
            ["Table does not exist", "No such file or directory"].iter().any(|text| why.contains(text))
        })
    }

    /// The data plane of a family, made in the network namespace where it will run.
    pub(crate) fn open(self, settings: &Settings, options: ModeOptions) -> Plane {
        let settings = settings.clone();
        if self == Self::Ipvs {
            return open_ipvs(settings);
        }
        let Some(variant) = self.variant() else {
            return Plane(if self == Self::Userspace {
                let options = portolan_relay::Options::default();
                let relay = portolan_relay::spawn(&[settings.family], options).unwrap();
                Box::new(Userspace::open(settings, relay).unwrap())
            } else {
                Box::new(Nftables::open(settings).unwrap())
            });
        };
        if self.relays() {
            return open_redirect(variant, settings);
        }
        if settings.family == Family::Ipv4 {
            std::fs::write("/proc/sys/net/ipv4/conf/all/route_localnet", "1").unwrap();
        }
        let programs = Programs::of(settings.family, variant).unwrap().with_lock(LOCK);
        let loopback_addresses =
            if options.lists_loopback { vec![IpAddr::V4(Ipv4Addr::LOCALHOST)] } else { Vec::new() };
        let options = Options {
            localhost_node_ports: options.localhost_node_ports,
            loopback_addresses,
            ..Options::default()
        };
        Plane(Box::new(Iptables::new(programs, settings, options)))
    }

    /// What the mode does otherwise, for the oracle.
    pub(crate) fn differences(self, settings: &Settings, options: ModeOptions) -> ModeDifferences {
        match self {
            Self::Nftables => return ModeDifferences::default(),
            Self::Userspace => return ModeDifferences::userspace(),
            Self::RedirectNft | Self::RedirectLegacy => return ModeDifferences::redirect(),
            Self::Ipvs => return ModeDifferences::ipvs(),
            Self::IptablesNft | Self::IptablesLegacy => {}
        }
        let loopback = match (&settings.node_port_addresses, settings.family) {
            _ if !options.localhost_node_ports => None,
            (_, Family::Ipv6) => None,
            (NodePortAddresses::MatchAll, _) => Some("127.0.0.0/8".parse().unwrap()),
            (NodePortAddresses::Addresses(_), _) => {
                options.lists_loopback.then(|| IpNet::from(IpAddr::V4(Ipv4Addr::LOCALHOST)))
            }
        };
        ModeDifferences::iptables(loopback.into_iter().collect())
    }

    /// Everything in a namespace that the mode may have written, in an order that does not matter.
    pub(crate) fn ruleset(self, namespace: &Namespace) -> String {
        let mut lines = Vec::new();
        let variant = match self {
            Self::Nftables | Self::Userspace => {
                return namespace.output("nft", &["list", "ruleset"]).unwrap();
            }
            Self::IptablesLegacy | Self::RedirectLegacy => Variant::Legacy,
            Self::IptablesNft | Self::RedirectNft => Variant::Nft,
            Self::Ipvs => {
                lines.extend(around_rules(namespace));
                Variant::Nft
            }
        };
        for family in Family::BOTH {
            for table in ["mangle", "filter", "nat"] {
                let saved = save(namespace, variant, family, table).unwrap();
                let saved = saved.lines().filter(|line| !line.starts_with('#'));
                lines.extend(saved.map(|line| format!("{family} {table} {}", without_counters(line))));
            }
        }
        lines.sort_unstable();
        lines.join("\n")
    }
}

fn open_redirect(variant: Variant, settings: Settings) -> Plane {
    let programs = Programs::of(settings.family, variant).unwrap().with_lock(LOCK);
    let options = portolan_relay::Options { arrival: TRANSLATED, ..portolan_relay::Options::default() };
    let relay = spawn_translated(&[settings.family], options).unwrap();
    Plane(Box::new(Userspace::open_redirect(programs, settings, Options::default(), relay)))
}

/// With the kernel's settings, as at the start of the program.
fn open_ipvs(settings: Settings) -> Plane {
    for (path, value) in ipvs::kernel_settings(None, false) {
        std::fs::write(path, value.to_string()).unwrap();
    }
    let programs = Programs::of(settings.family, Variant::Nft).unwrap();
    // The kernel remembers the connections of probes for minutes.
    let options = ipvs::Options { drain: Duration::ZERO, ..ipvs::Options::default() };
    Plane(Box::new(Ipvs::open(programs, settings, options).unwrap()))
}

/// Virtual servers, addresses and members of sets.
fn around_rules(namespace: &Namespace) -> Vec<String> {
    let say = |program: &str, arguments: &[&str]| namespace.output(program, arguments).unwrap();
    let mut said = say("ipvsadm", &["--save", "--numeric"]) + &say("ipset", &["save", "-sorted"]);
    said.retain(|character| character != '\r');
    let sets = said.lines().map(|line| line.split(" initval ").next().unwrap_or(line).to_owned());
    let device = say("ip", &["-oneline", "address", "show", "dev", ipvs::DEVICE]);
    // The number of the device differs when it has been made again.
    let addresses = device.lines().filter_map(|line| line.split_whitespace().nth(3));
    sets.chain(addresses.map(str::to_owned)).collect()
}

fn save(namespace: &Namespace, variant: Variant, family: Family, table: &str) -> Result<String, String> {
    let base = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    let suffix = if variant == Variant::Nft { "nft" } else { "legacy" };
    let program = format!("{base}-{suffix}-save");
    namespace.output(&program, &["-t", table]).map_err(|error| error.to_string())
}

/// `:CHAIN POLICY [packets:bytes]`
fn without_counters(line: &str) -> &str {
    if line.starts_with(':') { line.split(" [").next().unwrap_or(line) } else { line }
}

/// A data plane of whichever mode.
pub(crate) struct Plane(pub(crate) Box<dyn Dataplane + Send>);

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plane")
    }
}
