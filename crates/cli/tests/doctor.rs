//! `portolan doctor` as a program: exit status, forms of the report, and `--fix`. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::process::Stdio;

use portolan_testkit::Namespace;
use serde_json::Value;

/// Runs the program in a namespace. Returns its exit status and standard output.
fn doctor(node: &Namespace, arguments: &[&str]) -> (i32, String) {
    let mut command = node.command(env!("CARGO_BIN_EXE_portolan"));
    command.args(["doctor"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_exit_status_says_whether_there_are_errors() {
    let node = Namespace::new("doctor").unwrap();
    let forward = |value| node.write_sysctls(&[("net/ipv4/ip_forward".to_owned(), value)]).unwrap();
    forward("0");
    let (status, json) = doctor(&node, &["-o", "json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status, 1, "{json}");
    assert_eq!(report["findings"][0]["code"], "forwarding-off");
    let (status, text) = doctor(&node, &["--fix", "--dry-run"]);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("would do: sysctl -w net.ipv4.ip_forward=1"), "{text}");
    let (status, text) = doctor(&node, &["--fix"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("done: sysctl -w net.ipv4.ip_forward=1"), "{text}");
    assert_eq!(doctor(&node, &[]), (0, "nothing found\n".to_owned()));
}
