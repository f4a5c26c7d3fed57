//! Access to files of the repository and to tools of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");

/// Returns a path below the root of the repository.
pub(crate) fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(relative)
}

pub(crate) fn read(relative: &str) -> String {
    fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

/// Returns every file below a folder.
pub(crate) fn all_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(all_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

/// Parses the documents of a YAML text.
pub(crate) fn yaml(name: &str, text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Parses the only document of a YAML file.
pub(crate) fn one_yaml(relative: &str) -> Value {
    let mut documents = yaml(relative, &read(relative));
    assert_eq!(documents.len(), 1, "{relative}");
    documents.remove(0)
}

/// Returns the only object of a kind.
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "two of {kind}");
    object
}

/// The tools that the Makefile provides: names separated by spaces.
const PROVIDED: &str = "PORTOLAN_TEST_TOOLS";

/// Returns a tool if this machine has it. Fails if it is missing but the Makefile provides it.
pub(crate) fn tool(name: &str) -> Option<Command> {
    let found = tools(name).into_iter().next();
    if found.is_none() {
        assert!(!is_provided(name), "{name} is not there, although {PROVIDED} names it");
        eprintln!("{name} is not installed: left out");
    }
    found.map(Command::new)
}

/// Returns true if the Makefile provides a tool.
pub(crate) fn is_provided(name: &str) -> bool {
    std::env::var(PROVIDED).unwrap_or_default().split(' ').any(|tool| tool == name)
}

/// Returns every program of a name, in the order of `PATH`.
pub(crate) fn tools(name: &str) -> Vec<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(name)).filter(|path| path.is_file()).collect()
}

/// Runs a tool, asserts success and returns its stdout.
pub(crate) fn run(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Returns how many seconds a probe may fail before kubelet ends the container.
pub(crate) fn patience(probe: &Value) -> u64 {
    probe["failureThreshold"].as_u64().unwrap() * probe["periodSeconds"].as_u64().unwrap()
}
