//! The memory limit that this process runs under (cgroups, `cgroups(7)`).
//!
//! In flow the files of a [`Host`]; out flows the lowest limit of the cgroup and those around it that can be seen.

use crate::sysctl::Host;

/// The cgroups of this process, one line for each hierarchy.
const OWN: &str = "/proc/self/cgroup";
/// Where cgroups of version 2 are folders.
const SECOND: &str = "/sys/fs/cgroup";
/// Where those of version 1 that count memory are.
const FIRST: &str = "/sys/fs/cgroup/memory";
/// Version 1 has no word for no limit, but a number that is near to this.
const NO_LIMIT: u64 = 1 << 60;

/// The memory limit in bytes, where there is one. That of a container is seen from inside.
pub fn memory_limit(host: &Host) -> Option<u64> {
    let own = host.read(OWN)?;
    let mut limits = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => (SECOND, "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => (FIRST, "memory.limit_in_bytes"),
            _ => continue,
        };
        // From inside a container the path may be that of outside: what is not there is passed over.
        let levels = around(path).filter_map(|level| host.read(&format!("{root}{level}/{file}")));
        limits.extend(levels.filter_map(|limit| limit.parse::<u64>().ok()));
    }
    limits.into_iter().filter(|limit| *limit < NO_LIMIT).min()
}

/// A cgroup and all that it is in: `/a/b`, `/a`, and nothing, which is the root.
fn around(path: &str) -> impl Iterator<Item = &str> {
    let trimmed = path.trim_end_matches('/');
    std::iter::successors(Some(trimmed), |level| level.rsplit_once('/').map(|(outer, _)| outer))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for (path, content) in files {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
            fs::write(file, content).expect("a file");
        }
        memory_limit(&Host::below(folder.path()))
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
}
