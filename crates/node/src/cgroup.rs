//! The memory limit of this process, and the memory that other processes use of it (cgroups, `cgroups(7)`).
//!
//! Input: the files of a [`Host`]. Output: the limit with the least room, among the cgroup of this process and its
//! visible ancestors.

use crate::sysctl::Host;

/// The cgroups of this process, one line for each hierarchy.
const OWN: &str = "/proc/self/cgroup";
/// The hierarchy of version 2.
const SECOND: Hierarchy = Hierarchy { root: "/sys/fs/cgroup", limit: "memory.max", used: ["anon", "shmem"] };
/// The memory hierarchy of version 1.
const FIRST: Hierarchy = Hierarchy {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: ["total_rss", "total_shmem"],
};
/// Version 1 expresses "no limit" as a number above this one.
const NO_LIMIT: u64 = 1 << 60;

/// The files of one cgroup version.
struct Hierarchy {
    root: &'static str,
    limit: &'static str,
    /// Lines of `memory.stat` for memory that processes use and the kernel cannot reclaim. Kernel memory is not among
    /// them: it contains that of this process's own rules.
    used: [&'static str; 2],
}

/// A memory limit in bytes, and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The limit for all processes of the cgroup, with the kernel memory that they need.
    pub limit: u64,
    /// Bytes that processes other than this one and its children use, as far as they can be read.
    pub others: u64,
}

impl Room {
    /// Returns the bytes that are left for this process and its children.
    pub const fn free(&self) -> u64 {
        self.limit.saturating_sub(self.others)
    }
}

/// Returns the limit with the least room; `None` if there is no limit. In a container, its own limit is visible.
pub fn memory_room(host: &Host) -> Option<Room> {
    let cgroups = host.read(OWN)?;
    let own = own_memory(host);
    let mut rooms = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let hierarchy = match controllers {
            "" => SECOND,
            _ if controllers.split(',').any(|name| name == "memory") => FIRST,
            _ => continue,
        };
        // In a container, the path may be that of the host: levels that do not exist are skipped.
        rooms.extend(around(path).filter_map(|level| hierarchy.room(host, level, own)));
    }
    rooms.into_iter().min_by_key(Room::free)
}

impl Hierarchy {
    /// Returns the limit of a cgroup in which this process and its children use `own` bytes.
    fn room(&self, host: &Host, level: &str, own: u64) -> Option<Room> {
        let folder = format!("{}{level}", self.root);
        let limit: u64 = host.read(&format!("{folder}/{}", self.limit))?.parse().ok()?;
        if limit >= NO_LIMIT {
            return None;
        }
        let stat = host.read(&format!("{folder}/memory.stat")).unwrap_or_default();
        let used = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            bytes.parse::<u64>().ok().filter(|_| self.used.contains(&name))
        });
        let used = used.fold(0_u64, u64::saturating_add);
        Some(Room { limit, others: used.saturating_sub(own) })
    }
}

/// Returns the bytes of anonymous memory of this process and its children.
fn own_memory(host: &Host) -> u64 {
    let threads = host.names("/proc/self/task");
    let children =
        threads.iter().filter_map(|thread| host.read(&format!("/proc/self/task/{thread}/children")));
    let mut processes: Vec<String> =
        children.flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    processes.push("self".to_owned());
    let memory = |process: &String| {
        let status = host.read(&format!("/proc/{process}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
    };
    processes.iter().filter_map(memory).fold(0, u64::saturating_add)
}

/// Returns a cgroup and its ancestors: `/a/b`, `/a`, and the empty path, which is the root.
fn around(path: &str) -> impl Iterator<Item = &str> {
    let trimmed = path.trim_end_matches('/');
    std::iter::successors(Some(trimmed), |level| level.rsplit_once('/').map(|(outer, _)| outer))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn room(files: &[(&str, &str)]) -> Option<Room> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for (path, content) in files {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
            fs::write(file, content).expect("a file");
        }
        memory_room(&Host::below(folder.path()))
    }

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        room(files).map(|room| room.limit)
    }

    #[test]
    fn the_lowest_limit_around_the_process_counts() {
        let own = ("proc/self/cgroup", "0::/kubepods/pod1/c1\n");
        let of = |level: &'static str, limit: &'static str| (level, limit);
        assert_eq!(limit(&[]), None, "no cgroups");
        assert_eq!(limit(&[own]), None, "no limits");
        let (inner, outer) =
            ("sys/fs/cgroup/kubepods/pod1/c1/memory.max", "sys/fs/cgroup/kubepods/memory.max");
        assert_eq!(limit(&[own, of(inner, "max\n")]), None);
        assert_eq!(limit(&[own, of(inner, "268435456\n"), of(outer, "max\n")]), Some(268_435_456));
        assert_eq!(limit(&[own, of(inner, "268435456\n"), of(outer, "4096\n")]), Some(4_096));
    }

    #[test]
    fn a_container_sees_its_own_limit_at_the_root() {
        let root = ("sys/fs/cgroup/memory.max", "1048576\n");
        assert_eq!(limit(&[("proc/self/cgroup", "0::/\n"), root]), Some(1_048_576));
        let first = "9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/x\n";
        let root = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n");
        assert_eq!(limit(&[("proc/self/cgroup", first), root]), Some(2_097_152));
        let none = ("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit(&[("proc/self/cgroup", first), none]), None);
    }

    #[test]
    fn memory_of_other_processes_of_the_cgroup_reduces_the_room() {
        let files = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "10000000\n"),
            ("sys/fs/cgroup/a/b/memory.stat", "anon 5096000\nfile 4000000\nkernel 900000\nshmem 1000\n"),
            // This process, and a child of it.
            ("proc/self/status", "Name:\tportolan\nRssAnon:\t    1000 kB\n"),
            ("proc/self/task/7/children", "\n"),
            ("proc/self/task/8/children", "9 \n"),
            ("proc/9/status", "RssAnon:\t    3000 kB\n"),
        ];
        let used = 5_096_000 + 1_000 - 4_000 * 1_024;
        assert_eq!(room(&files), Some(Room { limit: 10_000_000, others: used }));
        let of_files = |others: &[(&'static str, &'static str)]| room(&[&files[..], others].concat());
        let outer = [
            ("sys/fs/cgroup/a/memory.max", "12000000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 11000000\n"),
        ];
        let least = of_files(&outer).expect("a limit");
        assert_eq!((least.limit, least.free()), (12_000_000, 1_000_000 + 4_000 * 1_024));
        let first = [
            ("proc/self/cgroup", "4:memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8000\n"),
            ("sys/fs/cgroup/memory/x/memory.stat", "rss 1\ntotal_rss 3000\ntotal_shmem 2000\n"),
        ];
        assert_eq!(room(&first), Some(Room { limit: 8_000, others: 5_000 }));
    }

    #[test]
    fn the_memory_of_this_process_is_its_own() {
        let own = own_memory(&Host::default());
        assert!(own > 64 << 10, "{own}");
    }
}
