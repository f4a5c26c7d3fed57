//! The log of the binary, as scripts that parse klog's lines read it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::process::Command;

use serde_json::Value;

/// An address of the documentation range (RFC 5737): nothing can listen there.
const NOWHERE: &str = "192.0.2.1:8001";

#[test]
fn an_error_is_one_line_of_klog() {
    let output = Command::new(env!("CARGO_BIN_EXE_portolan")).args(["serve", "--listen", NOWHERE]).output();
    let output = output.expect("the binary runs");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let log = String::from_utf8(output.stderr).expect("text");
    let line = log.strip_suffix('\n').expect("a whole line");
    let (header, message) = line.split_once("] ").expect("header and message");
    let words: Vec<&str> = header.split_whitespace().collect();
    let [severity_and_date, time, process, place] = words[..] else { panic!("{header}") };
    assert!(severity_and_date.strip_prefix('E').is_some_and(|date| is_digits(date, 4)), "{header}");
    let (clock, microseconds) = time.split_once('.').expect("a fraction");
    assert!(clock.split(':').all(|part| is_digits(part, 2)) && is_digits(microseconds, 6), "{header}");
    assert!(process.parse::<u32>().is_ok() && header.find(process).is_some_and(|at| at >= 21), "{header}");
    let (file, number) = place.split_once(':').expect("file and line");
    assert!(
        file.strip_suffix(".rs").is_some() && !file.contains('/') && number.parse::<u32>().is_ok(),
        "{header}"
    );
    assert!(message.starts_with("\"--listen: cannot listen on 192.0.2.1:8001: "), "{message}");
}

/// Runs `portolan proxy` with an unknown scheduler, which ends it before it changes anything. Returns the lines of
/// its log.
fn proxy(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    let output = command
        .args(["proxy", "--ipvs-fallback=false", "--proxy-mode=ipvs", "--ipvs-scheduler=none"])
        .args(arguments)
        .output()
        .expect("the binary runs");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{arguments:?}");
    let log = String::from_utf8(output.stderr).expect("text");
    assert!(log.contains("no scheduler is called `none`"), "{arguments:?}: {log}");
    log.lines().map(str::to_owned).collect()
}

/// Parses the lines as JSON. Asserts that each has a time, a source location and a message.
fn json(lines: &[String]) -> Vec<Value> {
    let read = |line: &String| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(object["ts"].is_f64() && object["caller"].is_string() && object["msg"].is_string(), "{line}");
        assert!(object["v"].is_u64() || object.get("v").is_none(), "{line}");
        object
    };
    lines.iter().map(read).collect()
}

fn has_verbosity(lines: &[Value], verbosity: u64) -> bool {
    lines.iter().any(|line| line["v"] == verbosity)
}

#[test]
fn the_proxy_writes_nothing_but_json_where_it_is_asked_for() {
    let lines = json(&proxy(&["--logging-format=json"]));
    assert!(!has_verbosity(&lines, 2), "{lines:?}");
    let last = lines.last().expect("the error");
    assert!(last["msg"].as_str().is_some_and(|text| text.contains("no scheduler is called")), "{last}");
    assert_eq!(last.get("v"), None, "errors have no verbosity: {last}");
    let lines = json(&proxy(&["--logging-format=json", "-v=2"]));
    assert!(has_verbosity(&lines, 2), "{lines:?}");
}

#[test]
fn a_file_can_ask_for_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\nipvs: {scheduler: none}\n\
                logging: {format: json, verbosity: 2}\n";
    std::fs::write(&path, text).expect("the file");
    let path = path.to_str().expect("text");
    let lines = json(&proxy(&["--config", path]));
    assert!(has_verbosity(&lines, 2), "{lines:?}");
    assert!(lines.iter().any(|line| line["msg"].as_str().is_some_and(|text| text.contains("--proxy-mode"))));
    // Flags have precedence over the file.
    let text = proxy(&["--config", path, "--logging-format=text", "-v=0"]);
    assert!(text.iter().all(|line| line.starts_with(['I', 'W', 'E'])), "{text:?}");
}

#[test]
fn vmodule_lets_one_file_say_more() {
    let files = |arguments: &[&str]| {
        let lines = proxy(arguments);
        let flags = lines.iter().any(|line| line.starts_with('I') && line.contains("options.rs:"));
        (flags, lines.len())
    };
    let (without, few) = files(&[]);
    let (with, many) = files(&["--vmodule=other=4,options=2"]);
    assert!(!without && with && many > few, "{few} and {many} lines");
    assert_eq!(files(&["--vmodule=other=4"]), (false, few));
    assert_eq!(
        files(&["-v=2", "--vmodule=options=0"]),
        (true, files(&["-v=2"]).1),
        "a pattern hides nothing"
    );
}

fn is_digits(text: &str, length: usize) -> bool {
    text.len() == length && text.chars().all(|letter| letter.is_ascii_digit())
}
