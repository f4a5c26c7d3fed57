//! The checks: facts in, findings out. No I/O.

mod affinity;
mod cluster;
mod conntrack;
pub mod firewall;
mod kernel;
mod leftovers;
mod links;
mod proxies;
mod translation;

use crate::facts::Facts;
use crate::finding::Finding;

pub use affinity::full_lists;
pub use cluster::code_of;
pub use proxies::{mode, tried_mode};

pub use crate::facts::Mode;

/// Returns all findings, worst first; those of equal severity in the order of [`Code::ALL`](crate::Code::ALL).
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let checks: [fn(&Facts) -> Vec<Finding>; 9] = [
        kernel::findings,
        conntrack::findings,
        affinity::findings,
        links::findings,
        firewall::findings,
        translation::findings,
        proxies::findings,
        leftovers::findings,
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
    use crate::facts::{Process, Program, Proxies};
    use crate::finding::{Code, Severity};
    use crate::rules::{Chain, Program as Tool, Ruleset, TableFamily, TableId};

    /// Returns facts with these kernel settings.
    pub(crate) fn with_settings(settings: &[(&str, &str)]) -> Facts {
        let settings = settings.iter().map(|&(path, value)| (path.to_owned(), value.to_owned())).collect();
        Facts { settings, ..Facts::default() }
    }

    /// Returns codes and severities.
    pub(crate) fn codes(findings: &[Finding]) -> Vec<(Code, Severity)> {
        findings.iter().map(|finding| (finding.code, finding.severity)).collect()
    }

    /// Returns an empty chain.
    pub(crate) fn chain(program: Tool, table: &str, name: &str) -> Chain {
        let place = TableId { program, family: TableFamily::Ip, table: table.to_owned() };
        Chain { place, name: name.to_owned(), base: None, rules: Vec::new() }
    }

    /// Returns a chain of Portolan's nftables mode.
    pub(crate) fn own() -> Chain {
        chain(Tool::Nft, "portolan", "services")
    }

    /// Returns a chain of kube-proxy's nftables mode.
    pub(crate) fn upstream() -> Chain {
        chain(Tool::Nft, "kube-proxy", "services")
    }

    /// Returns a chain of the iptables mode.
    pub(crate) fn iptables() -> Chain {
        chain(Tool::IptablesNft, "nat", "KUBE-SERVICES")
    }

    /// Returns a process whose command line names no mode.
    pub(crate) fn process(pid: u32, program: Program) -> Process {
        Process { pid, program, mode: None }
    }

    /// Returns a node with these chains and processes.
    pub(crate) fn proxied(chains: Vec<Chain>, processes: Vec<Process>) -> Facts {
        let proxies = Proxies { processes, complete: true, ..Proxies::default() };
        Facts { rules: Ruleset::new(chains), proxies, ..Facts::default() }
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
