//! Every target with the inputs that a fuzzer found: one line of base64 for each, in `fuzz/corpora/TARGET`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use portolan_fuzz::TARGETS;

/// Bytes of the longest corpus.
const LONGEST: usize = 128 << 10;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(name)
}

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_target_takes_its_corpus() {
    for target in TARGETS {
        let corpus = std::fs::read_to_string(folder("corpora").join(target.name)).unwrap();
        assert!(corpus.len() <= LONGEST, "the corpus of {} has {} bytes", target.name, corpus.len());
        assert!(corpus.lines().count() >= 10, "{}", target.name);
        for line in corpus.lines() {
            let input = BASE64_STANDARD.decode(line).unwrap();
            let outcome = std::panic::catch_unwind(|| target.run(&input));
            assert!(outcome.is_ok(), "{}: {line}", target.name);
        }
    }
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(files(&folder("corpora")), names);
    let programs = names.iter().map(|name| format!("{name}.rs")).collect::<BTreeSet<_>>();
    assert_eq!(files(&folder("fuzz_targets")), programs);
    let manifest = std::fs::read_to_string(folder("Cargo.toml")).unwrap();
    for name in &names {
        let program = std::fs::read_to_string(folder("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        let call = format!("fuzz_target!(|bytes: &[u8]| portolan_fuzz::run(\"{name}\", bytes));");
        assert!(program.contains(&call), "{program}");
        let entry = format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        assert!(manifest.contains(&entry), "{name} in fuzz/Cargo.toml");
    }
}
