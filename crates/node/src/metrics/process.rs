//! `process_*`: the kernel's figures of this process, under Prometheus' usual names.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_web::metrics::{Collect as _, MetricKind, Page};

use super::{Metric, Registry};

/// One figure of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessMetrics {
    /// Seconds of CPU time, user and system.
    Cpu,
    /// Resident bytes.
    ResidentMemory,
    /// Virtual bytes.
    VirtualMemory,
    /// Open file descriptors.
    OpenFds,
    /// Limit of open file descriptors.
    MaxFds,
    /// The Unix time of the start.
    StartTime,
    /// Limit of virtual bytes.
    MaxVirtualMemory,
    /// Bytes of IP packets received in this network namespace.
    NetworkReceived,
    /// Bytes of IP packets sent in this network namespace.
    NetworkSent,
}

/// Returns when this process was started.
pub(super) fn started() -> Option<SystemTime> {
    let seconds = ProcessMetrics::StartTime.read()?;
    Some(UNIX_EPOCH + Duration::try_from_secs_f64(seconds).ok()?)
}

impl ProcessMetrics {
    /// Adds all figures to a page with other metrics.
    pub fn add_to_page(page: &mut Page) {
        let registry = Registry::default();
        Self::add_to(&registry);
        registry.collect(page);
    }

    /// Exposes all figures.
    pub(super) fn add_to(registry: &Registry) {
        let add = |name, help: &str, metric: Self| drop(registry.add(name, help, metric));
        add("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", Self::Cpu);
        add("process_resident_memory_bytes", "Resident memory size in bytes.", Self::ResidentMemory);
        add("process_virtual_memory_bytes", "Virtual memory size in bytes.", Self::VirtualMemory);
        add("process_open_fds", "Number of open file descriptors.", Self::OpenFds);
        add("process_max_fds", "Maximum number of open file descriptors.", Self::MaxFds);
        let help = "Maximum amount of virtual memory available in bytes.";
        add("process_virtual_memory_max_bytes", help, Self::MaxVirtualMemory);
        let help = "Number of bytes received by the process over the network.";
        add("process_network_receive_bytes_total", help, Self::NetworkReceived);
        let help = "Number of bytes sent by the process over the network.";
        add("process_network_transmit_bytes_total", help, Self::NetworkSent);
        Self::add_start_time_to(registry);
    }

    /// Exposes the start time alone.
    pub(super) fn add_start_time_to(registry: &Registry) {
        let help = "Start time of the process since unix epoch in seconds.";
        registry.add("process_start_time_seconds", help, Self::StartTime);
    }

    fn read(self) -> Option<f64> {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let page = rustix::param::page_size() as f64;
        let stat = || Stat::parse(&fs::read_to_string("/proc/self/stat").ok()?);
        match self {
            Self::Cpu => stat().map(|stat| stat.cpu_ticks as f64 / ticks),
            Self::ResidentMemory => stat().map(|stat| stat.resident_pages as f64 * page),
            Self::VirtualMemory => stat().map(|stat| stat.virtual_bytes as f64),
            // The descriptor of the directory that is being read is not counted.
            Self::OpenFds => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64),
            Self::MaxFds => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
                limit.current.map(|limit| limit as f64)
            }
            Self::StartTime => {
                let boot = boot_time(&fs::read_to_string("/proc/stat").ok()?)?;
                stat().map(|stat| boot as f64 + stat.start_ticks as f64 / ticks)
            }
            Self::MaxVirtualMemory => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::As);
                // No limit is shown as the largest number, as in Prometheus' own libraries.
                Some(limit.current.unwrap_or(u64::MAX) as f64)
            }
            Self::NetworkReceived => octets("InOctets"),
            Self::NetworkSent => octets("OutOctets"),
        }
    }
}

impl Metric for ProcessMetrics {
    fn kind(&self) -> MetricKind {
        match self {
            Self::Cpu | Self::NetworkReceived | Self::NetworkSent => MetricKind::Counter,
            _ => MetricKind::Gauge,
        }
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        if let Some(value) = self.read() {
            page.sample(name, labels, value);
        }
    }
}

/// The fields of `/proc/<pid>/stat` that are used (`proc_pid_stat(5)`).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may contain any character, even a parenthesis.
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        // Fields have the numbers of the manual page. The state, which follows the name, is field 3.
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.saturating_add(field(15)?),
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn octets(name: &str) -> Option<f64> {
    ip_ext(&fs::read_to_string("/proc/self/net/netstat").ok()?, name).map(|octets| octets as f64)
}

/// Returns a number of the `IpExt` group in `/proc/net/netstat`, which has a line of names and a line of numbers.
fn ip_ext(netstat: &str, name: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let position = names.split_ascii_whitespace().position(|candidate| candidate == name)?;
    numbers.split_ascii_whitespace().nth(position)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_found_by_name() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 11 22\n";
        assert_eq!((ip_ext(text, "InOctets"), ip_ext(text, "OutOctets")), (Some(11), Some(22)));
        assert_eq!((ip_ext(text, "Other"), ip_ext("", "InOctets")), (None, None));
    }

    #[test]
    fn the_name_of_a_process_does_not_confuse() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 25 17 0 0 20 0 1 0 4242 8192000 300 1844 1 1";
        let want = Stat { cpu_ticks: 42, start_ticks: 4242, virtual_bytes: 8_192_000, resident_pages: 300 };
        assert_eq!(Stat::parse(text), Some(want));
        assert_eq!(Stat::parse("7 (a) S 1"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000));
    }

    #[test]
    fn this_process_has_every_figure() {
        let registry = Registry::default();
        ProcessMetrics::add_to(&registry);
        let page = registry.page();
        let value = |name: &str| -> f64 {
            let line = page.lines().find(|line| line.starts_with(&format!("{name} ")));
            let (_, value) = line.and_then(|line| line.split_once(' ')).expect(name);
            value.parse().expect(name)
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!((3.0..=value("process_max_fds")).contains(&value("process_open_fds")));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let age = now.as_secs_f64() - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "started {age} s ago");
    }
}
