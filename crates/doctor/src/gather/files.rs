//! Facts in files of the kernel: its version, settings and counters.

use portolan_node::sysctl::Host;

use crate::facts::{AffinityLists, ConntrackCounters, Facts, KernelVersion, Link};

/// The settings of the whole network namespace that the checks read, below `/proc/sys`.
const SETTINGS: [&str; 10] = [
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
];
/// The settings of each interface that the checks read.
const LINK_SETTINGS: [(&str, &str); 4] =
    [("ipv4", "rp_filter"), ("ipv4", "forwarding"), ("ipv6", "accept_ra"), ("ipv6", "forwarding")];
/// Counters of connection tracking of the network namespace of this thread.
const COUNTERS: &str = "/proc/thread-self/net/stat/nf_conntrack";
/// Maximum number of clients of a list of the `recent` match. It is set when the module is loaded.
const LIST_LIMIT: &str = "/sys/module/xt_recent/parameters/ip_list_tot";
/// The lists of the `recent` match in this thread's network namespace: a file for each list, a line for each client.
const LISTS: &str = "/proc/thread-self/net/xt_recent";
/// The beginning of names of kube-proxy's lists, one for each endpoint.
const ENDPOINT_LISTS: &str = "KUBE-SEP-";
/// Exists in each network namespace while the kernel has IPVS.
const IPVS: &str = "/proc/thread-self/net/ip_vs";

pub(super) fn kernel(host: &Host) -> Option<KernelVersion> {
    KernelVersion::parse(&host.read("/proc/sys/kernel/osrelease")?)
}

/// Reads the settings of the namespace, and those of each interface of `facts`.
pub(super) fn settings(host: &Host, facts: &mut Facts) {
    let of_link = |link: &Link| LINK_SETTINGS.map(|(of, name)| format!("net/{of}/conf/{}/{name}", link.name));
    let of_links = facts.links.iter().flat_map(of_link);
    let paths: Vec<String> = SETTINGS.iter().map(|&path| path.to_owned()).chain(of_links).collect();
    for path in paths {
        if let Some(value) = host.read(&format!("/proc/sys/{path}")) {
            facts.settings.insert(path, value);
        }
    }
}

pub(super) fn conntrack(host: &Host) -> Option<ConntrackCounters> {
    counters(&host.read(COUNTERS)?)
}

pub(super) fn has_ipvs(host: &Host) -> bool {
    host.read(IPVS).is_some()
}

/// Returns the lists of clients with session affinity. Without the module there are none.
pub(super) fn affinity(host: &Host) -> Option<AffinityLists> {
    let limit = host.read(LIST_LIMIT)?.parse().ok()?;
    let mut full = host.names(LISTS);
    // A list is removed with its last rule, so it can vanish at any time.
    let clients = |name: &str| host.read(&format!("{LISTS}/{name}")).map_or(0, |text| text.lines().count());
    full.retain(|name| name.starts_with(ENDPOINT_LISTS) && clients(name) >= limit);
    full.sort_unstable();
    Some(AffinityLists { limit, full })
}

/// Reads a line of names and, for each processor, a line of hexadecimal numbers.
fn counters(text: &str) -> Option<ConntrackCounters> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next()?.split_whitespace().collect();
    let mut sum = ConntrackCounters::default();
    for line in lines {
        for (name, number) in names.iter().zip(line.split_whitespace()) {
            let Ok(number) = u64::from_str_radix(number, 16) else { continue };
            let counter = match *name {
                "invalid" => &mut sum.invalid,
                "insert_failed" => &mut sum.insert_failed,
                "drop" => &mut sum.drop,
                "early_drop" => &mut sum.early_drop,
                _ => continue,
            };
            *counter = counter.saturating_add(number);
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counters_are_hexadecimal_and_of_each_processor() {
        let text = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop\n\
                    00000010 0 0 0 0000000a 0 0 0 0 00000001 00000002 00000003\n\
                    00000010 0 0 0 00000001 0 0 0 0 00000000 00000010 00000000\n";
        let expected = ConntrackCounters { invalid: 11, insert_failed: 1, drop: 18, early_drop: 3 };
        assert_eq!(counters(text), Some(expected));
        assert_eq!(counters(""), None);
        assert_eq!(counters("invalid\nx\n"), Some(ConntrackCounters::default()));
    }

    #[test]
    fn full_lists_of_clients() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = Host::below(folder.path());
        assert_eq!(affinity(&host), None, "no module");
        let write = |path: &str, text: &str| {
            let file = folder.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, text).expect("a file");
        };
        write(LIST_LIMIT, "2\n");
        assert_eq!(affinity(&host), Some(AffinityLists { limit: 2, full: Vec::new() }));
        for (name, text) in
            [("KUBE-SEP-B", "a\nb\n"), ("KUBE-SEP-A", "a\nb\n"), ("KUBE-SEP-C", "a\n"), ("X", "a\nb\n")]
        {
            write(&format!("{LISTS}/{name}"), text);
        }
        let full = vec!["KUBE-SEP-A".to_owned(), "KUBE-SEP-B".to_owned()];
        assert_eq!(affinity(&host), Some(AffinityLists { limit: 2, full }));
    }

    #[test]
    fn settings_of_the_namespace_and_of_interfaces() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let write = |path: &str, value: &str| {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            fs::write(file, value).expect("a file");
        };
        write("proc/sys/net/ipv4/ip_forward", "0\n");
        write("proc/sys/net/ipv4/conf/eth0.5/rp_filter", "1\n");
        write("proc/sys/net/ipv6/conf/eth0.5/accept_ra", "1\n");
        write("proc/sys/net/ipv6/conf/eth0.5/forwarding", "0\n");
        write("proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
        let host = Host::below(folder.path());
        let links = vec![Link { name: "eth0.5".to_owned(), ..Link::default() }];
        let mut facts = Facts { links, ..Facts::default() };
        settings(&host, &mut facts);
        assert_eq!(facts.setting("net/ipv4/ip_forward"), Some("0"));
        assert_eq!(facts.number("net/ipv4/conf/eth0.5/rp_filter"), Some(1));
        assert_eq!(facts.number("net/ipv6/conf/eth0.5/accept_ra"), Some(1));
        assert_eq!(facts.settings.len(), 4);
        assert_eq!(kernel(&host), Some(KernelVersion(6, 1)));
        assert!(!has_ipvs(&host) && conntrack(&host).is_none());
    }
}
