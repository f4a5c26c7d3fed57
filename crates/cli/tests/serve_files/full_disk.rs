use std::fs;
use std::path::PathBuf;

use portolan_testkit::PortolanProcess;
use serde_json::json;
use tempfile::{TempDir, tempdir};

use crate::site::{PATIENCE, Site, until};

const SERVICES: &str = "/api/v1/namespaces/default/services";
/// Mounts a small disk in a mount namespace of the server's own, which ends with it.
const START: &str = "mount -t tmpfs -o size=24m,mode=0700 tmpfs \"$0\" && exec \"$@\"";

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

    /// A file on the disk, as the server sees it.
    fn on_disk(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().strip_prefix("/").unwrap();
        PathBuf::from(format!("/proc/{}/root", self.server.id())).join(folder).join(name)
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

    /// Creates Services until the disk is full; returns their number.
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

    /// Fills what is left with a file of another program.
    fn fill_from_outside(&self) -> PathBuf {
        let path = self.on_disk("other");
        let mut file = fs::File::create(&path).unwrap();
        // It ends with an error when there is no room.
        std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
        path
    }
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
    // One after the other, none refused; one with finalizers is marked first.
    for number in 0..count {
        small.delete(&format!("s{number}"));
    }
    assert_eq!(small.site.names(SERVICES), ["kubernetes"]);
    until("there is room again", || small.create("again", 200_000) == 201);
    until("the server is ready", || small.is_ready());
    small.delete("again");
    // The room is there again and again.
    for _ in 0..3 {
        let count = small.fill();
        assert!(count > 10, "{count}");
        for number in 0..count {
            small.delete(&format!("s{number}"));
        }
        until("there is room again", || small.create("again", 200_000) == 201);
        small.delete("again");
    }
}

#[test]
fn a_disk_that_others_fill_is_noticed_and_so_is_that_it_is_mended() {
    let mut small = Small::start();
    for number in 0..5 {
        assert_eq!(small.create(&format!("s{number}"), 100_000), 201);
    }
    let other = small.fill_from_outside();
    until("a write is refused", || small.create(&format!("n{}", fastrand::u32(..)), 200_000) == 503);
    until("the server says that it is not ready", || !small.is_ready());
    small.delete("s0");
    // A Namespace goes with all that is in it, which takes many writes.
    assert_eq!(
        small.site.ask("DELETE", &format!("{SERVICES}?fieldSelector=metadata.name%3Ds1"), "").code,
        200
    );
    assert!(!small.site.names(SERVICES).contains(&"s1".to_owned()));
    assert!(!small.is_ready(), "others fill the disk still");
    fs::remove_file(other).unwrap();
    // Nothing is written, yet it is found out.
    until("the server is ready", || small.is_ready());
    assert_eq!(small.create("after", 200_000), 201);
    assert!(small.server.terminate(PATIENCE).unwrap().success());
}

#[test]
fn a_server_that_was_killed_on_a_full_disk_starts_and_deletes() {
    let folder = tempdir().unwrap();
    let (site, path) = (Site::new(), folder.path().to_str().unwrap());
    // Two lives on one disk: the second begins when the first is killed.
    let script = format!("{START} ; exec \"$@\"").replace("exec \"$@\" ;", "\"$@\" ;");
    let before = ["unshare", "--mount", "sh", "-c", &script, path];
    let mut shell = site.serve(&before, &["--data-dir", path]);
    site.ready(&mut shell);
    let names = |site: &Site| site.names(SERVICES);
    let mut count = 0;
    loop {
        let service = json!({
            "metadata": {"name": format!("s{count}"), "annotations": {"a": "x".repeat(200_000)}},
            "spec": {"ports": [{"port": 80}]},
        });
        match site.ask("POST", SERVICES, &service.to_string()).code {
            201 => count += 1,
            code => {
                assert_eq!(code, 503);
                break;
            }
        }
    }
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
    let first =
        children.split_whitespace().next().unwrap().parse().ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(first.unwrap(), rustix::process::Signal::KILL).unwrap();
    shell
        .wait_until(PATIENCE, "the second life", || {
            site.try_ask("GET", "/livez", "").is_some_and(|answer| answer.code == 200)
        })
        .unwrap();
    assert_eq!(names(&site).len(), count + 1);
    for number in 0..count {
        let answer = site.ask("DELETE", &format!("{SERVICES}/s{number}"), "");
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
    let service = json!({"metadata": {"name": "again"}, "spec": {"ports": [{"port": 80}]}}).to_string();
    until("there is room again", || site.ask("POST", SERVICES, &service).code == 201);
}
