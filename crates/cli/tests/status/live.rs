//! `portolan status --watch` in a terminal, which `script` of util-linux provides.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use portolan_testkit::eventually;

use super::Protocol;
use super::common::{BINARY, Cluster, PATIENCE, at, objects, reaches};

/// What shows the other screen, and what shows the former one (xterm's private mode 1049).
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const LINES: u16 = 24;
const COLUMNS: u16 = 80;

/// The live view in a terminal of 80 columns and 24 lines.
struct Live {
    child: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Live {
    fn start(socket: &Path) -> Self {
        let view = format!("echo pid=$$=; exec {BINARY} status --watch --socket {}", socket.display());
        let command =
            format!("stty rows {LINES} cols {COLUMNS}; stty -a; sh -c '{view}'; echo status=$?=; stty -a");
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

    /// Returns what the operator sees.
    fn screen(&self) -> String {
        let mut terminal = vt100::Parser::new(LINES, COLUMNS, 0);
        terminal.process(&self.shown.lock().unwrap());
        terminal.screen().contents()
    }

    /// Waits until the screen has a text, and does something again and again meanwhile.
    fn until_while(&self, text: &str, work: impl Fn()) {
        let outcome = eventually(PATIENCE, text, || {
            work();
            self.screen().contains(text)
        });
        assert!(outcome.is_ok(), "{text}: {}", self.screen());
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
        // The cursor is visible again.
        assert!(shown.rfind("\x1b[?25l") < shown.rfind("\x1b[?25h"), "{shown:?}");
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

/// In a pipe, the state is printed again and again.
#[test]
fn without_a_terminal_the_state_is_printed_until_the_reader_leaves() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let socket = cluster.control_socket();
    let mut watching = Command::new(BINARY)
        .args(["status", "--watch", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(lines.any(|line| line.unwrap().starts_with("In sync")));
    }
    drop(lines);
    let ended = eventually(PATIENCE, "the end", || watching.try_wait().unwrap().is_some());
    let _ = watching.kill();
    assert!(ended.is_ok());
    assert_eq!(watching.wait().unwrap().code(), Some(0));
}
