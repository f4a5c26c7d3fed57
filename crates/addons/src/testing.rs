//! Compares metrics with the page that documents them.

use std::collections::BTreeSet;
use std::path::Path;

/// Asserts that a page of docs/ has exactly these metrics, whose names begin with `prefix`.
#[track_caller]
pub(crate) fn assert_documented(metrics: &str, page: &str, prefix: &str) {
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let families: BTreeSet<&str> = families.collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let documented = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<&str> = documented.filter(|name| name.starts_with(prefix)).collect();
    assert_eq!(documented, families, "docs/{page}");
}
