//! Who programs Services on this node, and what former proxies left.

use std::fmt;

use crate::facts::{Facts, Process, Program};
use crate::finding::{Code, Finding, Fix, Severity};
use crate::rules::{Chain, Owner, Program as Tool};

/// The mode in which Services are programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// nftables.
    Nftables,
    /// iptables.
    Iptables,
    /// IPVS.
    Ipvs,
    /// userspace.
    Userspace,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Userspace => "userspace",
        })
    }
}

/// The network device of the IPVS mode.
const IPVS_DEVICE: &str = "kube-ipvs0";
/// The table of kube-proxy's nftables mode.
const KUBE_PROXY_TABLE: &str = "kube-proxy";
/// Portolan's table in nftables mode, and the one that only its userspace mode has.
const OWN_TABLE: &str = "portolan";
const USERSPACE_TABLE: &str = "portolan-userspace";
/// The chain through which packets of Services go in the modes with kube-proxy's names.
const SERVICES_CHAIN: &str = "KUBE-SERVICES";

/// Returns the mode in which Services are programmed: what the command line of the running proxy says, or else what its
/// rules show. `None` if there is neither.
pub fn mode(facts: &Facts) -> Option<Mode> {
    let said = facts.proxies.processes.iter().find_map(|process| match process.mode.as_deref()? {
        "nftables" => Some(Mode::Nftables),
        "iptables" => Some(Mode::Iptables),
        "ipvs" => Some(Mode::Ipvs),
        "userspace" => Some(Mode::Userspace),
        _ => None,
    });
    let rules = Rules::of(facts);
    let shown = [
        (rules.userspace, Mode::Userspace),
        (rules.own || rules.kube_proxy, Mode::Nftables),
        (rules.device, Mode::Ipvs),
        (rules.chains, Mode::Iptables),
    ];
    said.or_else(|| shown.into_iter().find(|(is, _)| *is).map(|(_, mode)| mode))
}

/// Which rules of proxies are in the kernel.
#[expect(clippy::struct_excessive_bools, reason = "five independent observations")]
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// Portolan's table of the nftables mode.
    own: bool,
    /// Portolan's table of the userspace mode.
    userspace: bool,
    /// kube-proxy's table of the nftables mode.
    kube_proxy: bool,
    /// The chains of the iptables and IPVS modes.
    chains: bool,
    /// The device of the IPVS mode.
    device: bool,
}

impl Rules {
    fn of(facts: &Facts) -> Self {
        let any = |is: &dyn Fn(&Chain) -> bool| facts.rules.chains().iter().any(is);
        let table = |name: &'static str| {
            any(&move |chain: &Chain| chain.place.program == Tool::Nft && chain.place.table == name)
        };
        let is_services = |chain: &Chain| {
            chain.place.program != Tool::Nft
                && chain.name == SERVICES_CHAIN
                && Owner::of(&chain.place, &chain.name) == Owner::KubeProxy
        };
        Self {
            own: table(OWN_TABLE),
            userspace: table(USERSPACE_TABLE),
            kube_proxy: table(KUBE_PROXY_TABLE),
            chains: any(&is_services),
            device: facts.links.iter().any(|link| link.name == IPVS_DEVICE),
        }
    }

    /// Returns true if there are rules with names of kube-proxy's that Portolan's active mode does not use.
    const fn has_leftovers(self) -> bool {
        // With redirect, the userspace mode uses the chains of the iptables mode.
        let chains = self.chains && !self.userspace;
        (self.own || self.userspace) && (self.kube_proxy || chains)
    }

    const fn any(self) -> bool {
        self.own || self.userspace || self.kube_proxy || self.chains
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let rules = Rules::of(facts);
    let of = |program| -> Vec<&Process> {
        facts.proxies.processes.iter().filter(|process| process.program == program).collect()
    };
    let (own, others) = (of(Program::Portolan), of(Program::KubeProxy));
    let mut findings = Vec::new();
    if own.len() + others.len() > 1 {
        findings.push(two(&own, &others));
    } else if !others.is_empty() && (rules.own || rules.userspace) {
        let title = "kube-proxy runs, and tables of Portolan, which does not run, are still in the kernel";
        let mend = "portolan-proxy cleanup --only-ours";
        findings.push(Finding::new(Code::LeftoversOfPortolan, Severity::Warning, title, mend));
    } else if rules.has_leftovers() {
        findings.push(leftovers(facts, rules, &own));
    } else if rules.kube_proxy && rules.chains {
        let title =
            "the kernel has rules of two modes of kube-proxy: its table of nftables, and chains of iptables";
        let mend = "kube-proxy --cleanup, then start the proxy again";
        findings.push(Finding::new(Code::LeftoversOfKubeProxy, Severity::Warning, title, mend));
    }
    if facts.proxies.complete && own.is_empty() && others.is_empty() && rules.any() {
        let title = "the kernel has rules for Services, but no proxy runs in this network namespace";
        let mend = "start the proxy; or remove its rules: portolan-proxy cleanup";
        findings.push(Finding::new(Code::NoProxy, Severity::Warning, title, mend));
    }
    findings
}

fn two(own: &[&Process], others: &[&Process]) -> Finding {
    let all = own.iter().chain(others);
    let names: Vec<String> =
        all.map(|process| format!("{} (process {})", process.program, process.pid)).collect();
    let title = format!("{} proxies run on this node: {}", names.len(), names.join(", "));
    let mend = if others.is_empty() {
        "stop all but one: systemctl disable --now portolan-proxy, or delete one of the DaemonSets"
    } else {
        "kubectl -n kube-system delete daemonset kube-proxy"
    };
    Finding::new(Code::TwoProxies, Severity::Error, title, mend)
}

/// Rules with kube-proxy's names beside Portolan's own. They are removed safely only if Portolan serves and no kube-proxy
/// that uses them can be running, unseen. Chains are removed only if the command line says that Portolan runs in the
/// nftables mode: while it changes to another mode, its own table is still there beside chains that are in use.
fn leftovers(facts: &Facts, rules: Rules, own: &[&Process]) -> Finding {
    let mut what = Vec::new();
    if rules.kube_proxy {
        what.push("the table kube-proxy".to_owned());
    }
    let mut tools: Vec<&str> = facts
        .rules
        .chains()
        .iter()
        .filter(|chain| chain.name == SERVICES_CHAIN && chain.place.program != Tool::Nft)
        .map(|chain| chain.place.command())
        .collect();
    tools.sort_unstable();
    tools.dedup();
    what.extend(tools.iter().map(|tool| format!("chains KUBE-* of {tool}")));
    let title = format!("kube-proxy left {}, beside Portolan's own table", what.join(", "));
    // The rules of the IPVS mode belong to virtual servers, which may still have connections.
    let is_nftables = |process: &&Process| process.mode.as_deref() == Some("nftables");
    let serves = if rules.chains { own.iter().any(is_nftables) } else { !own.is_empty() };
    let is_safe = serves && facts.proxies.complete && !rules.device;
    let mend =
        if is_safe { "portolan doctor --fix" } else { "kube-proxy --cleanup, if no kube-proxy runs here" };
    let fix = is_safe.then_some(Fix::RemoveLeftovers);
    Finding { fix, ..Finding::new(Code::LeftoversOfKubeProxy, Severity::Warning, title, mend) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::testing::codes;
    use crate::facts::{Link, Proxies};
    use crate::rules::{Ruleset, TableFamily, TableId};

    fn chain(program: Tool, table: &str, name: &str) -> Chain {
        let place = TableId { program, family: TableFamily::Ip, table: table.to_owned() };
        Chain { place, name: name.to_owned(), base: None, rules: Vec::new() }
    }

    fn own() -> Chain {
        chain(Tool::Nft, "portolan", "services")
    }

    fn upstream() -> Chain {
        chain(Tool::Nft, "kube-proxy", "services")
    }

    fn iptables() -> Chain {
        chain(Tool::IptablesNft, "nat", "KUBE-SERVICES")
    }

    fn process(pid: u32, program: Program) -> Process {
        Process { pid, program, mode: None }
    }

    fn facts(chains: Vec<Chain>, processes: Vec<Process>) -> Facts {
        let proxies = Proxies { processes, complete: true };
        Facts { rules: Ruleset::new(chains), proxies, ..Facts::default() }
    }

    #[test]
    fn the_mode_is_what_the_process_says_or_the_rules_show() {
        let said = Process { mode: Some("ipvs".to_owned()), ..process(1, Program::Portolan) };
        assert_eq!(mode(&facts(vec![own()], vec![said])), Some(Mode::Ipvs));
        assert_eq!(mode(&facts(vec![own(), iptables()], Vec::new())), Some(Mode::Nftables));
        assert_eq!(mode(&facts(vec![iptables()], Vec::new())), Some(Mode::Iptables));
        let userspace = chain(Tool::Nft, "portolan-userspace", "x");
        assert_eq!(mode(&facts(vec![userspace], Vec::new())), Some(Mode::Userspace));
        let device = Link { name: IPVS_DEVICE.to_owned(), ..Link::default() };
        let ipvs = Facts { links: vec![device], ..facts(vec![iptables()], Vec::new()) };
        assert_eq!(mode(&ipvs), Some(Mode::Ipvs));
        assert_eq!(mode(&Facts::default()), None);
    }

    #[test]
    fn two_proxies() {
        let both = vec![process(5, Program::KubeProxy), process(7, Program::Portolan)];
        let found = findings(&facts(vec![own(), iptables()], both));
        assert_eq!(codes(&found), [(Code::TwoProxies, Severity::Error)]);
        assert_eq!(
            found[0].title,
            "2 proxies run on this node: Portolan (process 7), kube-proxy (process 5)"
        );
        let twice = vec![process(5, Program::Portolan), process(7, Program::Portolan)];
        assert_eq!(codes(&findings(&facts(vec![own()], twice))), [(Code::TwoProxies, Severity::Error)]);
    }

    #[test]
    fn leftovers_are_removed_only_if_no_kube_proxy_can_use_them() {
        let unknown = vec![process(7, Program::Portolan)];
        let running = vec![Process { mode: Some("nftables".to_owned()), ..process(7, Program::Portolan) }];
        assert_eq!(findings(&facts(vec![own(), iptables()], unknown.clone()))[0].fix, None);
        assert_eq!(findings(&facts(vec![own(), upstream()], unknown))[0].fix, Some(Fix::RemoveLeftovers));
        let found = findings(&facts(vec![own(), iptables(), upstream()], running.clone()));
        assert_eq!(codes(&found), [(Code::LeftoversOfKubeProxy, Severity::Warning)]);
        assert_eq!(found[0].fix, Some(Fix::RemoveLeftovers));
        assert_eq!(
            found[0].title,
            "kube-proxy left the table kube-proxy, chains KUBE-* of iptables-nft, beside Portolan's own table"
        );
        let mut unseen = facts(vec![own(), iptables()], running.clone());
        unseen.proxies.complete = false;
        assert_eq!(findings(&unseen)[0].fix, None);
        let mut ipvs = facts(vec![own(), iptables()], running.clone());
        ipvs.links.push(Link { name: IPVS_DEVICE.to_owned(), ..Link::default() });
        assert_eq!(findings(&ipvs)[0].fix, None);
        assert_eq!(findings(&facts(vec![own()], running.clone())), []);
        assert_eq!(findings(&facts(vec![iptables()], running)), [], "the iptables mode");
    }

    #[test]
    fn kube_proxy_after_portolan() {
        let found = findings(&facts(vec![own(), upstream()], vec![process(5, Program::KubeProxy)]));
        assert_eq!(codes(&found), [(Code::LeftoversOfPortolan, Severity::Warning)]);
        let two_modes = findings(&facts(vec![upstream(), iptables()], vec![process(5, Program::KubeProxy)]));
        assert_eq!(codes(&two_modes), [(Code::LeftoversOfKubeProxy, Severity::Warning)]);
        assert_eq!(two_modes[0].fix, None);
    }

    #[test]
    fn rules_without_a_proxy() {
        assert_eq!(codes(&findings(&facts(vec![own()], Vec::new()))), [(Code::NoProxy, Severity::Warning)]);
        let mut unseen = facts(vec![own()], Vec::new());
        unseen.proxies.complete = false;
        assert_eq!(findings(&unseen), [], "it may run in another container");
        assert_eq!(findings(&facts(Vec::new(), Vec::new())), []);
    }
}
