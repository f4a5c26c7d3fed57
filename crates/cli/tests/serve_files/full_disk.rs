use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use portolan_testkit::PortolanProcess;
use serde_json::json;
use tempfile::{TempDir, tempdir};

use crate::site::{PATIENCE, Site, until};

const SERVICES: &str = "/api/v1/namespaces/default/services";
/// Mounts a small disk in a mount namespace of the server.
const START: &str = "mount -t tmpfs -o size=24m,mode=0700 tmpfs \"$0\" && exec \"$@\"";
/// Runs the server twice on one disk: the second run begins when the first is killed.
const START_TWICE: &str = "mount -t tmpfs -o size=24m,mode=0700 tmpfs \"$0\" && { \"$@\" ; exec \"$@\" ; }";
/// Does the same, but before the second run another program leaves less space than the reserve.
const START_TWICE_NARROW: &str = "mount -t tmpfs -o size=24m,mode=0700 tmpfs \"$0\" && { \"$@\" ; \
    rm \"$0/reserve\" && left=$(df --output=avail -k \"$0\" | tail -n 1) && \
    fallocate -l $((left - 3000))K \"$0/narrow\" && exec \"$@\" ; }";
/// Bytes of the complete reserve.
const RESERVE: u64 = 4 << 20;

/// A server whose data folder is a disk of 24 MiB.
struct Small {
    site: Site,
    server: PortolanProcess,
    folder: TempDir,
}

impl Small {
    fn start() -> Self {
        let (site, folder) = (Site::new(), tempdir().unwrap());
        let path = folder.path().to_str().unwrap();
        let before = ["unshare", "--mount", "sh", "-c", START, path];
        let mut server = site.serve(&before, &["--data-dir", path]);
        site.ready(&mut server);
        Self { site, server, folder }
    }

    /// Returns the path of a file on the disk, as the server sees it.
    fn on_disk(&self, name: &str) -> PathBuf {
        on_disk(&self.server, &self.folder, name)
    }

    fn create(&self, name: &str, bytes: usize) -> u16 {
        let service = json!({
            "metadata": {"name": name, "annotations": {"example.com/large": "x".repeat(bytes)}},
            "spec": {"ports": [{"port": 80}]},
        });
        self.site.ask("POST", SERVICES, &service.to_string()).code
    }

    fn delete(&self, name: &str) {
        let answer = self.site.ask("DELETE", &format!("{SERVICES}/{name}"), "");
        assert_eq!(answer.code, 200, "{name}: {}", answer.body);
    }

    fn is_ready(&self) -> bool {
        self.site.ask("GET", "/readyz", "").code == 200
    }

    /// Creates Services until the disk is full. Returns their number.
    fn fill(&self) -> usize {
        for number in 0..1000 {
            let code = self.create(&format!("s{number}"), 200_000);
            if code == 503 {
                return number;
            }
            assert_eq!(code, 201);
        }
        panic!("the disk is never full");
    }

    /// Fills the remaining space with a file of another program.
    fn fill_from_outside(&self) -> PathBuf {
        let path = self.on_disk("other");
        let mut file = fs::File::create(&path).unwrap();
        // The copy ends with an error when the disk is full.
        std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
        path
    }
}

/// Returns the path of a file in a folder, as the process sees it.
fn on_disk(process: &PortolanProcess, folder: &TempDir, name: &str) -> PathBuf {
    let folder = folder.path().strip_prefix("/").unwrap();
    PathBuf::from(format!("/proc/{}/root", process.id())).join(folder).join(name)
}

#[test]
fn on_a_full_disk_deletions_make_room() {
    let small = Small::start();
    let count = small.fill();
    assert!(count > 10, "{count}");
    let said = small.site.ask("GET", "/readyz", "");
    assert_eq!((said.code, said.body.contains("[-]store")), (503, true), "{}", said.body);
    assert_eq!(small.site.ask("GET", "/livez", "").code, 200);
    let refused = small.site.ask("PATCH", &format!("{SERVICES}/s0"), "{}");
    assert_eq!(refused.code, 415, "requests are judged as ever: {}", refused.body);
    let service = json!({"metadata": {"name": "tiny"}, "spec": {"ports": [{"port": 80}]}});
    let refused = small.site.ask("POST", SERVICES, &service.to_string());
    assert!(refused.code == 503 && refused.body.contains("delete objects"), "{}", refused.body);
    // One after the other, and none is refused.
    for number in 0..count {
        small.delete(&format!("s{number}"));
    }
    assert_eq!(small.site.names(SERVICES), ["kubernetes"]);
    // A load balancer sends no requests before the server is ready.
    until("the server is ready", || small.is_ready());
    assert_eq!(small.create("again", 200_000), 201);
    small.delete("again");
    // Deletions make room repeatedly.
    for _ in 0..3 {
        let count = small.fill();
        assert!(count > 10, "{count}");
        for number in 0..count {
            small.delete(&format!("s{number}"));
        }
        until("the server is ready", || small.is_ready());
        assert_eq!(small.create("again", 200_000), 201);
        small.delete("again");
    }
}

#[test]
fn on_a_full_disk_small_deletions_cost_no_watch_its_history() {
    let small = Small::start();
    for number in 0..5 {
        assert_eq!(small.create(&format!("small{number}"), 1000), 201);
    }
    let list: serde_json::Value = serde_json::from_str(&small.site.ask("GET", SERVICES, "").body).unwrap();
    let from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    small.fill();
    for number in 0..5 {
        small.delete(&format!("small{number}"));
        // Written if there is room, or else refused.
        let code = small.create(&format!("other{number}"), 200_000);
        assert!([201, 503].contains(&code), "{code}");
        let path = format!("{SERVICES}?watch=1&timeoutSeconds=1&resourceVersion={from}");
        let watched = small.site.ask("GET", &path, "");
        assert!(watched.code == 200 && watched.body.contains("\"small0\""), "{}", watched.code);
        assert!(!watched.body.contains("\"ERROR\""), "a watch that is behind has to begin anew");
    }
    let said = small.server.output();
    assert!(!said.contains("forgot_history=true"), "{said}");
}

#[test]
fn on_a_full_disk_objects_with_finalizers_and_namespaces_can_be_deleted() {
    let small = Small::start();
    let site = &small.site;
    let team = json!({"metadata": {"name": "team"}}).to_string();
    assert_eq!(site.ask("POST", "/api/v1/namespaces", &team).code, 201);
    for number in 0..20 {
        let service = json!({"metadata": {"name": format!("s{number}")}, "spec": {"ports": [{"port": 80}]}});
        let path = "/api/v1/namespaces/team/services";
        assert_eq!(site.ask("POST", path, &service.to_string()).code, 201);
    }
    let held = json!({
        "metadata": {"name": "held", "finalizers": ["example.com/holds"]},
        "spec": {"ports": [{"port": 80}]},
    });
    assert_eq!(site.ask("POST", SERVICES, &held.to_string()).code, 201);
    small.fill();
    // The Service is marked, and is deleted when its finalizers are removed.
    let path = format!("{SERVICES}/held");
    let marked = site.ask("DELETE", &path, "");
    assert!(marked.code == 200 && marked.body.contains("deletionTimestamp"), "{}", marked.body);
    let mut object: serde_json::Value = serde_json::from_str(&site.ask("GET", &path, "").body).unwrap();
    object["metadata"]["finalizers"] = json!([]);
    let released = site.ask("PUT", &path, &object.to_string());
    assert_eq!(released.code, 200, "{}", released.body);
    assert_eq!(site.ask("GET", &path, "").code, 404);
    // A Namespace is marked, its objects are deleted, and it is deleted last.
    let deleted = site.ask("DELETE", "/api/v1/namespaces/team", "");
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    until("the Namespace is gone", || site.ask("GET", "/api/v1/namespaces/team", "").code == 404);
    assert!(site.names("/api/v1/namespaces/team/services").is_empty());
    assert!(!small.is_ready(), "so little makes no room for everything");
}

#[test]
fn a_held_part_of_the_reserve_is_not_released() {
    let mut lives = TwoLives::start(START_TWICE_NARROW);
    lives.kill();
    // At its start, the server tries once to shorten its file, which needs the reserve.
    until("the file is made short", || lives.shell.output().contains("made shorter"));
    let at = |name: &str| on_disk(&lives.shell, &lives.folder, name);
    let held = || fs::metadata(at("reserve")).unwrap().len();
    until("a part of the reserve is held", || held() > 0);
    let before = held();
    assert!(before < RESERVE, "{before}");
    // From here only the probe writes, and another program takes all free space, for several probes.
    let mut file = fs::File::create(at("other")).unwrap();
    let mut least = before;
    let end = Instant::now() + Duration::from_secs(7);
    while Instant::now() < end {
        let _ = std::io::copy(&mut std::io::repeat(1), &mut file);
        least = least.min(held());
    }
    assert!(least >= before, "{least} of {before} bytes");
    drop(file);
    for name in ["other", "narrow"] {
        fs::remove_file(at(name)).unwrap();
    }
    until("the server is ready", || lives.site.ask("GET", "/readyz", "").code == 200);
    assert_eq!(held(), RESERVE);
}

#[test]
fn a_disk_filled_by_another_program_is_detected_and_so_is_its_recovery() {
    let mut small = Small::start();
    for number in 0..5 {
        assert_eq!(small.create(&format!("s{number}"), 100_000), 201);
    }
    let other = small.fill_from_outside();
    until("a write is refused", || small.create(&format!("n{}", fastrand::u32(..)), 200_000) == 503);
    until("the server says that it is not ready", || !small.is_ready());
    small.delete("s0");
    // The same with a deletion of a collection.
    assert_eq!(
        small.site.ask("DELETE", &format!("{SERVICES}?fieldSelector=metadata.name%3Ds1"), "").code,
        200
    );
    assert!(!small.site.names(SERVICES).contains(&"s1".to_owned()));
    assert!(!small.is_ready(), "others fill the disk still");
    fs::remove_file(other).unwrap();
    // Nothing is written, and the server still notices.
    until("the server is ready", || small.is_ready());
    assert_eq!(small.create("after", 200_000), 201);
    assert!(small.server.terminate(PATIENCE).unwrap().success());
}

/// A server that runs twice on one disk: the second run begins when the first is killed.
struct TwoLives {
    site: Site,
    shell: PortolanProcess,
    folder: TempDir,
    /// Number of large Services in the first run.
    count: usize,
}

impl TwoLives {
    /// Starts the first run.
    fn start(script: &str) -> Self {
        let folder = tempdir().unwrap();
        let (site, path) = (Site::new(), folder.path().to_str().unwrap());
        let before = ["unshare", "--mount", "sh", "-c", script, path];
        let mut shell = site.serve(&before, &["--data-dir", path]);
        site.ready(&mut shell);
        Self { site, shell, folder, count: 0 }
    }

    /// Creates Services until the disk is full.
    fn fill(&mut self) {
        loop {
            let service = json!({
                "metadata": {"name": format!("s{}", self.count), "annotations": {"a": "x".repeat(200_000)}},
                "spec": {"ports": [{"port": 80}]},
            });
            match self.site.ask("POST", SERVICES, &service.to_string()).code {
                201 => self.count += 1,
                code => {
                    assert_eq!(code, 503);
                    return;
                }
            }
        }
    }

    fn delete_all(&self) {
        for number in 0..self.count {
            let answer = self.site.ask("DELETE", &format!("{SERVICES}/s{number}"), "");
            assert_eq!(answer.code, 200, "{}", answer.body);
        }
    }

    /// Kills the first run and waits for the second.
    fn kill(&mut self) {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.shell.id())).unwrap();
        let first = children.split_whitespace().next().unwrap().parse().ok();
        let first = first.and_then(rustix::process::Pid::from_raw).unwrap();
        rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
        let site = &self.site;
        let is_alive = || site.try_ask("GET", "/livez", "").is_some_and(|answer| answer.code == 200);
        self.shell.wait_until(PATIENCE, "the second life", is_alive).unwrap();
    }
}

#[test]
fn a_server_that_was_killed_on_a_full_disk_starts_and_deletes() {
    let mut lives = TwoLives::start(START_TWICE);
    lives.fill();
    lives.kill();
    assert_eq!(lives.site.names(SERVICES).len(), lives.count + 1);
    lives.delete_all();
    let service = json!({"metadata": {"name": "again"}, "spec": {"ports": [{"port": 80}]}}).to_string();
    until("there is room again", || lives.site.ask("POST", SERVICES, &service).code == 201);
}

#[test]
fn a_server_that_was_killed_before_it_made_room_makes_it_when_it_starts() {
    let mut lives = TwoLives::start(START_TWICE);
    lives.fill();
    lives.delete_all();
    lives.kill();
    // Nothing is deleted, and no client sends a request.
    let site = &lives.site;
    until("the server is ready", || site.ask("GET", "/readyz", "").code == 200);
}
