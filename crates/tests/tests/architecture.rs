//! What holds for the workspace as a whole: ARCHITECTURE.md says which crate uses which, and Cargo's metadata says the same;
//! the node agent moves every metric that it shows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

type Uses = BTreeMap<String, BTreeSet<String>>;

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The folder of a crate of the workspace is its name there.
fn documented() -> Uses {
    let text = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap();
    let (_, rest) = text.split_once("```crates\n").expect("ARCHITECTURE.md has the list of crates");
    let (lines, _) = rest.split_once("```").unwrap();
    let uses = |line: &str| {
        let (name, used) = line.split_once("->").expect("`name -> used used`");
        (name.trim().to_owned(), used.split_whitespace().map(str::to_owned).collect())
    };
    lines.lines().map(uses).collect()
}

fn built() -> Uses {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        manifest.parent().and_then(Path::file_name).unwrap().to_string_lossy().into_owned()
    };
    let folders: BTreeMap<&str, String> =
        packages.iter().map(|package| (package["name"].as_str().unwrap(), folder(package))).collect();
    let uses = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap();
        let built = all.iter().filter(|dependency| dependency["kind"].is_null());
        built.filter_map(|dependency| folders.get(dependency["name"].as_str()?).cloned()).collect()
    };
    packages.iter().map(|package| (folder(package), uses(package))).collect()
}

#[test]
fn the_documented_crates_are_those_of_the_workspace() {
    assert_eq!(documented(), built());
}

#[test]
fn the_architecture_is_read_in_one_sitting() {
    let lines = std::fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap().lines().count();
    assert!(lines <= 200, "ARCHITECTURE.md has {lines} lines: details belong into the head of their crate");
}

/// The names of a package and of all packages that a build of it contains.
fn closure(package: &str) -> BTreeSet<String> {
    let arguments = ["tree", "--offline", "--package", package, "--edges", "normal", "--prefix", "none"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(workspace()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Every node holds this binary in memory.
#[test]
fn the_node_agent_contains_nothing_of_the_api_server_and_the_demo() {
    let agent = closure("portolan-proxy");
    assert!(agent.contains("portolan-engine"), "{agent:?}");
    // What makes certificates, writes files of objects, talks to etcd, encodes manual pages and draws the live view.
    let others = ["rcgen", "redb", "tonic", "clap_mangen", "clap_complete", "ratatui"].map(str::to_owned);
    let apart = ["api", "controllers", "http", "serve", "store", "ipam", "testkit", "demo"]
        .map(|name| format!("portolan-{name}"));
    let all = closure("portolan");
    for name in others.iter().chain(&apart) {
        assert!(all.contains(name), "{name} is in no binary");
        assert!(
            !agent.contains(name),
            "{name}: cargo tree --package portolan-proxy --edges normal --invert {name}"
        );
    }
}

/// All source text below a folder, without modules of tests.
fn source(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            text.push_str(&source(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests.rs" {
            let all = std::fs::read_to_string(&path).unwrap();
            text.push_str(all.split_once("#[cfg(test)]\nmod tests {").map_or(all.as_str(), |(code, _)| code));
        }
    }
    text
}

/// A metric that no code moves shows zero for ever, and an alert on it never fires.
#[test]
fn the_node_agent_moves_every_metric() {
    let metrics = workspace().join("crates/node/src/metrics/proxy.rs");
    let metrics = std::fs::read_to_string(metrics).unwrap();
    let agent = source(&workspace().join("crates/proxy/src")) + &source(&workspace().join("crates/node/src"));
    let methods = metrics.lines().filter_map(|line| {
        let (name, rest) = line.trim().strip_prefix("pub fn ")?.split_once('(')?;
        (rest.starts_with("&self") || rest.starts_with("self")).then_some(name)
    });
    let methods: Vec<&str> = methods.collect();
    assert!(methods.len() > 20, "{methods:?}");
    let is_called = |name: &&&str| {
        let built = name.starts_with("with_") && agent.contains(&format!(".{name}("));
        built || ["metrics.", "metrics()."].iter().any(|on| agent.contains(&format!("{on}{name}(")))
    };
    let idle: Vec<&&str> = methods.iter().filter(|name| !is_called(name)).collect();
    assert!(idle.is_empty(), "never called: {idle:?}");
}
