//! The conntrack settings that the node should have (`conntrack` of the configuration).
//!
//! Pure, except for the number of processors and of tracked connections, which are read from the kernel's files. Names, order, conditions and limits
//! are those of kube-proxy (`pkg/proxy/conntrack/sysctls.go`).

use std::time::Duration;

use crate::config::Conntrack;
use crate::sysctl::{Bound, Host, StartValue, Wanted};

const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// The number of tracked connections of this network namespace.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Every process can read it. In the host's network namespace, a process with `CAP_NET_ADMIN` there can write it; in any
/// other namespace, none can (`nf_conntrack_standalone_init_sysctl` and `net_ctl_permissions` of the kernel).
const BUCKETS: &str = "/proc/sys/net/netfilter/nf_conntrack_buckets";
/// The same number. Only the user root can read and write this file. Container runtimes may leave only one of the two
/// files writable.
const HASHSIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";
const TCP_ESTABLISHED: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
const TCP_CLOSE_WAIT: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
const TCP_BE_LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
const UDP: &str = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
const UDP_STREAM: &str = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream";

/// How full the table of tracked connections is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Tracked connections.
    pub entries: u64,
    /// How many there may be.
    pub max: u64,
}

impl Fill {
    /// Reads the kernel's numbers. `None` if the kernel does not track connections here.
    pub fn read() -> Option<Self> {
        let number = |path| std::fs::read_to_string(path).ok()?.trim().parse().ok();
        Some(Self { entries: number(COUNT)?, max: number(MAX)? })
    }
}

/// The maximum number of entries, whatever the number of processors.
const MOST_ENTRIES: u64 = 1_048_576;
/// Entries for each bucket of the hash table.
const ENTRIES_PER_BUCKET: u64 = 4;

/// Returns the settings in the order in which they are written. Settings that the configuration leaves alone are left
/// out.
pub fn settings(conntrack: &Conntrack, processors: usize) -> Vec<Wanted> {
    let mut settings = Vec::new();
    if let Some(entries) = entries(conntrack, processors) {
        settings.push(Wanted::exactly(MAX, entries));
        let buckets = entries / ENTRIES_PER_BUCKET;
        settings.push(Wanted {
            path: BUCKETS,
            value: buckets,
            bound: Bound::AtLeast,
            instead: Some(HASHSIZE),
        });
    }
    settings.extend(timeout(TCP_ESTABLISHED, conntrack.tcp_established_timeout));
    settings.extend(timeout(TCP_CLOSE_WAIT, conntrack.tcp_close_wait_timeout));
    // False leaves the kernel's value: another program may have set it.
    settings.extend(conntrack.tcp_be_liberal.then_some(Wanted::exactly(TCP_BE_LIBERAL, 1)));
    settings.extend(timeout(UDP, conntrack.udp_timeout));
    settings.extend(timeout(UDP_STREAM, conntrack.udp_stream_timeout));
    settings
}

/// All settings of this module.
const ALL: [&str; 7] = [MAX, BUCKETS, TCP_ESTABLISHED, TCP_CLOSE_WAIT, TCP_BE_LIBERAL, UDP, UDP_STREAM];

/// Returns the setting at a path with a value, if it is one of this module.
pub fn setting(path: &str, value: u64) -> Option<Wanted> {
    let path = ALL.into_iter().find(|known| *known == path)?;
    Some(Wanted { instead: (path == BUCKETS).then_some(HASHSIZE), ..Wanted::exactly(path, value) })
}

/// Returns why a setting must not get this value, if it must not: the kernel drops new connections while the table has
/// more entries than its maximum.
pub fn too_small(host: &Host, wanted: &Wanted) -> Option<String> {
    let count: u64 = host.read(COUNT)?.parse().ok()?;
    (wanted.path == MAX && count > wanted.value)
        .then(|| format!("the table has {count} entries, more than the former maximum {}", wanted.value))
}

/// Returns the settings that a start with this configuration writes, with the kernel's defaults. The size of the table
/// is left out: its default depends on version and memory.
pub fn start_values(conntrack: &Conntrack) -> Vec<StartValue> {
    let written = settings(conntrack, 0).into_iter();
    written.filter_map(|written| Some(StartValue { written, default: default(written.path)? })).collect()
}

/// Returns the kernel's default (`nf_conntrack_proto_tcp.c` and `nf_conntrack_proto_udp.c`), in seconds for timeouts.
fn default(path: &str) -> Option<u64> {
    match path {
        TCP_ESTABLISHED => Some(5 * 24 * 60 * 60),
        TCP_CLOSE_WAIT => Some(60),
        TCP_BE_LIBERAL => Some(0),
        UDP => Some(30),
        UDP_STREAM => Some(120),
        _ => None,
    }
}

/// Returns the number of online processors of the host. CPU limits of this process are ignored: conntrack tracks the
/// traffic of the whole host.
pub fn processors(host: &Host) -> usize {
    const NODES: &str = "/sys/devices/system/node";
    const PROCESSORS: &str = "/sys/devices/system/cpu";
    let switched_on = |folder: &str| {
        let names = host.names(folder).into_iter().filter(|name| numbered(name, "cpu"));
        // The first processor often cannot be taken offline, and then has no such file.
        names.filter(|name| host.read(&format!("{folder}/{name}/online")).as_deref() != Some("0")).count()
    };
    let nodes = host.names(NODES).into_iter().filter(|name| numbered(name, "node"));
    let by_node: usize = nodes.map(|name| switched_on(&format!("{NODES}/{name}"))).sum();
    let known = if by_node > 0 { by_node } else { switched_on(PROCESSORS) };
    if known > 0 { known } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// Returns the number of entries of the table; `None` if the configuration leaves it alone. The configured minimum may
/// exceed [`MOST_ENTRIES`], which limits only the number that is computed from the processors.
fn entries(conntrack: &Conntrack, processors: usize) -> Option<u64> {
    let per_core = u64::try_from(conntrack.max_per_core).unwrap_or(0);
    let least = u64::try_from(conntrack.min).unwrap_or(0);
    let scaled = per_core.saturating_mul(processors as u64);
    match scaled {
        0 => None,
        scaled if scaled > MOST_ENTRIES => Some(MOST_ENTRIES),
        scaled => Some(scaled.max(least)),
    }
}

/// Returns a timeout in whole seconds. kube-proxy rounds less than a second down to 0, which ends every connection at
/// once. This function rounds it up to one second.
fn timeout(path: &'static str, timeout: Duration) -> Option<Wanted> {
    (!timeout.is_zero()).then(|| Wanted::exactly(path, timeout.as_secs().max(1)))
}

/// Returns true for a prefix with a number: for `cpu12`, but not for `cpufreq`.
fn numbered(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(conntrack: &Conntrack, processors: usize) -> Vec<String> {
        settings(conntrack, processors).iter().map(Wanted::command).collect()
    }

    #[test]
    fn the_defaults_of_a_small_host() {
        insta::assert_debug_snapshot!(lines(&Conntrack::default(), 2), @r#"
        [
            "sysctl -w net.netfilter.nf_conntrack_max=131072",
            "sysctl -w net.netfilter.nf_conntrack_buckets=32768",
            "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=86400",
            "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait=3600",
        ]
        "#);
    }

    #[test]
    fn every_setting_in_its_order() {
        let all = Conntrack {
            max_per_core: 1,
            min: 0,
            tcp_established_timeout: Duration::from_secs(1),
            tcp_close_wait_timeout: Duration::from_millis(2_900),
            tcp_be_liberal: true,
            udp_timeout: Duration::from_millis(10),
            udp_stream_timeout: Duration::from_secs(4),
        };
        insta::assert_debug_snapshot!(lines(&all, 8), @r#"
        [
            "sysctl -w net.netfilter.nf_conntrack_max=8",
            "sysctl -w net.netfilter.nf_conntrack_buckets=2",
            "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=1",
            "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait=2",
            "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1",
            "sysctl -w net.netfilter.nf_conntrack_udp_timeout=1",
            "sysctl -w net.netfilter.nf_conntrack_udp_timeout_stream=4",
        ]
        "#);
    }

    #[test]
    fn every_setting_but_the_table_size_has_a_default() {
        let all = Conntrack {
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(10),
            udp_stream_timeout: Duration::from_secs(40),
            ..Conntrack::default()
        };
        let found: Vec<_> =
            start_values(&all).iter().map(|start| (start.written.value, start.default)).collect();
        assert_eq!(found, [(86_400, 432_000), (3_600, 60), (1, 0), (10, 30), (40, 120)]);
        assert_eq!(
            start_values(&Conntrack::default()).len(),
            2,
            "without what the configuration leaves alone"
        );
    }

    #[test]
    fn every_setting_that_is_written_is_known() {
        let all = Conntrack {
            tcp_be_liberal: true,
            udp_timeout: Duration::from_secs(10),
            udp_stream_timeout: Duration::from_secs(40),
            ..Conntrack::default()
        };
        let written = settings(&all, 2);
        assert_eq!(written.len(), ALL.len());
        for wanted in written {
            let known = setting(wanted.path, wanted.value);
            assert_eq!(known, Some(Wanted { bound: Bound::Exactly, ..wanted }));
        }
        assert_eq!(setting("/proc/sys/kernel/core_pattern", 1), None);
    }

    #[test]
    fn a_table_does_not_get_smaller_than_its_content() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = Host::below(folder.path());
        let max = |value| Wanted::exactly(MAX, value);
        assert_eq!(too_small(&host, &max(5)), None, "a kernel without conntrack");
        let file = folder.path().join(COUNT.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
        std::fs::write(file, "6\n").expect("a file");
        let reason = too_small(&host, &max(5));
        assert_eq!(reason.as_deref(), Some("the table has 6 entries, more than the former maximum 5"));
        assert_eq!(too_small(&host, &max(6)), None);
        assert_eq!(too_small(&host, &Wanted::exactly(UDP, 5)), None);
    }

    #[test]
    fn the_number_of_entries() {
        let table = [
            // (entries for each processor, minimum, processors), number of entries
            ((0, 131_072, 4), None),
            ((32_768, 131_072, 1), Some(131_072)),
            ((32_768, 131_072, 4), Some(131_072)),
            ((32_768, 131_072, 5), Some(163_840)),
            ((32_768, 131_072, 32), Some(1_048_576)),
            ((32_768, 131_072, 33), Some(1_048_576)),
            ((32_768, 0, 1), Some(32_768)),
            // The minimum is not limited, unless the computed number is above the limit.
            ((1, 2_000_000, 1), Some(2_000_000)),
            ((1_048_577, 2_000_000, 1), Some(1_048_576)),
        ];
        for ((max_per_core, min, processors), wanted) in table {
            let conntrack = Conntrack { max_per_core, min, ..Conntrack::default() };
            assert_eq!(entries(&conntrack, processors), wanted, "{max_per_core} {min} {processors}");
        }
    }

    #[test]
    fn processors_are_counted_by_node_or_all_together() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let host = Host::below(folder.path());
        let add = |path: &str, online: Option<&str>| {
            let processor = folder.path().join("sys/devices/system").join(path);
            std::fs::create_dir_all(&processor).expect("a folder");
            if let Some(online) = online {
                std::fs::write(processor.join("online"), online).expect("a file");
            }
        };
        assert!(processors(&host) >= 1, "at least the one that runs this");
        add("cpu/cpu0", None);
        add("cpu/cpu1", Some("1\n"));
        add("cpu/cpu2", Some("0\n"));
        add("cpu/cpufreq", None);
        assert_eq!(processors(&host), 2);
        add("node/node0/cpu0", None);
        add("node/node0/cpu1", Some("1\n"));
        add("node/node1/cpu2", Some("1\n"));
        add("node/node1/memory0", None);
        add("node/power", None);
        assert_eq!(processors(&host), 3);
    }
}
