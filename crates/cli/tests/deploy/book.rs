//! The book of `docs/`: its table of contents is complete, and links are valid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::files::{all_below, path, read};

/// Returns every `](target)` outside of code.
fn links(text: &str) -> Vec<String> {
    let mut code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if !code {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(targets.map(str::to_owned));
        }
    }
    found
}

/// Returns the anchor of a heading, as mdbook and GitHub make it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if let Some(heading) = line.strip_prefix('#').filter(|_| !code) {
            found.insert(anchor(heading.trim_start_matches('#').trim()));
        }
    }
    found
}

fn pages() -> Vec<PathBuf> {
    all_below(&path("docs"))
        .into_iter()
        .filter(|file| file.extension().is_some_and(|it| it == "md"))
        .collect()
}

#[test]
fn the_table_of_contents_is_complete() {
    let docs = path("docs");
    let listed: BTreeSet<PathBuf> =
        links(&read("docs/SUMMARY.md")).iter().map(|link| docs.join(link)).collect();
    let there: BTreeSet<PathBuf> = pages().into_iter().filter(|file| !file.ends_with("SUMMARY.md")).collect();
    let missing: Vec<_> = there.difference(&listed).collect();
    let nowhere: Vec<_> = listed.difference(&there).collect();
    assert!(missing.is_empty() && nowhere.is_empty(), "not listed: {missing:?}, not there: {nowhere:?}");
}

#[test]
fn links_lead_somewhere() {
    let top = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SPECIFICATION.md"].map(path);
    let mut checked = 0;
    for file in pages().into_iter().chain(top) {
        let text = std::fs::read_to_string(&file).unwrap();
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            check(&file, &text, link);
            checked += 1;
        }
    }
    assert!(checked > 30, "{checked} links");
}

fn check(file: &Path, text: &str, link: &str) {
    let (target, wanted) = link.split_once('#').unwrap_or((link, ""));
    let target_file = if target.is_empty() { file.to_owned() } else { file.parent().unwrap().join(target) };
    assert!(target_file.exists(), "{}: {link} leads nowhere", file.display());
    if !wanted.is_empty() {
        let text =
            if target.is_empty() { text.to_owned() } else { std::fs::read_to_string(target_file).unwrap() };
        assert!(anchors(&text).contains(wanted), "{}: no heading for {link}", file.display());
    }
}

/// A page of the book must not link outside of the book: the target would be missing in the published book.
#[test]
fn pages_link_to_pages() {
    let docs = path("docs").canonicalize().unwrap();
    for file in pages() {
        for link in links(&std::fs::read_to_string(&file).unwrap()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let resolved = file.parent().unwrap().join(target).canonicalize().unwrap();
            assert!(resolved.starts_with(&docs), "{}: {link} leads out of the book", file.display());
        }
    }
}
