//! kubectl and `portolan serve`: what docs/serve.md says of them, with every kubectl of this machine. `make test`
//! provides the one of Debian.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "deploy/files.rs"]
#[allow(dead_code, reason = "most of it is for the tests of deploy/")]
mod files;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use portolan_testkit::{Namespace, PortolanProcess};
use serde_json::Value;
use tempfile::TempDir;

use files::{BINARY, read, tool, tools, yaml};

const PATIENCE: Duration = Duration::from_secs(30);
const SERVER: &str = "kubectl --kubeconfig admin.conf";

/// `portolan serve` in a namespace, and a folder with one kubectl and the example of the page.
struct Shell {
    node: Namespace,
    folder: TempDir,
    _server: PortolanProcess,
}

impl Shell {
    fn new(kubectl: &Path) -> Self {
        let node = Namespace::new("kubectl").unwrap();
        node.ip("link set lo up\n").unwrap();
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (data, config) = (at("data"), at("admin.conf"));
        let arguments = ["serve", "--data-dir", &data, "--service-cluster-ip-range", "10.96.0.0/16"];
        let mut server = PortolanProcess::start(&node, BINARY.as_ref(), &arguments).unwrap();
        server.wait_for_output(PATIENCE, "serving").unwrap();
        let mut command = Command::new(BINARY);
        command.args(["serve", "kubeconfig", "--role", "admin", "--data-dir", &data, "--output", &config]);
        files::run(command);
        std::os::unix::fs::symlink(kubectl, folder.path().join("kubectl")).unwrap();
        fs::write(folder.path().join("web.yaml"), blocks(&page(), "yaml").concat()).unwrap();
        Self { node, folder, _server: server }
    }

    /// Runs a line of shell. No configuration and no cache of this machine's user has a part in it.
    fn run(&self, line: &str) -> Output {
        let folder = self.folder.path();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = self.node.command("sh");
        command.args(["-c", &format!("cd {} && {line}", folder.display())]);
        command.env("PATH", path).env("HOME", folder).env("KUBECONFIG", "/dev/null");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap().wait_with_output().unwrap()
    }

    /// What a line prints that ends well.
    fn good(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// What a line complains about that ends badly.
    fn bad(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = self.run(line);
        assert!(!status.success(), "{line}: {}", String::from_utf8_lossy(&stdout));
        String::from_utf8(stderr).unwrap()
    }

    fn object(&self, what: &str) -> Value {
        yaml(what, &self.good(&format!("{SERVER} -n shop get {what} -o yaml"))).remove(0)
    }
}

fn page() -> String {
    read("docs/serve.md")
}

/// The blocks of code that are marked as one language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let start = format!("```{language}\n");
    page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The lines of the page that call kubectl.
fn commands() -> Vec<String> {
    page().lines().filter(|line| line.starts_with("kubectl ")).map(str::to_owned).collect()
}

/// One shell for each kubectl.
fn shells() -> Vec<Shell> {
    // Fails where there has to be one.
    drop(tool("kubectl"));
    tools("kubectl").iter().map(|kubectl| Shell::new(kubectl)).collect()
}

#[test]
fn the_commands_of_the_page_work() {
    let commands = commands();
    let (last, first) = commands.split_last().unwrap();
    assert!(first.len() > 5 && last.contains(" delete "), "{commands:?}");
    for shell in shells() {
        let printed: Vec<String> = first.iter().map(|line| shell.good(line)).collect();
        assert!(printed.concat().contains("service/web created"), "{printed:#?}");
        let service = shell.object("service web");
        assert_eq!(service["spec"]["clusterIP"], "10.96.0.80");
        assert_eq!(service["spec"]["sessionAffinity"], "ClientIP");
        assert_eq!(service["metadata"]["labels"]["tier"], "front");
        shell.good(last);
        assert_eq!(shell.good(&format!("{SERVER} get services,endpointslices,nodes -A -o name")), "");
    }
}

#[test]
fn replace_writes_what_the_file_says() {
    for shell in shells() {
        shell.good(&format!("{SERVER} create --validate=false -f web.yaml"));
        shell.good("sed -i 's/8080/8090/' web.yaml");
        shell.good(&format!("{SERVER} replace --validate=false -f web.yaml"));
        let slice = shell.object("endpointslice web-1");
        assert_eq!(slice["ports"][0]["port"], 8090);
        assert_eq!(slice["endpoints"].as_array().map(Vec::len), Some(2));
        assert_eq!(shell.object("service web")["spec"]["ports"][0]["targetPort"], 8090);
    }
}

/// As the page says: it is to be changed when one of these works.
#[test]
fn what_the_page_says_not_to_work() {
    for shell in shells() {
        shell.bad(&format!("{SERVER} create -f web.yaml"));
        shell.good(&format!("{SERVER} apply --validate=false -f web.yaml"));
        shell.good("sed -i 's/targetPort: 8080/targetPort: 8090/' web.yaml");
        let strategic = [
            "apply --validate=false -f web.yaml",
            "-n shop patch service web -p '{\"spec\":{\"sessionAffinity\":\"ClientIP\"}}'",
        ];
        for line in strategic {
            let complaint = shell.bad(&format!("{SERVER} {line}"));
            assert!(complaint.contains("application/strategic-merge-patch+json"), "{complaint}");
        }
        let complaint = shell.bad(&format!("{SERVER} apply --server-side --validate=false -f web.yaml"));
        assert!(complaint.contains("application/apply-patch+yaml"), "{complaint}");
    }
}
