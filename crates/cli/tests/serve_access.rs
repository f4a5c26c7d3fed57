//! Access to `portolan serve` through the binary: first start, kubeconfigs, errors.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use portolan_testkit::{Namespace, PortolanProcess, World};
use tempfile::tempdir;

use common::{BINARY, PATIENCE, configuration, in_sync, objects};

/// Runs the binary. Returns exit code, stdout and stderr.
fn portolan(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(BINARY).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn serve(world: &World, data: &Path, manifests: &Path) -> PortolanProcess {
    let arguments = ["serve", "--data-dir", text(data), "--manifests", text(manifests)];
    let mut server = PortolanProcess::start(world.node().namespace(), BINARY.as_ref(), &arguments).unwrap();
    server.wait_for_output(PATIENCE, "tls=true").unwrap();
    server
}

#[test]
fn a_proxy_connects_with_a_kubeconfig_from_before_the_first_start() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (data, config) = (at("deep/data"), at("proxy.conf"));
    let (code, printed, _) = portolan(&["serve", "kubeconfig", "--role", "proxy", "--data-dir", text(&data)]);
    assert_eq!(code, 0);
    fs::write(&config, &printed).unwrap();

    let world = common::world();
    let manifests = at("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("node.json"), objects::node(&world).to_string()).unwrap();
    let mut server = serve(&world, &data, &manifests);
    let yaml = format!("clientConnection: {{kubeconfig: {}}}\n", config.display());
    fs::write(at("config.yaml"), configuration(&yaml)).unwrap();
    let arguments = ["proxy", "--config", text(&at("config.yaml"))].map(str::to_owned);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut proxy = PortolanProcess::start(world.node().namespace(), BINARY.as_ref(), &arguments).unwrap();
    in_sync(&mut proxy);

    for name in ["ca.crt", "ca.key", "server.crt", "server.key"] {
        assert_eq!(mode(&data.join("pki").join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&data.join("pki")), 0o700);
    let authority = fs::read(data.join("pki/ca.crt")).unwrap();

    // A killed server has the same identity for its clients after a restart.
    server.kill().unwrap();
    let mut server = serve(&world, &data, &manifests);
    assert_eq!(fs::read(data.join("pki/ca.crt")).unwrap(), authority);
    let another = portolan(&["serve", "kubeconfig", "--role", "proxy", "--data-dir", text(&data)]).1;
    let vouches = |text: &str| text.contains(&line_of(&printed));
    assert!(vouches(&another) && another != printed);
    assert!(server.terminate(PATIENCE).unwrap().success());
    let said = proxy.output();
    for complaint in ["nauthorized", "orbidden", "certificate"] {
        assert!(!said.contains(complaint), "{said}");
    }
}

/// The kubeconfig of the agent has the address of the server's options, also if they change, and the same token.
#[test]
fn a_server_writes_the_kubeconfig_of_the_proxy_at_each_start() {
    let folder = tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("proxy.conf"));
    let node = Namespace::new("access").unwrap();
    node.ip("link set lo up\n").unwrap();
    let started = |options: &[&str]| {
        let arguments = ["serve", "--data-dir", text(&data), "--write-proxy-kubeconfig", text(&config)];
        let arguments = [&arguments[..], options].concat();
        let mut server = PortolanProcess::start(&node, BINARY.as_ref(), &arguments).unwrap();
        server.wait_for_output(PATIENCE, "serving the Kubernetes API").unwrap();
        server.terminate(PATIENCE).unwrap();
        fs::read_to_string(&config).unwrap()
    };
    let token = |config: &str| {
        let (_, rest) = config.split_once("token: ").unwrap();
        rest.lines().next().unwrap().to_owned()
    };
    let first = started(&["--listen", "127.0.0.1:7443"]);
    assert!(first.contains("https://127.0.0.1:7443") && mode(&config) == 0o600, "{first}");
    let second = started(&["--listen", "127.0.0.2:6443"]);
    assert!(second.contains("https://127.0.0.2:6443") && !second.contains("7443"), "{second}");
    assert_eq!(token(&second), token(&first));
    let plain = started(&["--listen", "127.0.0.1:8080", "--insecure-http"]);
    assert!(plain.contains("http://127.0.0.1:8080") && !plain.contains("token"), "{plain}");
}

/// Returns the certificate authority of a kubeconfig.
fn line_of(config: &str) -> String {
    let (_, rest) = config.split_once("certificate-authority-data:").unwrap();
    rest.split_whitespace().find(|word| word.len() > 100).unwrap().to_owned()
}

#[test]
fn only_the_owner_can_read_a_kubeconfig_file() {
    let folder = tempdir().unwrap();
    let (data, output) = (folder.path().join("data"), folder.path().join("admin.conf"));
    fs::write(&output, "old").unwrap();
    fs::set_permissions(&output, fs::Permissions::from_mode(0o644)).unwrap();
    let server = "https://api.example.org:6443";
    let arguments =
        ["serve", "kubeconfig", "--role", "read-only", "--token", "--name", "eve", "--server", server];
    let places = ["--data-dir", text(&data), "--output", text(&output)];
    let (code, stdout, _) = portolan(&[&arguments[..], &places].concat());
    assert_eq!((code, stdout.as_str(), mode(&output)), (0, "", 0o600));
    let written = fs::read_to_string(&output).unwrap();
    assert!(
        written.contains(server) && written.contains("name: eve") && written.contains("token: "),
        "{written}"
    );
    let stored = fs::read_to_string(data.join("pki/tokens")).unwrap();
    assert!(
        stored.starts_with("sha256:") && stored.ends_with(",\"eve\",,\"portolan:read-only\"\n"),
        "{stored}"
    );
    assert_eq!(mode(&data.join("pki/tokens")), 0o600);
}

#[test]
fn wrong_arguments_fail_with_a_clear_error() {
    let folder = tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("file"));
    fs::write(&file, "nothing").unwrap();
    let (data, file) = (text(&data), text(&file));
    let kubeconfig = ["serve", "kubeconfig", "--data-dir", data];
    let tls = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data];
    let table: [(Vec<&str>, &str); 11] = [
        (
            vec!["serve", "--insecure-http", "--listen", "0.0.0.0:0"],
            "refusing to serve plain HTTP on 0.0.0.0:",
        ),
        (vec!["serve", "--insecure-http", "--token-auth-file", file], "cannot be used with"),
        (vec!["serve", "--tls-cert-file", file], "--tls-private-key-file"),
        (vec!["serve", "--listen", "127.0.0.1:0", "--data-dir", file], "--data-dir: "),
        ([&tls[..], &["--tls-san", "ä"]].concat(), "--tls-san"),
        ([&tls[..], &["--client-ca-file", file]].concat(), "--client-ca-file: "),
        ([&tls[..], &["--token-auth-file", file]].concat(), "line 1: fewer than three fields"),
        ([&tls[..], &["--tls-cert-file", file, "--tls-private-key-file", file]].concat(), "certificate"),
        (kubeconfig.to_vec(), "--role"),
        ([&kubeconfig[..], &["--role", "root"]].concat(), "possible values: admin, proxy, read-only"),
        ([&kubeconfig[..], &["--role", "admin", "--name", ""]].concat(), "has to be of 1 to 64 characters"),
    ];
    for (arguments, complaint) in table {
        let (code, stdout, stderr) = portolan(&arguments);
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}");
        assert!(stderr.contains(complaint), "{arguments:?}: {stderr}");
    }
}
