//! A node with `portolan serve` and one kubectl.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use portolan_testkit::{Namespace, NamespaceCommand, PortolanProcess};
use serde_json::Value;
use tempfile::TempDir;

use super::files::{self, BINARY, yaml};
use super::{PATIENCE, SERVER, blocks, page};

/// `portolan serve` in a namespace, and a folder with one kubectl and the example of the page.
pub(crate) struct Shell {
    pub(crate) node: Namespace,
    pub(crate) folder: TempDir,
    _server: PortolanProcess,
}

impl Shell {
    /// Starts the server, with these further arguments.
    pub(crate) fn new(kubectl: &Path, more: &[&str]) -> Self {
        let node = Namespace::new("kubectl").unwrap();
        node.ip("link set lo up\n").unwrap();
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (data, config) = (at("data"), at("admin.conf"));
        let arguments = ["serve", "--data-dir", &data, "--service-cluster-ip-range", "10.96.0.0/16"];
        let arguments = [&arguments[..], more].concat();
        let mut server = PortolanProcess::start(&node, BINARY.as_ref(), &arguments).unwrap();
        server.wait_for_output(PATIENCE, "serving").unwrap();
        let mut command = Command::new(BINARY);
        command.args(["serve", "kubeconfig", "--role", "admin", "--data-dir", &data, "--output", &config]);
        files::run(command);
        std::os::unix::fs::symlink(kubectl, folder.path().join("kubectl")).unwrap();
        fs::write(folder.path().join("web.yaml"), blocks(&page(), "yaml").concat()).unwrap();
        Self { node, folder, _server: server }
    }

    /// Returns a command that runs a shell line, without the configuration and cache of the machine's user.
    pub(crate) fn command(&self, line: &str) -> NamespaceCommand {
        let folder = self.folder.path();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = self.node.command("sh");
        command.args(["-c", &format!("cd {} && {line}", folder.display())]);
        command.env("PATH", path).env("HOME", folder).env("KUBECONFIG", "/dev/null");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        self.command(line).spawn().unwrap().wait_with_output().unwrap()
    }

    /// Runs kubectl, asserts success and returns its output.
    pub(crate) fn kubectl(&self, arguments: &str) -> String {
        self.good(&format!("{SERVER} -n shop {arguments}"))
    }

    /// Starts a kubectl that keeps running, and returns its output line by line.
    pub(crate) fn follow(&self, arguments: &str) -> Follow {
        let mut child = self.command(&format!("exec {SERVER} -n shop {arguments}")).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Follow { child, lines }
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Runs a line, asserts success and returns its stdout.
    pub(crate) fn good(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// Runs a line, asserts failure and returns its stderr.
    pub(crate) fn bad(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        assert!(!status.success(), "{line}: {}", String::from_utf8_lossy(&stdout));
        String::from_utf8(stderr).unwrap()
    }

    /// Returns the minor version of this kubectl. Debian 12 has 1.20.
    pub(crate) fn minor(&self) -> u32 {
        let version: Value =
            serde_json::from_str(&self.good("kubectl version --client --output=json")).unwrap();
        version["clientVersion"]["minor"].as_str().unwrap().trim_end_matches('+').parse().unwrap()
    }

    pub(crate) fn object(&self, what: &str) -> Value {
        yaml(what, &self.good(&format!("{SERVER} -n shop get {what} -o yaml"))).remove(0)
    }
}

/// A running kubectl. It is killed when dropped.
pub(crate) struct Follow {
    child: Child,
    lines: Receiver<String>,
}

impl Follow {
    pub(crate) fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("another line")
    }

    /// Reads up to the next line that contains a text.
    pub(crate) fn until(&self, text: &str) {
        while !self.next().contains(text) {}
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
