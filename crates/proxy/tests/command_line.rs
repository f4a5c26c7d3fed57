//! The binary `portolan-proxy`: exit codes, stdout and stderr, and the name by which it is called.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portolan-proxy");

/// Runs the program. Returns exit code, stdout and stderr.
fn run(program: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_was_asked_for_goes_to_stdout_and_ends_with_0() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let write = format!("--write-config-to={}", file.display());
    let table: [(&[&str], &str); 8] = [
        (&["--help"], "Usage: portolan-proxy [OPTIONS]"),
        (&["-h", "--cleanup"], "Usage: portolan-proxy [OPTIONS]"),
        (&["--version"], "Kubernetes v1.36.2+portolan-"),
        (&["--version=raw"], "version.Info{Major:\"1\""),
        (&[&write, "--masquerade_all=t"], ""),
        (&["cleanup", "--help"], "Usage: portolan-proxy cleanup [OPTIONS]"),
        (&["status", "--help"], "Usage: portolan-proxy status [OPTIONS]"),
        (&["explain", "--help"], "Usage: portolan-proxy explain [OPTIONS] <FROM> <TO>"),
    ];
    for (arguments, start) in table {
        let (code, stdout, stderr) = run(PROGRAM.as_ref(), arguments);
        assert_eq!((code, stderr.as_str()), (0, ""), "{arguments:?}");
        assert!(stdout.contains(start), "{arguments:?}: {stdout}");
    }
    assert!(std::fs::read_to_string(file).unwrap().contains("masqueradeAll: true"));
}

#[test]
fn a_mistake_goes_to_stderr_and_ends_with_1() {
    let table: [(&[&str], &str); 9] = [
        (&["proxy"], "unrecognized subcommand 'proxy'"),
        (&["--no-such-flag"], "Usage: portolan-proxy [OPTIONS]"),
        (&["--proxy-mode=fast"], "Error: the configuration is invalid:\n  --proxy-mode"),
        (&["--config=/nonexistent"], "Error: cannot read configuration file /nonexistent"),
        (&["cleanup", "--config=/nonexistent"], "cannot read configuration file /nonexistent"),
        (
            &["explain", "node", "10.96.0.1:80", "--socket=/nonexistent"],
            "Error: no proxy answers at /nonexistent: ",
        ),
        (&["status", "--service=web"], "Error: --service: `web` is not of the form NAMESPACE/NAME"),
        (
            &["status", "--url=https://a"],
            "Error: --url: `https://a` is not a URL of the form http://HOST:PORT",
        ),
        (&["status", "--output=xml"], "[possible values: text, json, yaml]"),
    ];
    for (arguments, part) in table {
        let (code, stdout, stderr) = run(PROGRAM.as_ref(), arguments);
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
    }
}

#[test]
fn without_a_proxy_the_status_ends_with_2() {
    let table: [(&[&str], &str); 2] = [
        (&["status", "--socket=/nonexistent/proxy.sock"], "no proxy answers at /nonexistent/proxy.sock"),
        (&["status", "--url=http://127.0.0.1:1", "-o", "json"], "no proxy answers at http://127.0.0.1:1"),
    ];
    for (arguments, part) in table {
        let (code, stdout, stderr) = run(PROGRAM.as_ref(), arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part) && stderr.contains("--control-socket"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn called_kube_proxy_it_has_no_subcommand() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("kube-proxy");
    std::os::unix::fs::symlink(PROGRAM, &name).unwrap();
    let (code, stdout, _) = run(&name, &["--version"]);
    assert_eq!(code, 0);
    assert!(stdout.starts_with("Kubernetes v1.36.2"), "{stdout}");
    let (code, _, stderr) = run(&name, &["cleanup"]);
    assert_eq!(code, 1, "kube-proxy takes no arguments");
    assert!(stderr.contains("unexpected argument 'cleanup'"), "{stderr}");
}
