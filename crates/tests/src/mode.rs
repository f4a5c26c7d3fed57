//! The modes under test: how the data plane of each is opened, how it differs from nftables mode, and how its state
//! in the kernel is listed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use ipnet::IpNet;
use portolan_engine::{Boxed, Driven};
use portolan_iptables::{Iptables, IptablesOptions, Programs, Variant};
use portolan_ipvs::{Ipvs, Known};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Capture, Family, NodePortAddresses, Protocol, Settings};
use portolan_nftables::Nftables;
use portolan_relay::Handle;
use portolan_testkit::{Namespace, assert_legacy_may_be_missing};
use portolan_userspace::{Userspace, read_redirect, spawn_translated};

/// Environment variable that requires IPVS in the kernel. Without it, tests of IPVS are skipped if the kernel has
/// none.
const IPVS_MUST_RUN: &str = "PORTOLAN_TEST_IPVS";
/// The lock file for legacy iptables. Each network namespace has its own file, so no test waits for another test or
/// for other programs on this machine.
const LOCK: &str = "/proc/thread-self/ns/net";

/// The iptables that the IPVS mode uses.
const IPVS_VARIANT: Variant = Variant::Nft;

/// Time for which the relay waits for an endpoint, longer than a busy machine needs.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// A mode, with the kernel interface that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// nftables.
    Nftables,
    /// iptables, as a front end of nftables.
    IptablesNft,
    /// Legacy iptables, with its own tables in the kernel.
    IptablesLegacy,
    /// Userspace, with a relay that captures traffic by `tproxy`.
    Userspace,
    /// Userspace, with capture by address translation, through iptables as a front end of nftables.
    RedirectNft,
    /// Userspace, with capture by address translation, through legacy iptables.
    RedirectLegacy,
    /// IPVS.
    Ipvs,
}

/// Runs each test, a function of the [`Mode`], in every mode, in a module named after the mode.
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

/// The options of a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeOptions {
    /// True if node ports respond on loopback, in modes that can do that (`iptables.localhostNodePorts`).
    pub localhost_node_ports: bool,
    /// True if 127.0.0.1 is listed when node ports respond at some addresses only.
    pub lists_loopback: bool,
}

impl Default for ModeOptions {
    fn default() -> Self {
        Self { localhost_node_ports: true, lists_loopback: false }
    }
}

impl Mode {
    /// Runs a test, or prints why the kernel cannot run the mode.
    pub fn run(self, test: impl FnOnce(Self)) {
        match self.missing() {
            None => test(self),
            Some(missing) => eprintln!("left out: {missing}"),
        }
    }

    /// Returns the mode's name in rows of decision tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::IptablesNft | Self::IptablesLegacy => "iptables",
            Self::Userspace => "userspace",
            Self::RedirectNft | Self::RedirectLegacy => "redirect",
            Self::Ipvs => "ipvs",
        }
    }

    /// Returns true if the mode supports the protocol.
    pub fn carries(self, protocol: Protocol) -> bool {
        !self.relays() || protocol != Protocol::Sctp
    }

    /// Returns true if a relay carries the traffic.
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

    /// Returns what the kernel lacks for this mode; `None` if it can run. Newer kernels may be built without the
    /// tables of legacy iptables.
    fn missing(self) -> Option<String> {
        let namespace = Namespace::new("look").unwrap();
        if self == Self::Ipvs {
            let missing = namespace.run(|| portolan_ipvs::available("rr", &Family::BOTH)).unwrap().err()?;
            assert!(std::env::var_os(IPVS_MUST_RUN).is_none(), "{missing}");
            return Some(missing.to_string());
        }
        if self.variant() != Some(Variant::Legacy) {
            return None;
        }
        let look = |family| save(&namespace, Variant::Legacy, family, "nat");
        let missing = Family::BOTH.into_iter().find_map(|family| look(family).err()).filter(|why| {
            ["Table does not exist", "No such file or directory"].iter().any(|text| why.contains(text))
        })?;
        assert_legacy_may_be_missing(&missing);
        Some(missing)
    }

    /// Opens the data plane of a family, in the network namespace where it runs.
    pub(crate) fn open(self, settings: &Settings, options: ModeOptions) -> Plane {
        let settings = settings.clone();
        if self == Self::Ipvs {
            return open_ipvs(settings);
        }
        let Some(variant) = self.variant() else {
            if self == Self::Userspace {
                let relay = portolan_relay::spawn(&[settings.family], relay_options()).unwrap();
                let dataplane = Userspace::open(settings.clone(), relay.clone()).unwrap();
                return Plane::with_relay(settings, Box::new(dataplane), relay);
            }
            let dataplane = Nftables::open(settings.clone()).unwrap();
            return Plane::new(settings, Box::new(dataplane));
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
        let options = IptablesOptions {
            localhost_node_ports: options.localhost_node_ports,
            loopback_addresses,
            ..IptablesOptions::default()
        };
        Plane::new(settings.clone(), Box::new(Iptables::new(programs, settings, options)))
    }

    /// Reads back what the kernel has, as an agent in this mode does, in the network namespace where it runs.
    pub(crate) fn read(self, settings: &Settings, relay: Option<&Handle>) -> Observed {
        let family = settings.family;
        let programs = |variant| Programs::of(family, variant).unwrap().with_lock(LOCK);
        let node_port_addresses = &settings.node_port_addresses;
        let read = match self {
            Self::Nftables => portolan_nftables::read(family).unwrap(),
            Self::IptablesNft => portolan_iptables::read(&programs(Variant::Nft), family).unwrap(),
            Self::IptablesLegacy => portolan_iptables::read(&programs(Variant::Legacy), family).unwrap(),
            Self::Userspace => portolan_userspace::read(family, relay).unwrap(),
            Self::RedirectNft => read_redirect(&programs(Variant::Nft), family, relay).unwrap(),
            Self::RedirectLegacy => read_redirect(&programs(Variant::Legacy), family, relay).unwrap(),
            Self::Ipvs => {
                let known = Known { exclude: &[], node_port_addresses, variant: Some(IPVS_VARIANT) };
                portolan_ipvs::read(family, Some(known)).unwrap()
            }
        };
        read.expect("the rules of the mode")
    }

    /// Returns how the mode differs from the oracle's rules.
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

    /// Returns everything in a namespace that the mode may have written: as `nft` lists it, or as sorted lines.
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

/// Returns options with which no endpoint is set aside because a busy machine answers late.
fn relay_options() -> portolan_relay::RelayOptions {
    portolan_relay::RelayOptions {
        connect_limits: vec![CONNECT_LIMIT; 4],
        ..portolan_relay::RelayOptions::default()
    }
}

fn open_redirect(variant: Variant, settings: Settings) -> Plane {
    let programs = Programs::of(settings.family, variant).unwrap().with_lock(LOCK);
    let options = portolan_relay::RelayOptions { capture: Capture::Redirect, ..relay_options() };
    let relay = spawn_translated(&[settings.family], options).unwrap();
    let dataplane =
        Userspace::open_redirect(programs, settings.clone(), IptablesOptions::default(), relay.clone());
    Plane::with_relay(settings, Box::new(dataplane), relay)
}

/// Opens the IPVS data plane, after setting the kernel's settings as the program does at its start.
fn open_ipvs(settings: Settings) -> Plane {
    for (path, value) in portolan_ipvs::kernel_settings(None, false) {
        std::fs::write(path, value.to_string()).unwrap();
    }
    let programs = Programs::of(settings.family, IPVS_VARIANT).unwrap();
    // Draining would take minutes: the kernel keeps the probes' connections for so long.
    let options =
        portolan_ipvs::IpvsOptions { drain: Duration::ZERO, ..portolan_ipvs::IpvsOptions::default() };
    let dataplane = Ipvs::open(programs, settings.clone(), options).unwrap();
    Plane::new(settings, Box::new(dataplane))
}

/// Returns the virtual servers, the addresses and the members of sets.
fn around_rules(namespace: &Namespace) -> Vec<String> {
    let say = |program: &str, arguments: &[&str]| namespace.output(program, arguments).unwrap();
    let mut said = say("ipvsadm", &["--save", "--numeric"]) + &say("ipset", &["save", "-sorted"]);
    said.retain(|character| character != '\r');
    // Neither the seed of a set's hash nor what its members have counted.
    let stable = |line: &str| {
        [" initval ", " packets "].iter().fold(line.to_owned(), |line, from| match line.split_once(from) {
            Some((kept, _)) => kept.to_owned(),
            None => line,
        })
    };
    let sets = said.lines().map(stable);
    let device = say("ip", &["-oneline", "address", "show", "dev", portolan_ipvs::DEVICE]);
    // The interface index changes when the device is created again.
    let addresses = device.lines().filter_map(|line| line.split_whitespace().nth(3));
    sets.chain(addresses.map(str::to_owned)).collect()
}

fn save(namespace: &Namespace, variant: Variant, family: Family, table: &str) -> Result<String, String> {
    let base = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    let suffix = if variant == Variant::Nft { "nft" } else { "legacy" };
    let program = format!("{base}-{suffix}-save");
    namespace.output(&program, &["-t", table]).map_err(|error| error.to_string())
}

/// Removes the counters from `:CHAIN POLICY [packets:bytes]`.
fn without_counters(line: &str) -> &str {
    if line.starts_with(':') { line.split(" [").next().unwrap_or(line) } else { line }
}

/// A data plane of any mode.
pub(crate) struct Plane {
    pub(crate) driven: Driven<Boxed>,
    /// The relay, which has the endpoints, in modes with one.
    pub(crate) relay: Option<Handle>,
}

impl Plane {
    fn new(settings: Settings, dataplane: Boxed) -> Self {
        Self { driven: Driven::new(settings, dataplane), relay: None }
    }

    fn with_relay(settings: Settings, dataplane: Boxed, relay: Handle) -> Self {
        Self { relay: Some(relay), ..Self::new(settings, dataplane) }
    }
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plane")
    }
}
