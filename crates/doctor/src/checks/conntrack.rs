//! Connection tracking: its table, what it dropped, and how strict it is.

use super::proxies::mode;
use crate::facts::{Facts, Mode};
use crate::finding::{Code, Finding, Severity};

const MAX: &str = "net/netfilter/nf_conntrack_max";
const COUNT: &str = "net/netfilter/nf_conntrack_count";
const BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
/// Use of the table, in percent, from which it is nearly full, and from which bursts overflow it.
const NEARLY_FULL: u64 = 75;
const FULL: u64 = 95;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(missing(facts));
    findings.extend(room(facts));
    findings.extend(drops(facts));
    findings.extend(insert_failed(facts));
    findings.extend(strict(facts));
    findings
}

/// A running proxy needs connection tracking. Its settings exist while the module is loaded.
fn missing(facts: &Facts) -> Option<Finding> {
    let is_there = facts.conntrack.is_some() || facts.setting(MAX).is_some();
    // Without any setting, `/proc/sys` is not readable.
    if is_there || facts.settings.is_empty() || mode(facts).is_none() {
        return None;
    }
    let title = "the kernel does not track connections";
    Some(Finding::new(Code::ConntrackMissing, Severity::Error, title, "modprobe nf_conntrack"))
}

fn room(facts: &Facts) -> Option<Finding> {
    let (count, max) = (facts.number(COUNT)?, facts.number(MAX).filter(|max| *max > 0)?);
    let percent = count.saturating_mul(100) / max;
    let severity = match percent {
        0..NEARLY_FULL => return None,
        NEARLY_FULL..FULL => Severity::Warning,
        _ => Severity::Error,
    };
    let title = format!("the connection table has {count} of {max} entries ({percent} %)");
    Some(larger(Code::ConntrackNearlyFull, severity, title, max))
}

fn drops(facts: &Facts) -> Option<Finding> {
    let counters = facts.conntrack?;
    if counters.drop == 0 && counters.early_drop == 0 {
        return None;
    }
    let title = format!(
        "since the start of the node, the full connection table led to {} dropped packets and {} removed entries",
        counters.drop, counters.early_drop
    );
    if let Some(max) = facts.number(MAX) {
        // No fix: the counters do not go back, so each run would make the table larger.
        let mend = format!("sysctl -w net.netfilter.nf_conntrack_max={}", max.saturating_mul(2));
        return Some(Finding::new(Code::ConntrackDrops, Severity::Warning, title, mend));
    }
    let mend = "raise conntrack.maxPerCore in the configuration";
    Some(Finding::new(Code::ConntrackDrops, Severity::Warning, title, mend))
}

/// Returns a finding that a table of twice the size mends.
fn larger(code: Code, severity: Severity, title: String, max: u64) -> Finding {
    Finding::setting(code, severity, title, MAX, &max.saturating_mul(2).to_string())
}

fn insert_failed(facts: &Facts) -> Option<Finding> {
    let count = facts.conntrack?.insert_failed;
    if count == 0 {
        return None;
    }
    let title = format!(
        "{count} packets were dropped because another packet of their flow was tracked at the same time"
    );
    let mend = "in resolv.conf of pods with such clients: options single-request-reopen";
    Some(Finding::new(Code::ConntrackInsertFailed, Severity::Note, title, mend))
}

/// Only the iptables mode drops packets that connection tracking considers invalid. In other modes they pass untranslated.
fn strict(facts: &Facts) -> Option<Finding> {
    let invalid = facts.conntrack?.invalid;
    if invalid == 0 || facts.setting(BE_LIBERAL)? != "0" {
        return None;
    }
    let effect = if mode(facts) == Some(Mode::Iptables) { "dropped" } else { "not translated" };
    let title = format!("{invalid} packets belonged to no connection, or came too late, and were {effect}");
    let mend = format!(
        "set conntrack.tcpBeLiberal to true in the configuration, or {}",
        crate::finding::sysctl_command(BE_LIBERAL, "1")
    );
    Some(Finding::new(Code::TcpWindowsStrict, Severity::Note, title, mend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::testing::{codes, with_settings};
    use crate::facts::{ConntrackCounters, Process, Program, Proxies};
    use crate::finding::{Fix, Setting};

    fn table(count: &str, max: &str) -> Facts {
        with_settings(&[(COUNT, count), (MAX, max)])
    }

    #[test]
    fn a_table_that_is_nearly_full() {
        assert_eq!(findings(&table("74999", "100000")), []);
        assert_eq!(
            codes(&findings(&table("75000", "100000"))),
            [(Code::ConntrackNearlyFull, Severity::Warning)]
        );
        let found = findings(&table("95000", "100000"));
        assert_eq!(codes(&found), [(Code::ConntrackNearlyFull, Severity::Error)]);
        let fix = Fix::Sysctl { first: Vec::new(), setting: Setting::new(MAX, "200000") };
        assert_eq!(found[0].fix, Some(fix));
        assert_eq!(findings(&table("1", "0")), [], "0 means no limit");
    }

    #[test]
    fn what_the_kernel_dropped() {
        let counters = |counters| Facts { conntrack: Some(counters), ..table("0", "1000") };
        let none = ConntrackCounters::default();
        assert_eq!(findings(&counters(none)), []);
        for full in [ConntrackCounters { drop: 1, ..none }, ConntrackCounters { early_drop: 1, ..none }] {
            assert_eq!(codes(&findings(&counters(full))), [(Code::ConntrackDrops, Severity::Warning)]);
        }
        let raced = ConntrackCounters { insert_failed: 3, ..none };
        assert_eq!(codes(&findings(&counters(raced))), [(Code::ConntrackInsertFailed, Severity::Note)]);
    }

    #[test]
    fn late_packets() {
        let counters = Some(ConntrackCounters { invalid: 5, ..ConntrackCounters::default() });
        let facts = |liberal| Facts { conntrack: counters, ..with_settings(&[(BE_LIBERAL, liberal)]) };
        assert_eq!(codes(&findings(&facts("0"))), [(Code::TcpWindowsStrict, Severity::Note)]);
        assert_eq!(findings(&facts("1")), []);
    }

    #[test]
    fn connections_are_not_tracked_beside_a_proxy() {
        let settings = with_settings(&[("net/ipv4/ip_forward", "1")]);
        assert_eq!(findings(&settings), [], "no proxy runs");
        let process = Process { pid: 1, program: Program::Portolan, mode: Some("nftables".to_owned()) };
        let proxies = Proxies { processes: vec![process], complete: true, ..Proxies::default() };
        let found = findings(&Facts { proxies, ..settings });
        assert_eq!(codes(&found), [(Code::ConntrackMissing, Severity::Error)]);
    }
}
