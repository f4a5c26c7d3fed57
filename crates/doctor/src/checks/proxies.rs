//! Who programs Services on this node, and in which mode.

use std::fmt;

use crate::facts::{Facts, Part, Process, Program};
use crate::finding::{Code, Finding, Severity};
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

impl Mode {
    /// Returns the mode that the value of `--proxy-mode` names.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "nftables" => Some(Self::Nftables),
            "iptables" => Some(Self::Iptables),
            "ipvs" => Some(Self::Ipvs),
            "userspace" => Some(Self::Userspace),
            _ => None,
        }
    }
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
pub(super) const IPVS_DEVICE: &str = "kube-ipvs0";
/// The table of kube-proxy's nftables mode.
const KUBE_PROXY_TABLE: &str = "kube-proxy";
/// Portolan's table in nftables mode, and the one that only its userspace mode has.
pub(super) const OWN_TABLE: &str = "portolan";
pub(super) const USERSPACE_TABLE: &str = "portolan-userspace";
/// The chain through which packets of Services go in the modes with kube-proxy's names.
const SERVICES_CHAIN: &str = "KUBE-SERVICES";

/// Returns the mode in which Services are programmed: what the command line of the running proxy says, or else what its
/// rules show. `None` if there is neither.
pub fn mode(facts: &Facts) -> Option<Mode> {
    let said = facts.proxies.processes.iter().find_map(|process| Mode::named(process.mode.as_deref()?));
    let rules = Rules::of(facts);
    let shown = [
        (rules.userspace, Mode::Userspace),
        (rules.own || rules.kube_proxy, Mode::Nftables),
        (rules.device, Mode::Ipvs),
        (rules.chains, Mode::Iptables),
    ];
    said.or_else(|| shown.into_iter().find(|(is, _)| *is).map(|(_, mode)| mode))
}

/// Returns the mode of [`mode`], or the nftables mode if there is none. A trial finds out whether this node can run it.
pub fn tried_mode(facts: &Facts) -> Mode {
    mode(facts).unwrap_or(Mode::Nftables)
}

/// Which rules of proxies are in the kernel.
#[expect(clippy::struct_excessive_bools, reason = "five independent observations")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Portolan's table of the nftables mode.
    pub(super) own: bool,
    /// Portolan's table of the userspace mode.
    pub(super) userspace: bool,
    /// kube-proxy's table of the nftables mode.
    pub(super) kube_proxy: bool,
    /// The chains of the iptables and IPVS modes. With redirect, the userspace mode has them, too.
    pub(super) chains: bool,
    /// The device of the IPVS mode.
    pub(super) device: bool,
}

impl Rules {
    pub(super) fn of(facts: &Facts) -> Self {
        let any = |is: &dyn Fn(&Chain) -> bool| facts.rules.chains().iter().any(is);
        let table = |name: &'static str| {
            any(&move |chain: &Chain| chain.place.program == Tool::Nft && chain.place.table == name)
        };
        Self {
            own: table(OWN_TABLE),
            userspace: table(USERSPACE_TABLE),
            kube_proxy: table(KUBE_PROXY_TABLE),
            chains: any(&is_services),
            device: facts.links.iter().any(|link| link.name == IPVS_DEVICE),
        }
    }

    const fn any(self) -> bool {
        self.own || self.userspace || self.kube_proxy || self.chains
    }
}

/// Returns true for the chain through which packets of Services go in the modes with kube-proxy's names.
pub(super) fn is_services(chain: &Chain) -> bool {
    chain.place.program != Tool::Nft
        && chain.name == SERVICES_CHAIN
        && Owner::of(&chain.place, &chain.name) == Owner::KubeProxy
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let of = |program| -> Vec<&Process> {
        facts.proxies.processes.iter().filter(|process| process.program == program).collect()
    };
    let (own, others) = (of(Program::Portolan), of(Program::KubeProxy));
    if own.len() + others.len() > 1 {
        return vec![two(&own, &others)];
    }
    let is_table = |part| matches!(part, Part::Nftables | Part::Userspace);
    let has_rules = Rules::of(facts).any() || facts.objects.iter().any(|object| is_table(object.part));
    if facts.proxies.complete && own.is_empty() && others.is_empty() && has_rules {
        let title = "the kernel has rules for Services, but no proxy runs in this network namespace";
        let mend = "start the proxy; or remove its rules: portolan-proxy cleanup";
        return vec![Finding::new(Code::NoProxy, Severity::Warning, title, mend)];
    }
    Vec::new()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::testing::{chain, codes, iptables, own, process, proxied};
    use crate::facts::{Link, Object};

    #[test]
    fn the_mode_is_what_the_process_says_or_the_rules_show() {
        let said = Process { mode: Some("ipvs".to_owned()), ..process(1, Program::Portolan) };
        assert_eq!(mode(&proxied(vec![own()], vec![said])), Some(Mode::Ipvs));
        assert_eq!(mode(&proxied(vec![own(), iptables()], Vec::new())), Some(Mode::Nftables));
        assert_eq!(mode(&proxied(vec![iptables()], Vec::new())), Some(Mode::Iptables));
        let userspace = chain(Tool::Nft, "portolan-userspace", "x");
        assert_eq!(mode(&proxied(vec![userspace], Vec::new())), Some(Mode::Userspace));
        let device = Link { name: IPVS_DEVICE.to_owned(), ..Link::default() };
        let ipvs = Facts { links: vec![device], ..proxied(vec![iptables()], Vec::new()) };
        assert_eq!(mode(&ipvs), Some(Mode::Ipvs));
        assert_eq!(mode(&Facts::default()), None);
    }

    #[test]
    fn two_proxies() {
        let both = vec![process(5, Program::KubeProxy), process(7, Program::Portolan)];
        let found = findings(&proxied(vec![own(), iptables()], both));
        assert_eq!(codes(&found), [(Code::TwoProxies, Severity::Error)]);
        assert_eq!(
            found[0].title,
            "2 proxies run on this node: Portolan (process 7), kube-proxy (process 5)"
        );
        let twice = vec![process(5, Program::Portolan), process(7, Program::Portolan)];
        assert_eq!(codes(&findings(&proxied(vec![own()], twice))), [(Code::TwoProxies, Severity::Error)]);
    }

    #[test]
    fn rules_without_a_proxy() {
        let expected = [(Code::NoProxy, Severity::Warning)];
        assert_eq!(codes(&findings(&proxied(vec![own()], Vec::new()))), expected);
        let mut unseen = proxied(vec![own()], Vec::new());
        unseen.proxies.complete = false;
        assert_eq!(findings(&unseen), [], "it may run in another container");
        assert_eq!(findings(&proxied(Vec::new(), Vec::new())), []);
        let relay = Object { part: Part::Userspace, kind: "table", name: "portolan-relay".to_owned() };
        let listed = Facts { objects: vec![relay], ..proxied(Vec::new(), Vec::new()) };
        assert_eq!(codes(&findings(&listed)), expected, "a table without chains");
    }
}
