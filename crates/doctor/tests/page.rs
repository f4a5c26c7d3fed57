//! `docs/doctor.md` lists every finding as the program prints it.
#![allow(clippy::expect_used, reason = "a test stops at the first surprise")]

use std::path::Path;

use portolan_doctor::Code;

#[test]
fn the_page_lists_every_finding() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = std::fs::read_to_string(path).expect("docs/doctor.md");
    let (_, rest) = page.split_once("## Findings\n").expect("a chapter with the findings");
    let chapter = rest.split("\n## ").next().unwrap_or_default();
    let rows: Vec<&str> = chapter.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |code: &Code| format!("| `{code}` | {} | {} |", code.breaks(), code.usual_mend());
    let expected: Vec<String> = Code::ALL.iter().map(row).collect();
    assert_eq!(rows, expected);
}
