//! Tests that the programs and the kernel take no more memory for many rules than estimated.

use std::fs;
use std::path::{Path, PathBuf};

use portolan_iptables::{Memory, Programs, Size, Variant};
use portolan_model::{Change, Family};
use portolan_testkit::Namespace;

use super::example::{cluster_ip, put, settings};
use super::load::{LOCK, driven};
use super::wrapped::write_program;

/// Number of Services, unless `PORTOLAN_MEMORY_SERVICES` is set.
const SERVICES: u32 = 1_000;
const ENDPOINTS: u32 = 10;
/// Address space in bytes that is mapped but not used: programs and their libraries map more than they touch.
const UNUSED: u64 = 8 << 20;

/// If it is `1`, the tests fail where no cgroup shows the kernel's memory.
const CGROUP_MUST_RUN: &str = "PORTOLAN_TEST_CGROUP";

/// A cgroup that counts the kernel's memory.
struct Cgroup {
    folder: PathBuf,
    second: bool,
}

impl Cgroup {
    fn new(name: &str) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let of_memory =
            own.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path.to_owned()));
        let first = of_memory.map(|path| (format!("/sys/fs/cgroup/memory{path}"), false));
        // With cgroups v2, a cgroup that has processes cannot have children with controllers, but the root can.
        [first, Some(("/sys/fs/cgroup".to_owned(), true))].into_iter().flatten().find_map(
            |(parent, second)| {
                let folder = Path::new(&parent).join(format!("portolan-{name}-{}", std::process::id()));
                fs::create_dir(&folder).ok()?;
                let made = Self { folder, second };
                made.kernel().is_some().then_some(made)
            },
        )
    }

    /// Returns the kernel's memory in bytes.
    fn kernel(&self) -> Option<u64> {
        if self.second {
            let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
            return stat.lines().find_map(|line| line.strip_prefix("kernel "))?.parse().ok();
        }
        let usage = fs::read_to_string(self.folder.join("memory.kmem.usage_in_bytes")).ok()?;
        usage.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A folder for programs, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("portolan-memory-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the programs of a variant. None of them gets more than this memory.
fn limited(folder: &Path, variant: Variant, memory: Memory, cgroup: Option<&Cgroup>) -> Programs {
    let name = match variant {
        Variant::Nft => "iptables-nft",
        Variant::Legacy => "iptables-legacy",
    };
    let enter = cgroup.map(|cgroup| format!("echo $$ > {}/cgroup.procs\n", cgroup.folder.display()));
    for suffix in ["", "-save", "-restore"] {
        let script = format!(
            "#!/bin/sh\n{}ulimit -v {}\nexec {name}{suffix} \"$@\"\n",
            enter.as_deref().unwrap_or_default(),
            (memory.program + UNUSED) >> 10
        );
        write_program(&folder.join(format!("iptables{suffix}")), &script);
    }
    Programs::named(folder.join("iptables").display().to_string()).unwrap().with_lock(LOCK)
}

fn count() -> u32 {
    std::env::var("PORTOLAN_MEMORY_SERVICES").map_or(SERVICES, |text| text.parse().unwrap())
}

fn services(count: u32) -> Vec<Change> {
    let service = |number: u32| {
        let address = |base: u32, number: u32| std::net::Ipv4Addr::from(base + number).to_string();
        let endpoints: Vec<String> = (0..ENDPOINTS)
            .map(|n| format!("{}:8080", address(0x0ac8_0000, number * ENDPOINTS + n)))
            .collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        put(&format!("service-{number}"), "http", cluster_ip(&address(0x0a60_0000, number), 80, &endpoints))
    };
    (0..count).map(service).collect()
}

fn holds(variant: Variant) {
    let count = count();
    let size = Size { frontends: count.into(), endpoints: u64::from(count * ENDPOINTS) };
    let memory = size.memory(variant);
    let name = format!("{variant:?}").to_lowercase();
    let folder = Folder::new(&name);
    let cgroup = Cgroup::new(&name);
    let programs = limited(&folder.0, variant, memory, cgroup.as_ref());
    let node = Namespace::new(&format!("memory-{name}")).unwrap();
    node.run(|| {
        let open = || driven(programs.clone(), settings(Family::Ipv4));
        let mut dataplane = open();
        dataplane.apply(&services(count)).unwrap();
        let first = dataplane.resync().unwrap();
        assert!(first.elements > (count * ENDPOINTS * 3) as usize, "{first:?}");
        // One change, and a start that finds all rules in place.
        let web = cluster_ip("10.97.0.1", 80, &["10.201.0.1:8080"]);
        let web = [put("web", "http", web)];
        assert!(dataplane.apply(&web).unwrap().elements > 0);
        let mut again = open();
        again.apply(&services(count)).unwrap();
        again.apply(&web).unwrap();
        let second = again.resync().unwrap();
        assert!(second.full && second.elements == 0, "{second:?}");
        let wanted: Vec<_> = services(count).into_iter().chain(web).collect();
        let table: Vec<_> =
            wanted.into_iter().filter_map(|change| Some((change.name, change.new?))).collect();
        let observed = portolan_iptables::read(&programs, Family::Ipv4).unwrap().unwrap();
        assert_eq!(observed.difference(&table), []);
    })
    .unwrap();
    let Some(cgroup) = cgroup else {
        let must_run = std::env::var(CGROUP_MUST_RUN).is_ok_and(|value| value == "1");
        assert!(!must_run, "no cgroup here shows the kernel's memory; {CGROUP_MUST_RUN}=0 leaves this out");
        eprintln!("left out: no cgroup here shows the kernel's memory");
        return;
    };
    let kernel = cgroup.kernel().unwrap();
    eprintln!("{variant:?}: {} KiB of the kernel, said {} KiB", kernel >> 10, memory.kernel >> 10);
    assert!(kernel <= memory.kernel / 5 * 6 + (4 << 20), "{kernel} of {memory:?}");
    assert!(kernel >= memory.kernel / 2, "{kernel} of {memory:?}");
}

#[test]
fn memory_matches_the_estimate_in_nftables_front_end() {
    holds(Variant::Nft);
}

#[test]
fn memory_matches_the_estimate_in_the_older_iptables() {
    holds(Variant::Legacy);
}
