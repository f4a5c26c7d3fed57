//! What the kernel has for the mode, forwarding, and ports that the node uses itself.

use std::ops::RangeInclusive;

use portolan_model::Family;

use super::proxies::{mode, named_mode, tried_mode};
use crate::facts::{Facts, KernelVersion, Lack, Link, Mode, Role};
use crate::finding::{Code, Finding, Setting, Severity};

/// The oldest kernel for the nftables mode: catch-all elements of sets.
const OLDEST: KernelVersion = KernelVersion(5, 13);
/// The default range of node ports of the API server (`--service-node-port-range`).
pub(super) const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

const LOCAL_PORTS: &str = "net/ipv4/ip_local_port_range";
const RESERVED_PORTS: &str = "net/ipv4/ip_local_reserved_ports";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(version(facts));
    findings.extend(ipvs(facts));
    findings.extend(trial(facts));
    findings.extend(forwarding(facts, Family::Ipv4));
    findings.extend(forwarding(facts, Family::Ipv6));
    findings.extend(reserved(facts));
    findings
}

fn version(facts: &Facts) -> Option<Finding> {
    let kernel = facts.kernel.filter(|kernel| *kernel < OLDEST)?;
    // The iptables and IPVS modes run on older kernels.
    let severity = match mode(facts) {
        Some(Mode::Iptables | Mode::Ipvs) => Severity::Note,
        _ => Severity::Error,
    };
    let title = format!("this is Linux {kernel}; the nftables mode needs {OLDEST}");
    let mend = format!("boot Linux {OLDEST} or newer, or set `mode: iptables` in the configuration");
    Some(Finding::new(Code::KernelTooOld, severity, title, mend))
}

fn ipvs(facts: &Facts) -> Option<Finding> {
    let wanted = [mode(facts), named_mode(facts)].contains(&Some(Mode::Ipvs));
    (wanted && !facts.has_ipvs).then(|| {
        let title = "the kernel has no IPVS, which the IPVS mode needs";
        Finding::new(Code::IpvsMissing, Severity::Error, title, "modprobe ip_vs && modprobe ip_vs_rr")
    })
}

/// Says what the trial of the mode found, unless the findings about the version and about IPVS say it.
fn trial(facts: &Facts) -> Vec<Finding> {
    if version(facts).is_some_and(|finding| finding.severity == Severity::Error) || ipvs(facts).is_some() {
        return Vec::new();
    }
    let mode_that_runs = mode(facts);
    let mode = tried_mode(facts);
    let mend = match mode {
        Mode::Nftables => {
            "modprobe -a nf_tables nft_chain_nat nft_ct nft_fib_ipv4 nft_fib_ipv6 nft_masq nft_nat nft_numgen \
             nft_reject_ipv4 nft_reject_ipv6, or boot a kernel that has them"
        }
        Mode::Iptables => {
            "install iptables, let the node load its modules, or set `mode: nftables` in the configuration"
        }
        Mode::Ipvs => "install what is missing, or set `mode: nftables` in the configuration",
        Mode::Userspace => {
            "modprobe -a nft_tproxy nft_socket; or install iptables, so that packets can be redirected"
        }
    };
    let found = |lack: &Lack| {
        // A proxy in a container has programs of its own, and without a proxy another mode may be chosen.
        let is_of_kernel = mode == Mode::Nftables;
        let is_error = lack.is_fatal && is_of_kernel && mode_that_runs.is_some();
        let severity = if is_error { Severity::Error } else { Severity::Warning };
        let with = if is_of_kernel { "" } else { " with the programs of this host" };
        let title = format!("the {mode} mode cannot run here{with}: {}", lack.reason);
        Finding::new(Code::ModeCannotRun, severity, title, mend)
    };
    facts.lacks.iter().map(found).collect()
}

fn forwarding(facts: &Facts, family: Family) -> Option<Finding> {
    let path = match family {
        Family::Ipv4 => "net/ipv4/ip_forward",
        Family::Ipv6 => "net/ipv6/conf/all/forwarding",
    };
    if facts.setting(path)? != "0" || !facts.serves(family) {
        return None;
    }
    let title =
        format!("{} is 0: the kernel does not forward {family} packets", crate::finding::sysctl_name(path));
    let first = if family == Family::Ipv6 { kept_advertisements(facts) } else { Vec::new() };
    let setting = Setting::new(path, "1");
    Some(Finding::settings(Code::ForwardingOff, Severity::Error, title, first, setting))
}

/// Returns the settings with which interfaces go on accepting router advertisements. A host that forwards ignores them with
/// `accept_ra` 1, and loses its IPv6 addresses and default route. Interfaces of pods and containers are left out: their router
/// advertisements are not to be trusted.
fn kept_advertisements(facts: &Facts) -> Vec<Setting> {
    let path = |link: &Link, name| format!("net/ipv6/conf/{}/{name}", link.name);
    let has = |link: &Link, name, value| facts.setting(&path(link, name)) == Some(value);
    let leads_outside = |link: &Link| match link.role(&facts.links) {
        Role::Uplink => true,
        Role::None => link.name != "lo" && !link.is_of_others(),
        Role::Pods | Role::Tunnel => false,
    };
    let ends =
        |link: &&Link| leads_outside(link) && has(link, "accept_ra", "1") && has(link, "forwarding", "0");
    facts.links.iter().filter(ends).map(|link| Setting::new(path(link, "accept_ra"), "2")).collect()
}

/// Finds node ports that the kernel may use for connections of the node itself.
fn reserved(facts: &Facts) -> Option<Finding> {
    let mut ends = facts.setting(LOCAL_PORTS)?.split_whitespace().map_while(|end| end.parse::<u16>().ok());
    let local = ends.next()?..=ends.next()?;
    let first = *NODE_PORTS.start().max(local.start());
    let last = *NODE_PORTS.end().min(local.end());
    let present = facts.setting(RESERVED_PORTS).unwrap_or_default();
    let taken = ranges(present);
    let is_taken = |port| taken.iter().any(|range| range.contains(&port));
    if first > last || (first..=last).all(is_taken) {
        return None;
    }
    let wanted = format!("{}-{}", NODE_PORTS.start(), NODE_PORTS.end());
    let value = if present.is_empty() { wanted } else { format!("{present},{wanted}") };
    let title = format!(
        "the node ports {first}-{last} are among the ports of the node's own connections ({}-{})",
        local.start(),
        local.end()
    );
    Some(Finding::setting(Code::NodePortsNotReserved, Severity::Warning, title, RESERVED_PORTS, &value))
}

/// Reads a list such as `8080,30000-32767`.
fn ranges(text: &str) -> Vec<RangeInclusive<u16>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::testing::{codes, with_settings};
    use crate::facts::{Cluster, Process, Program, Proxies};
    use crate::finding::Fix;

    fn running(mode: &str) -> Proxies {
        let process = Process { pid: 7, program: Program::Portolan, mode: Some(mode.to_owned()) };
        Proxies { processes: vec![process], complete: true, ..Proxies::default() }
    }

    #[test]
    fn an_old_kernel_is_an_error_for_the_nftables_mode_only() {
        let facts =
            |mode| Facts { kernel: Some(KernelVersion(5, 12)), proxies: running(mode), ..Facts::default() };
        assert_eq!(codes(&findings(&facts("nftables"))), [(Code::KernelTooOld, Severity::Error)]);
        assert_eq!(codes(&findings(&facts("iptables"))), [(Code::KernelTooOld, Severity::Note)]);
        let new = Facts { kernel: Some(KernelVersion(5, 13)), ..facts("nftables") };
        assert_eq!(findings(&new), []);
    }

    #[test]
    fn ipvs_is_needed_in_the_ipvs_mode_only() {
        let facts = |has_ipvs, mode| Facts { has_ipvs, proxies: running(mode), ..Facts::default() };
        assert_eq!(codes(&findings(&facts(false, "ipvs"))), [(Code::IpvsMissing, Severity::Error)]);
        assert_eq!(findings(&facts(true, "ipvs")), []);
        assert_eq!(findings(&facts(false, "nftables")), []);
    }

    #[test]
    fn what_the_trial_of_the_mode_found() {
        let lack = |is_fatal| Lack { reason: "IPv4: no numgen".to_owned(), is_fatal };
        let facts = |mode, is_fatal| Facts {
            lacks: vec![lack(is_fatal)],
            proxies: running(mode),
            has_ipvs: true,
            ..Facts::default()
        };
        for (mode, mend) in [
            ("nftables", "modprobe -a nf_tables "),
            ("iptables", "install iptables, "),
            ("ipvs", "install what is missing"),
            ("userspace", "modprobe -a nft_tproxy "),
        ] {
            let found = findings(&facts(mode, true));
            // The other modes were tried with the programs of the host, and a proxy in a container has its own.
            let (severity, with) = match mode {
                "nftables" => (Severity::Error, ""),
                _ => (Severity::Warning, " with the programs of this host"),
            };
            assert_eq!(codes(&found), [(Code::ModeCannotRun, severity)]);
            assert_eq!(found[0].title, format!("the {mode} mode cannot run here{with}: IPv4: no numgen"));
            assert!(found[0].mend.starts_with(mend), "{}", found[0].mend);
            let of_one_family = findings(&facts(mode, false));
            assert_eq!(codes(&of_one_family), [(Code::ModeCannotRun, Severity::Warning)]);
        }
        let without_proxy = Facts { proxies: Proxies::default(), ..facts("nftables", true) };
        assert_eq!(codes(&findings(&without_proxy)), [(Code::ModeCannotRun, Severity::Warning)]);
        let old = Facts { kernel: Some(KernelVersion(5, 12)), ..facts("nftables", true) };
        assert_eq!(codes(&findings(&old)), [(Code::KernelTooOld, Severity::Error)]);
        let without_ipvs = Facts { has_ipvs: false, ..facts("ipvs", true) };
        assert_eq!(codes(&findings(&without_ipvs)), [(Code::IpvsMissing, Severity::Error)]);
    }

    #[test]
    fn forwarding_that_is_off() {
        let off = with_settings(&[("net/ipv4/ip_forward", "0"), ("net/ipv6/conf/all/forwarding", "0")]);
        let found = findings(&off);
        assert_eq!(codes(&found), [(Code::ForwardingOff, Severity::Error)], "the node has no IPv6");
        assert_eq!(found[0].mend, "sysctl -w net.ipv4.ip_forward=1");
        let cidr = "fd00::/108".parse().expect("a range");
        let cluster = Some(Cluster { service_cidrs: vec![cidr], ..Cluster::default() });
        assert_eq!(findings(&Facts { cluster, ..off }).len(), 2);
        assert_eq!(findings(&with_settings(&[("net/ipv4/ip_forward", "1")])), []);
    }

    #[test]
    fn router_advertisements_are_kept_before_ipv6_is_forwarded() {
        let interfaces = [("lo", "1", "0"), ("eth0.5", "1", "0"), ("eth1", "0", "0"), ("eth2", "1", "1")];
        let mut facts = with_settings(&[("net/ipv4/ip_forward", "0"), ("net/ipv6/conf/all/forwarding", "0")]);
        for (name, accept_ra, forwarding) in interfaces {
            for (setting, value) in [("accept_ra", accept_ra), ("forwarding", forwarding)] {
                facts.settings.insert(format!("net/ipv6/conf/{name}/{setting}"), value.to_owned());
            }
            facts.links.push(Link { name: name.to_owned(), ..Link::default() });
        }
        let cidr = "fd00::/108".parse().expect("a range");
        facts.cluster = Some(Cluster { service_cidrs: vec![cidr], ..Cluster::default() });
        let mends: Vec<String> = findings(&facts).into_iter().map(|finding| finding.mend).collect();
        let ipv6 = "sysctl -w net.ipv6.conf.eth0/5.accept_ra=2 && sysctl -w net.ipv6.conf.all.forwarding=1";
        assert_eq!(mends, ["sysctl -w net.ipv4.ip_forward=1", ipv6]);
    }

    #[test]
    fn node_ports_that_the_node_may_use_itself() {
        let ports = |local, reserved| with_settings(&[(LOCAL_PORTS, local), (RESERVED_PORTS, reserved)]);
        assert_eq!(findings(&ports("32768\t60999", "")), []);
        let found = findings(&ports("1024\t65535", "8080"));
        assert_eq!(codes(&found), [(Code::NodePortsNotReserved, Severity::Warning)]);
        let setting = Setting::new(RESERVED_PORTS, "8080,30000-32767");
        let fix = Fix::Sysctl { first: Vec::new(), setting };
        assert_eq!(found[0].fix, Some(fix));
        assert_eq!(findings(&ports("1024\t65535", "8080,30000-32767")), []);
        assert_eq!(findings(&ports("1024\t65535", "30000-31000,31001-32767")), []);
        assert_eq!(findings(&ports("32000 32100", "30000-32050")).len(), 1);
        assert_eq!(findings(&ports("garbage", "")), []);
    }
}
