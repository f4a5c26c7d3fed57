//! Session affinity of the iptables mode: the clients that the kernel remembers for an endpoint.

use crate::facts::{AffinityLists, Facts};
use crate::finding::{Code, Finding, Severity};

/// A larger limit that a finding suggests.
const TIMES: usize = 10;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    facts.affinity.iter().filter_map(full_lists).collect()
}

/// Returns the finding for lists that are full: such a list forgets a client for each new one.
pub fn full_lists(lists: &AffinityLists) -> Option<Finding> {
    let (first, others) = lists.full.split_first()?;
    let more =
        if others.is_empty() { String::new() } else { format!(" and of {} more chains", others.len()) };
    let limit = lists.limit;
    let title =
        format!("the endpoint of chain {first}{more} has {limit} clients with session affinity, the limit");
    let larger = limit.saturating_mul(TIMES);
    let mend = format!(
        "echo options xt_recent ip_list_tot={larger} > /etc/modprobe.d/xt_recent.conf, then start the node again (if the module is \
         built into the kernel: xt_recent.ip_list_tot={larger} on the kernel's command line)"
    );
    Some(Finding::new(Code::AffinityListFull, Severity::Warning, title, mend))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(full: &[&str]) -> Facts {
        let full = full.iter().map(|&name| name.to_owned()).collect();
        Facts { affinity: Some(AffinityLists { limit: 100, full }), ..Facts::default() }
    }

    #[test]
    fn one_finding_for_all_full_lists() {
        assert_eq!(findings(&with(&[])), []);
        let found = findings(&with(&["KUBE-SEP-A", "KUBE-SEP-B", "KUBE-SEP-C"]));
        let [finding] = &found[..] else { panic!("{found:?}") };
        assert_eq!((finding.code, finding.severity), (Code::AffinityListFull, Severity::Warning));
        assert!(
            finding.title.contains("KUBE-SEP-A and of 2 more chains has 100 clients"),
            "{}",
            finding.title
        );
        assert!(finding.mend.contains("ip_list_tot=1000"), "{}", finding.mend);
    }
}
