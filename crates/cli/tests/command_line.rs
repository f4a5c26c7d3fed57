//! The command line: exit codes, stdout and stderr, and the name by which the program is called.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan");

/// Runs the program. Returns exit code, stdout and stderr.
fn run(program: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn portolan(arguments: &[&str]) -> (i32, String, String) {
    run(Path::new(PROGRAM), arguments)
}

#[test]
fn what_was_asked_for_goes_to_stdout_and_ends_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pages) = (folder.path().join("config.yaml"), folder.path().join("man"));
    let (write, out) = (format!("--write-config-to={}", file.display()), pages.display().to_string());
    let table: [(&[&str], &str); 20] = [
        (&["--help"], "Usage: portolan <COMMAND>"),
        (&["--version"], "portolan "),
        (&["up", "--help"], "Usage: portolan up [OPTIONS] [[NAMESPACE/]NAME=PORT[/PROTOCOL]:BACKEND,...]..."),
        (&["proxy", "--help"], "Usage: portolan proxy [OPTIONS]"),
        (&["proxy", "-h", "--cleanup"], "Usage: portolan proxy [OPTIONS]"),
        (&["proxy", "--version"], "Kubernetes v1.36.2+portolan-"),
        (&["proxy", "--version=raw"], "version.Info{Major:\"1\""),
        (&["proxy", &write, "--masquerade_all=t"], ""),
        (&["cleanup", "--help"], "Usage: portolan cleanup [OPTIONS]"),
        (&["status", "--help"], "Usage: portolan status [OPTIONS]"),
        (&["snapshot", "--help"], "Usage: portolan snapshot [OPTIONS]"),
        (&["snapshot", "show", "--help"], "Usage: portolan snapshot show <FILE>"),
        (&["serve", "backup", "--help"], "Usage: portolan serve backup [OPTIONS] <FILE>"),
        (&["serve", "restore", "--help"], "Usage: portolan serve restore [OPTIONS] <FILE>"),
        (&["serve", "rescue", "--help"], "Usage: portolan serve rescue [OPTIONS] <FILE>"),
        (&["plan", "--help"], "Usage: portolan plan [OPTIONS]"),
        (&["check", "--help"], "Usage: portolan check [OPTIONS]"),
        (&["env", "--help"], "Usage: portolan env [OPTIONS]"),
        (&["completions", "zsh"], "#compdef portolan"),
        (&["man", "--out", &out], ""),
    ];
    for (arguments, start) in table {
        let (code, stdout, stderr) = portolan(arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(stdout.contains(start), "{arguments:?}: {stdout}");
    }
    assert!(std::fs::read_to_string(file).unwrap().contains("masqueradeAll: true"));
    assert!(pages.join("portolan-proxy.1").exists());
}

#[test]
fn a_mistake_goes_to_stderr_and_ends_with_1() {
    let table: [(&[&str], &str); 29] = [
        (&[], "Usage: portolan <COMMAND>"),
        (&["up", "web=80"], "there is no `:` between the port and the backends"),
        (&["up", "--proxy-mode=fast"], "--proxy-mode"),
        (&["proxy", "argument"], "unexpected argument 'argument'"),
        (&["proxy", "--no-such-flag"], "Usage: portolan proxy [OPTIONS]"),
        (&["proxy", "--source-vip=10.0.0.1"], "unexpected argument '--source-vip'"),
        (&["proxy", "--iptables-sync-period=5"], "not a duration"),
        (&["proxy", "--version=v1.2.3"], "--version"),
        (
            &["proxy", "--proxy-mode=fast", "--oom-score-adj=2000"],
            "Error: the configuration is invalid:\n  --proxy-mode",
        ),
        (&["cleanup", "--config=/nonexistent"], "cannot read configuration file /nonexistent"),
        (&["status", "--service=web"], "Error: --service: `web` is not of the form NAMESPACE/NAME"),
        (
            &["status", "--url=https://a"],
            "Error: --url: `https://a` is not a URL of the form http://HOST:PORT",
        ),
        (&["status", "--watch", "--output=json"], "'--watch' cannot be used with '--output <FORM>'"),
        (
            &["status", "--watch", "--service=a/b"],
            "'--watch' cannot be used with '--service <NAMESPACE/NAME>'",
        ),
        (&["status", "--output=xml"], "[possible values: text, json, yaml]"),
        (&["status", "--counters", "--namespace=a/b"], "Error: --namespace: `a/b` is no name of a namespace"),
        (
            &["snapshot", "--control-socket=/nonexistent/proxy.sock"],
            "no proxy answers at /nonexistent/proxy.sock",
        ),
        (&["snapshot", "show", "/nonexistent"], "Error: cannot read /nonexistent"),
        (&["explain", "node", "10.96.0.1:80", "--snapshot=/nonexistent"], "Error: cannot read /nonexistent"),
        (&["plan", "--output=xml"], "[possible values: text, json, yaml]"),
        (&["check", "--init-only", "-v=x"], "-v"),
        (&["env", "--data-dir=/nonexistent"], "there is no /nonexistent/admin.conf: give --kubeconfig"),
        (&["serve", "--dns-forward=/etc/resolv.conf"], "--dns-listen"),
        (&["serve", "--check", "--in-memory"], "'--check' cannot be used with '--in-memory'"),
        (&["serve", "--check", "--data-dir=/nonexistent"], "there is no /nonexistent/objects.redb"),
        (&["serve", "restore", "/nonexistent"], "there is no /nonexistent"),
        (&["serve", "backup"], "<FILE>"),
        (
            &["serve", "--check", "backup", "/nonexistent/file"],
            "the subcommand 'backup' cannot be used with '--check'",
        ),
        (&["proxy", "--config=/nonexistent"], "Error: cannot read configuration file /nonexistent"),
    ];
    for (arguments, part) in table {
        let (code, stdout, stderr) = portolan(arguments);
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn without_a_proxy_the_status_ends_with_2() {
    let table: [(&[&str], &str); 3] = [
        (
            &["status", "--socket=/nonexistent/proxy.sock", "--watch"],
            "no proxy answers at /nonexistent/proxy.sock",
        ),
        (&["status", "--socket=/nonexistent/proxy.sock"], "no proxy answers at /nonexistent/proxy.sock"),
        (&["status", "--url=http://127.0.0.1:1", "-o", "json"], "no proxy answers at http://127.0.0.1:1"),
    ];
    for (arguments, part) in table {
        let (code, stdout, stderr) = portolan(arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part) && stderr.contains("--control-socket"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn called_kube_proxy_it_is_the_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("kube-proxy");
    std::os::unix::fs::symlink(PROGRAM, &name).unwrap();
    let (code, stdout, _) = run(&name, &["--version"]);
    assert_eq!(code, 0);
    assert!(stdout.starts_with("Kubernetes v1.36.2"), "{stdout}");
    let (code, _, stderr) = run(&name, &["proxy"]);
    assert_eq!(code, 1, "kube-proxy takes no arguments");
    assert!(stderr.contains("unexpected argument 'proxy'"), "{stderr}");
}
