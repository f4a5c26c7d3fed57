//! Checks that a world leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use portolan_testkit::{Namespace, eventually};

/// A `portolan-world` process, with the namespaces and the child process that it holds.
pub(crate) struct WorldProcess {
    child: Child,
    paths: Vec<String>,
    grandchild: u32,
}

/// Starts a world in a process of its own, with a program running in its node.
pub(crate) fn start_world_with(program: &str, arguments: &[&str]) -> WorldProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan-world"));
    let mut child = command.arg(program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut paths = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(grandchild) = line.strip_prefix("started ") {
            return WorldProcess { child, paths, grandchild: grandchild.parse().unwrap() };
        }
        paths.push(line.split(' ').nth(1).unwrap().to_owned());
    }
    panic!("portolan-world ended early: {:?}", child.wait());
}

impl WorldProcess {
    pub(crate) fn namespaces(&self) -> &[String] {
        &self.paths
    }

    pub(crate) const fn grandchild(&self) -> u32 {
        self.grandchild
    }

    /// Sends SIGKILL to the process, and to no other.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for WorldProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Observes when the kernel removes a namespace: a link into the namespace vanishes with it. (The inode number would not
/// do: the next new namespace reuses it.)
pub(crate) struct Observer(Namespace);

impl Observer {
    /// Creates a link to each of the namespaces, which are given by paths.
    pub(crate) fn watch(paths: &[String]) -> Self {
        let observer = Namespace::new("observer").unwrap();
        let link = |(index, path): (usize, &String)| {
            format!("link add watch{index} type veth peer name observer netns {path}\n")
        };
        observer.ip(&paths.iter().enumerate().map(link).collect::<String>()).unwrap();
        let observer = Self(observer);
        assert_eq!(observer.alive(), paths.len(), "they are there while they live");
        observer
    }

    fn alive(&self) -> usize {
        let links = self.0.output("ip", &["-o", "link", "show"]).unwrap();
        links.lines().filter(|line| line.contains(" watch")).count()
    }

    /// Waits until the kernel has removed the namespaces, and fails if that takes too long.
    pub(crate) fn assert_gone(&self) {
        eventually(Duration::from_secs(30), "the end of the namespaces", || self.alive() == 0).unwrap();
    }
}

/// Waits until the process has ended, and fails if that takes too long. A zombie that its parent has not waited for has
/// ended.
pub(crate) fn assert_ended(process: u32) {
    let alive =
        || fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    eventually(Duration::from_secs(60), "the end of the grandchild", || !alive()).unwrap();
}
