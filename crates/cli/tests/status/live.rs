//! `portolan status --watch` in a terminal, which `script` of util-linux provides.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use portolan_testkit::eventually;

use super::common::{BINARY, Cluster, PATIENCE, at, objects, reaches};
use super::{Protocol, status};

/// What shows the other screen, and what shows the former one.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The live view in a terminal of 80 columns and 24 lines.
struct Live {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Live {
    fn start(socket: &Path) -> Self {
        let view = format!("echo pid=$$=; exec {BINARY} status --watch --socket {}", socket.display());
        let command = format!("stty rows 24 cols 80; stty -a; sh -c '{view}'; echo status=$?=; stty -a");
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = output.read(&mut bytes) {
                if count == 0 {
                    return;
                }
                kept.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, keys, shown }
    }

    /// Returns everything that was written to the terminal.
    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until the screen, as it was drawn last, has a text.
    fn until(&self, text: &str) {
        self.until_while(text, || ());
    }

    /// Waits until the screen, as it was drawn last, has a text, and does something again and again meanwhile.
    fn until_while(&self, text: &str, work: impl Fn()) {
        let last = || self.shown().rsplit("\x1b[H").next().unwrap_or_default().to_owned();
        let outcome = eventually(PATIENCE, text, || {
            work();
            last().contains(text)
        });
        assert!(outcome.is_ok(), "{text}: {}", self.shown());
    }

    /// Returns the value in `name=value=`.
    fn value(&self, name: &str) -> String {
        let shown = self.shown();
        let (_, rest) = shown.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("{name}: {shown}"));
        rest.split('=').next().unwrap().to_owned()
    }

    /// Waits for the end, and checks that the terminal is as it was. Returns the exit status.
    fn end(mut self) -> String {
        let ended = eventually(PATIENCE, "the end", || self.child.try_wait().unwrap().is_some());
        assert!(ended.is_ok(), "{}", self.shown());
        let ended =
            eventually(PATIENCE, "the rest of the output", || self.shown().matches("icanon").count() == 2);
        let shown = self.shown();
        assert!(ended.is_ok() && shown.find(ENTER) < shown.find(LEAVE), "{shown:?}");
        let settings: Vec<&str> = shown.lines().filter(|line| line.contains("icanon")).collect();
        assert!(settings[0] == settings[1] && !settings[0].contains("-icanon"), "{settings:?}");
        assert_eq!(shown.matches("susp = ^Z").count(), 2, "{shown:?}");
        self.value("status")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_live_view_follows_the_agent_and_restores_the_terminal() {
    let cluster = Cluster::new();
    let proxy = cluster.proxy();
    let socket = cluster.control_socket();
    let mut live = Live::start(&socket);
    live.until("node1: in sync (mode nftables");
    assert!(live.shown().contains("\x1b[K\x1b[J"), "{:?}", live.shown());
    live.until("/min");
    cluster.service(objects::cluster_ip("late", "10.96.0.78"), &[&cluster.world.pods()[0]]);
    let pod = &cluster.world.pods()[0];
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.78:80"), &[pod]);
    live.until("default/late");
    live.until("New connections: the nftables mode counts only if");
    cluster.configure("portolan: {serviceCounters: true}\n");
    live.until_while("/s; default/late ", || {
        reaches(cluster.world.client().namespace(), Protocol::Tcp, at("10.96.0.78:80"), &[pod]);
    });
    live.keys.write_all(b"xq").unwrap();
    assert_eq!(live.end(), "0");

    for signal in ["INT", "TERM", "HUP", "QUIT"] {
        let live = Live::start(&socket);
        live.until("node1: in sync");
        let killed = Command::new("kill").args(["-s", signal, &live.value("pid")]).status().unwrap();
        assert!(killed.success(), "{signal}");
        assert_eq!(live.end(), "0", "{signal}");
    }

    // Without the agent the last state stays, with the reason.
    let mut live = Live::start(&socket);
    live.until("node1: in sync");
    drop(proxy);
    live.until("No answer: no proxy answers at");
    live.keys.write_all(b"q").unwrap();
    assert_eq!(live.end(), "1");
}

#[test]
fn without_a_terminal_there_is_no_live_view() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let shown = status(&cluster.control_socket(), &["--watch"]);
    assert_eq!((shown.code, shown.stdout.as_str()), (1, ""));
    assert!(shown.stderr.contains("Error: --watch needs a terminal"), "{}", shown.stderr);
}
