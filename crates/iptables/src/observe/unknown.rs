//! Rules in this mode's chains that the reader does not understand.

use std::fmt;

use portolan_model::Family;

use crate::rule::IptablesTable;

/// Number of rules that are kept. A chain may have any number of them.
const KEPT: usize = 16;

/// A rule that kube-proxy does not write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownRule {
    /// The table.
    pub table: String,
    /// The rule, as `iptables-save` prints it.
    pub rule: String,
}

/// Rules in this mode's chains that kube-proxy does not write: the first ones, and how many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnknownRules {
    /// The first 16.
    pub first: Vec<UnknownRule>,
    /// The number of all.
    pub count: usize,
}

impl UnknownRules {
    /// Logs how many rules there are, and the first one.
    pub(super) fn log(&self, family: Family) {
        if let Some(first) = self.first.first() {
            let count = self.count;
            tracing::warn!(%family, count, %first, "kube-proxy's chains have rules that kube-proxy does not write");
        }
    }

    pub(super) fn add(&mut self, table: IptablesTable, line: &str) {
        self.count = self.count.saturating_add(1);
        if self.first.len() < KEPT {
            // The counters of the rule come before it.
            let rule = line.split_once("] ").map_or(line, |(_, rule)| rule);
            let rule = if line.starts_with('[') { rule } else { line };
            self.first.push(UnknownRule { table: table.to_string(), rule: rule.trim_end().to_owned() });
        }
    }
}

impl fmt::Display for UnknownRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.table, self.rule)
    }
}
