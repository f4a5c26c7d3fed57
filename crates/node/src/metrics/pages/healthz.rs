//! `/healthz` of the metrics server. Its only check, `ping`, always succeeds. The health of the proxy is on the health
//! server.

use std::fmt::Write as _;

/// Returns whether the check was executed, and the body, for a query with `verbose` and `exclude`.
pub(super) fn check(query: &str) -> (bool, String) {
    let pairs = || query.split('&').map(|part| part.split_once('=').unwrap_or((part, "")));
    let excluded: Vec<&str> = pairs()
        .filter(|(name, value)| *name == "exclude" && !value.is_empty())
        .map(|(_, value)| value)
        .collect();
    let ping_excluded = excluded.contains(&"ping");
    if !pairs().any(|(name, _)| name == "verbose") {
        return (!ping_excluded, "ok".into());
    }
    let mut body = String::from(if ping_excluded { "[+]ping excluded: ok\n" } else { "[+]ping ok\n" });
    let mut unknown: Vec<String> =
        excluded.iter().filter(|name| **name != "ping").map(|name| format!("{name:?}")).collect();
    unknown.sort();
    unknown.dedup();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        let _ = writeln!(body, "warn: some health checks cannot be excluded: no matches for {unknown}");
    }
    body.push_str("healthz check passed\n");
    (!ping_excluded, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_parsed() {
        let table = [
            ("", true, "ok"),
            ("exclude=ping", false, "ok"),
            ("verbose", true, "[+]ping ok\nhealthz check passed\n"),
            ("verbose=false&x", true, "[+]ping ok\nhealthz check passed\n"),
            ("exclude=ping&verbose", false, "[+]ping excluded: ok\nhealthz check passed\n"),
            (
                "verbose&exclude=b&exclude=a&exclude=b&exclude=",
                true,
                "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"a\", \"b\"\n\
                 healthz check passed\n",
            ),
        ];
        for (query, checked, body) in table {
            assert_eq!(check(query), (checked, body.to_owned()), "{query}");
        }
    }
}
