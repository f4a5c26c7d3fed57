//! The checks: facts in, findings out. No I/O.

mod affinity;
mod cluster;
mod conntrack;
pub mod firewall;
mod kernel;
mod links;
mod proxies;
mod translation;

use crate::facts::Facts;
use crate::finding::Finding;

pub use affinity::full_lists;
pub use proxies::{Mode, mode};

/// Returns all findings, worst first; those of equal severity in the order of [`Code::ALL`](crate::Code::ALL).
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let checks: [fn(&Facts) -> Vec<Finding>; 8] = [
        kernel::findings,
        conntrack::findings,
        affinity::findings,
        links::findings,
        firewall::findings,
        translation::findings,
        proxies::findings,
        cluster::findings,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(facts)).collect();
    findings.sort_by(|a, b| (a.severity, a.code, &a.title).cmp(&(b.severity, b.code, &b.title)));
    findings.dedup();
    findings
}

#[cfg(test)]
pub(crate) mod testing {
    //! Facts for tests.

    use super::*;
    use crate::finding::{Code, Severity};

    /// Returns facts with these kernel settings.
    pub(crate) fn with_settings(settings: &[(&str, &str)]) -> Facts {
        let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
        Facts { settings, ..Facts::default() }
    }

    /// Returns codes and severities.
    pub(crate) fn codes(findings: &[Finding]) -> Vec<(Code, Severity)> {
        findings.iter().map(|finding| (finding.code, finding.severity)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(findings(&Facts::default()), []);
    }
}
