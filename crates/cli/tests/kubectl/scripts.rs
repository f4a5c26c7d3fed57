//! Scripts of shell lines with their whole output, for the kubectl of the Kubernetes version that the server implements.
//! Earlier ones print some of it in another form.
//!
//! A line that begins with `$` is run; the lines below it, up to the next one, are its output, both of stdout and of
//! stderr. `[1]` at the end is the status of a failure. Ages, times, versions and UIDs are names, and two spaces stand for
//! any number from two on, except at the begin of a line.

use super::shell::Shell;
use super::{SERVER, files, shells};

const SCRIPTS: [(&str, &str); 6] = [
    ("nodes", include_str!("scripts/nodes.txt")),
    ("access", include_str!("scripts/access.txt")),
    ("services", include_str!("scripts/services.txt")),
    ("refusals", include_str!("scripts/refusals.txt")),
    ("apply", include_str!("scripts/apply.txt")),
    ("cannot", include_str!("scripts/cannot.txt")),
];
/// The minor version of the first kubectl that prints what the scripts have.
const FIRST: u32 = 36;
/// Begins of lines whose rest differs from run to run, and the name that stands for the rest.
const CHANGING: [(&str, &str); 4] = [
    ("CreationTimestamp:", "  TIME"),
    ("  creationTimestamp:", " TIME"),
    ("  resourceVersion:", " VERSION"),
    ("  uid:", " UID"),
];

#[test]
fn kubectl_prints_what_the_scripts_say() {
    let shells: Vec<Shell> = shells().into_iter().filter(|shell| shell.minor() >= FIRST).collect();
    assert!(
        !shells.is_empty() || !files::is_provided("kubectl"),
        "no kubectl is of version 1.{FIRST} or later, although the Makefile provides one"
    );
    for shell in shells {
        shell.kubectl("apply -f web.yaml");
        for (name, script) in SCRIPTS {
            let steps = steps(script);
            assert!(!steps.is_empty(), "{name}");
            for (line, expected) in steps {
                let printed = printed(&shell, line);
                assert!(printed == expected, "{name}: {line}\n{printed}\n--- expected:\n{expected}");
            }
        }
    }
}

/// Returns each line of a script and its output. What is above the first one is a comment.
fn steps(script: &str) -> Vec<(&str, String)> {
    let mut steps: Vec<(&str, String)> = Vec::new();
    for line in script.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(line), _) => steps.push((line, String::new())),
            (None, Some((_, output))) => output.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    steps.into_iter().map(|(line, output)| (line, output.trim_end().to_owned())).collect()
}

/// Runs a line and returns what it prints, with names for what differs from run to run.
fn printed(shell: &Shell, line: &str) -> String {
    let line = line.replace("kubectl ", &format!("{SERVER} -n shop "));
    let output = shell.run(&format!("{{ {line}; }} 2>&1"));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.trim_end().lines().map(same_in_each_run).collect();
    if !output.status.success() {
        lines.push(format!("[{}]", output.status.code().unwrap()));
    }
    lines.join("\n")
}

fn same_in_each_run(line: &str) -> String {
    let line = line.trim_end();
    if let Some((begin, name)) = CHANGING.iter().find(|(begin, _)| line.starts_with(begin)) {
        return format!("{begin}{name}");
    }
    let text = line.trim_start();
    let mut shown = line[..line.len() - text.len()].to_owned();
    let mut spaces = 0;
    for word in text.split(' ') {
        if word.is_empty() {
            spaces += 1;
            continue;
        }
        if !shown.trim_start().is_empty() {
            shown += if spaces > 0 { "  " } else { " " };
        }
        shown += if is_age(word) { "AGE" } else { word };
        spaces = 0;
    }
    shown
}

/// Returns true for an age as kubectl prints it, such as `2m3s`.
fn is_age(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.chars().all(|letter| letter.is_ascii_digit() || "smhd".contains(letter))
}
