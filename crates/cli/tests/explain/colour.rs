//! Colours of the report in a terminal, which `script` of util-linux provides.

use std::process::{Command, Stdio};

use super::{PROGRAM, folder};

/// Asks in a terminal, with these variables of the environment. Returns what is written to the terminal.
fn shown(environment: &[(&str, &str)]) -> String {
    let folder = folder();
    let line = format!("exec {PROGRAM} explain node svc/web --manifests=shop.yaml");
    let mut command = Command::new("script");
    command.args(["-qefc", &line, "/dev/null"]).current_dir(folder.path());
    command.env_remove("NO_COLOR").env("TERM", "xterm").envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // The end of the input would be typed into the terminal.
    let keys = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(keys);
    let text = String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n");
    assert!(output.status.success(), "{text}");
    text
}

/// Returns a text without colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| {
        let (colour, rest) = part.split_once('m').unwrap();
        assert!(colour.starts_with('['), "{colour:?}");
        before + rest
    })
}

#[test]
fn a_report_has_colours_on_a_terminal_that_wants_them() {
    let coloured = shown(&[]);
    assert!(coloured.contains("\u{1b}[32mreachable\u{1b}[0m: "), "{coloured:?}");
    assert_eq!(shown(&[("NO_COLOR", "")]), coloured, "an empty variable does not count");
    for environment in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = shown(&[environment]);
        assert_eq!(text, plain(&coloured), "{environment:?}");
        assert!(!text.contains('\u{1b}'), "{environment:?}: {text:?}");
    }
}
