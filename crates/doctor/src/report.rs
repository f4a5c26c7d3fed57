//! The report: text for people, JSON or YAML for programs, and the exit status.

use std::fmt::Write as _;

use serde::Serialize;

use crate::facts::Unread;
use crate::finding::{Finding, Severity};
use crate::fix::{FixState, Fixed};

/// Exit status if nothing is wrong, or only warnings and notes were found.
pub const NOTHING: u8 = 0;
/// Exit status if there is a finding of severity error.
pub const ERRORS: u8 = 1;
/// Exit status if there is none, but not everything could be read.
pub const NOT_READ: u8 = 2;

/// What was found, what was done about it, and what could not be read.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The findings, worst first. After `--fix`, those that are left.
    pub findings: Vec<Finding>,
    /// What `--fix` did, or would do with `--dry-run`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fixed: Vec<Fixed>,
    /// What could not be read. Findings about it may be missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
}

impl Report {
    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        if self.findings.iter().any(|finding| finding.severity == Severity::Error) {
            ERRORS
        } else if self.unread.is_empty() {
            NOTHING
        } else {
            NOT_READ
        }
    }

    /// Returns the report for people: a block for each finding, then a summary.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let Finding { code, severity, title, breaks, mend, fix } = finding;
            let _ = writeln!(text, "{severity:<7} {code}");
            let _ = writeln!(text, "        {title}");
            let _ = writeln!(text, "  breaks  {breaks}");
            let _ = writeln!(text, "  mend    {mend}{}", if fix.is_some() { "   (or --fix)" } else { "" });
            text.push('\n');
        }
        for Fixed { outcome, text: what, .. } in &self.fixed {
            let outcome = match outcome {
                FixState::Done => "done",
                FixState::WouldDo => "would do",
                FixState::Failed => "failed",
            };
            let _ = writeln!(text, "{outcome}: {what}");
        }
        for Unread { what, reason } in &self.unread {
            let _ = writeln!(text, "could not read {what}: {reason}");
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    fn summary(&self) -> String {
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let counts = [
            (count(Severity::Error), "error", "errors"),
            (count(Severity::Warning), "warning", "warnings"),
            (count(Severity::Note), "note", "notes"),
        ];
        let parts: Vec<String> = counts
            .into_iter()
            .filter(|(count, _, _)| *count > 0)
            .map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }))
            .collect();
        if parts.is_empty() { "nothing found".to_owned() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Code, Fix};

    fn report() -> Report {
        let forwarding = Finding::setting(
            Code::ForwardingOff,
            Severity::Error,
            "net.ipv4.ip_forward is 0: the kernel does not forward IPv4 packets",
            "net/ipv4/ip_forward",
            "1",
        );
        let docker = Finding::new(
            Code::FirewallPresent,
            Severity::Note,
            "Docker has firewall rules on this node",
            "nothing to do",
        );
        Report { findings: vec![forwarding, docker], ..Report::default() }
    }

    #[test]
    fn the_text() {
        let fixed = vec![Fixed {
            fix: Fix::RemoveLeftovers,
            outcome: FixState::WouldDo,
            text: Fix::RemoveLeftovers.to_string(),
        }];
        let unread = vec![Unread { what: "nftables".to_owned(), reason: "not permitted".to_owned() }];
        insta::assert_snapshot!(Report { fixed, unread, ..report() }.text(), @r"
        error   forwarding-off
                net.ipv4.ip_forward is 0: the kernel does not forward IPv4 packets
          breaks  Connections of pods and from outside do not reach endpoints; connections of the node itself do.
          mend    sysctl -w net.ipv4.ip_forward=1   (or --fix)

        note    firewall-present
                Docker has firewall rules on this node
          breaks  Nothing by itself. A reload of this firewall may remove or reorder rules.
          mend    nothing to do

        would do: remove kube-proxy's tables and chains
        could not read nftables: not permitted
        1 error, 1 note
        ");
        assert_eq!(Report::default().text(), "nothing found\n");
    }

    #[test]
    fn the_exit_status() {
        let unread = vec![Unread { what: "nftables".to_owned(), reason: "x".to_owned() }];
        assert_eq!(Report::default().status(), NOTHING);
        assert_eq!(Report { unread: unread.clone(), ..Report::default() }.status(), NOT_READ);
        assert_eq!(Report { unread, ..report() }.status(), ERRORS, "a found error is certain");
        let mut mild = report();
        mild.findings.retain(|finding| finding.severity != Severity::Error);
        assert_eq!(mild.status(), NOTHING);
    }
}
