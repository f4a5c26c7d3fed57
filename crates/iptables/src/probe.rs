//! Checks whether the rules of this mode can be written on a node.

use std::fmt;

use super::Programs;
use super::fixed::CANARY;
use super::program::Error;
use super::rule::{self, IptablesTable};

/// The chain of the trial rules. No rule leads to it.
const TRIAL: &str = "KUBE-PROXY-TRIAL";

/// One rule of each kind, by table.
const RULES: [(IptablesTable, &[&str]); 3] = [
    (IptablesTable::Mangle, &[]),
    (
        IptablesTable::Filter,
        &[
            "-m conntrack --ctstate NEW -m comment --comment \"trial\" -j REJECT",
            "-m tcp -p tcp --dport 1 -j REJECT --reject-with tcp-reset",
            "-m addrtype --dst-type LOCAL -m tcp -p tcp --dport 1 -j DROP",
            "-m mark --mark 0x1/0x1 -j ACCEPT",
        ],
    ),
    (
        IptablesTable::Nat,
        &[
            "-m statistic --mode random --probability 0.5000000000 -j RETURN",
            "-m udp -p udp --dport 1 -j MARK --or-mark 0x1",
            "-m recent --name KUBE-PROXY-TRIAL --rcheck --seconds 1 --reap -j RETURN",
        ],
    ),
];

impl Programs {
    /// Writes one rule of each kind, in one restore that removes them again. This checks that the programs run, have
    /// permission to write, and find the kernel features that they need. Does nothing if rules of this mode exist,
    /// and fails at once if another program holds the lock.
    pub fn probe(&self) -> Result<(), Error> {
        self.lock_is_free()?;
        if self.has_chain(IptablesTable::Nat, CANARY)? {
            return Ok(());
        }
        self.restore(|out| trial(out)).map(|_| ())
    }
}

fn trial(mut out: &mut dyn fmt::Write) -> fmt::Result {
    for (table, rules) in RULES {
        rule::begin(&mut out, table)?;
        rule::declare(&mut out, TRIAL)?;
        for text in rules {
            rule::append(&mut out, TRIAL, text)?;
        }
        rule::flush(&mut out, TRIAL)?;
        rule::remove_chain(&mut out, TRIAL)?;
        rule::commit(&mut out)?;
    }
    Ok(())
}
