//! Who programs Services on this node, and in which mode.

use crate::facts::{Containing, Distribution, Facts, Mode, Object, Part, Process, Program};
use crate::finding::{Code, Finding, Severity};
use crate::rules::{Chain, Owner, Program as Tool};

/// The network device of the IPVS mode.
pub(super) const IPVS_DEVICE: &str = "kube-ipvs0";
/// The table of kube-proxy's nftables mode.
const KUBE_PROXY_TABLE: &str = "kube-proxy";
/// Portolan's table in nftables mode, and the one that only its userspace mode has.
pub(super) const OWN_TABLE: &str = "portolan";
pub(super) const USERSPACE_TABLE: &str = "portolan-userspace";
/// The chain through which packets of Services go in the modes with kube-proxy's names.
const SERVICES_CHAIN: &str = "KUBE-SERVICES";

/// Returns the mode that the command line of the running proxy names. Another one may run in its place.
pub(super) fn named_mode(facts: &Facts) -> Option<Mode> {
    facts.proxies.processes.iter().find_map(|process| Mode::named(process.mode.as_deref()?))
}

/// Returns the mode in which Services are programmed: what the running proxy answers, or else what its command line says, or
/// else what its rules show. `None` if there is neither.
pub fn mode(facts: &Facts) -> Option<Mode> {
    let rules = Rules::of(facts);
    let shown = [
        (rules.userspace, Mode::Userspace),
        (rules.own || rules.kube_proxy, Mode::Nftables),
        (rules.device, Mode::Ipvs),
        (rules.chains, Mode::Iptables),
    ];
    let said = facts.answered_mode.or_else(|| named_mode(facts));
    said.or_else(|| shown.into_iter().find(|(is, _)| *is).map(|(_, mode)| mode))
}

/// Returns the mode in which a start would program Services, or else that of [`mode`].
pub(super) fn next_mode(facts: &Facts) -> Option<Mode> {
    facts.next_mode.or_else(|| mode(facts))
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
    let mut findings: Vec<Finding> = of_processes(facts).into_iter().collect();
    findings.extend(facts.proxies.containing.iter().map(contained));
    findings.extend(routing(facts));
    findings
}

/// Finds families in which packets are captured by tproxy and no rule of policy routing delivers them.
fn routing(facts: &Facts) -> Option<Finding> {
    let of = |part, kind: &str| {
        let is_it = |object: &&Object| object.part == part && object.kind == kind;
        facts.objects.iter().filter(is_it).collect::<Vec<_>>()
    };
    let tables = of(Part::Userspace, "table");
    let tables = tables.iter().filter(|table| table.name == USERSPACE_TABLE).count();
    let captures = mode(facts) == Some(Mode::Userspace) && Rules::of(facts).userspace;
    (captures && of(Part::Routing, "rule").len() < tables).then(|| {
        let title = "packets are captured by tproxy, and no rule of policy routing delivers them in at least one IP family: see `ip rule` and `ip -6 rule`";
        let runs = !facts.proxies.processes.is_empty() || !facts.proxies.complete;
        let mend = if runs { Code::RoutingMissing.usual_mend() } else { "start Portolan; or remove its rules: portolan-proxy cleanup" };
        Finding::new(Code::RoutingMissing, Severity::Error, title, mend)
    })
}

fn of_processes(facts: &Facts) -> Option<Finding> {
    let of = |program| -> Vec<&Process> {
        facts.proxies.processes.iter().filter(|process| process.program == program).collect()
    };
    let (own, others) = (of(Program::Portolan), of(Program::KubeProxy));
    if own.len() + others.len() > 1 {
        return Some(two(&own, &others));
    }
    let is_table = |part| matches!(part, Part::Nftables | Part::Userspace);
    let has_rules = Rules::of(facts).any() || facts.objects.iter().any(|object| is_table(object.part));
    if let [process] = [own, others].concat()[..] {
        let is_known = !facts.rules_are_partial;
        return (is_known && !has_rules).then(|| without_rules(process));
    }
    (facts.proxies.complete && has_rules).then(|| {
        let title = "the kernel has rules for Services, but no proxy runs in this network namespace";
        let mend = "start the proxy; or remove its rules: portolan-proxy cleanup";
        Finding::new(Code::NoProxy, Severity::Warning, title, mend)
    })
}

fn without_rules(process: &Process) -> Finding {
    let Process { pid, program, .. } = process;
    let title = format!("{program} (process {pid}) runs, but the kernel has no rules for Services");
    let mend = match program {
        Program::Portolan => "portolan status, and the log of the agent: it may not reach the API server",
        Program::KubeProxy => "read the log of kube-proxy: it may not reach the API server",
    };
    Finding::new(Code::ProxyWithoutRules, Severity::Error, title, mend)
}

/// Returns the note for a process that contains kube-proxy. Its command line does not tell whether kube-proxy runs.
fn contained(process: &Containing) -> Finding {
    let (name, mend) = match process.program {
        Distribution::K3s => ("k3s", "start k3s with --disable-kube-proxy before Portolan, unless you do"),
        Distribution::Kubelite => (
            "kubelite of MicroK8s",
            "let kubelite run without kube-proxy before Portolan starts, unless it does",
        ),
    };
    let title =
        format!("{name} (process {}) contains kube-proxy, which may program Services here", process.pid);
    let breaks =
        "If its kube-proxy runs, Portolan and it program the same Services, and undo each other's changes.";
    let finding = Finding::new(Code::OtherServiceProxy, Severity::Note, title, mend);
    Finding { breaks: breaks.to_owned(), ..finding }
}

fn two(own: &[&Process], others: &[&Process]) -> Finding {
    let all = || own.iter().chain(others);
    let names: Vec<String> =
        all().map(|process| format!("{} (process {})", process.program, process.pid)).collect();
    let title = format!("{} proxies run on this node: {}", names.len(), names.join(", "));
    let groups: Vec<String> = all().map(|process| format!("/proc/{}/cgroup", process.pid)).collect();
    // The name of a DaemonSet does not tell which proxy it runs, and the other nodes need its pods.
    let mend = format!(
        "find what starts each: cat {}; then on this node keep one: systemctl disable --now UNIT, or exclude this node by the \
         nodeAffinity of the DaemonSet; do not delete a DaemonSet that other nodes need",
        groups.join(" ")
    );
    Finding::new(Code::TwoProxies, Severity::Error, title, mend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::testing::{chain, codes, iptables, own, process, proxied};
    use crate::facts::Link;

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
        let answered =
            Facts { answered_mode: Some(Mode::Userspace), ..proxied(vec![iptables()], Vec::new()) };
        assert_eq!(mode(&answered), Some(Mode::Userspace), "chains of redirect");
        let ipvs = Process { mode: Some("ipvs".to_owned()), ..process(1, Program::Portolan) };
        let fallen_back =
            Facts { answered_mode: Some(Mode::Iptables), ..proxied(vec![iptables()], vec![ipvs]) };
        assert_eq!((mode(&fallen_back), named_mode(&fallen_back)), (Some(Mode::Iptables), Some(Mode::Ipvs)));
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
    }

    /// The `DaemonSet` kube-proxy may be the one that runs Portolan, and serves the other nodes.
    #[test]
    fn the_mend_of_two_proxies_concerns_this_node_only() {
        let programs = [Program::Portolan, Program::KubeProxy];
        for (first, second) in programs.iter().flat_map(|first| programs.map(|second| (*first, second))) {
            let both = vec![process(5, first), process(7, second)];
            let found = findings(&proxied(vec![own()], both));
            assert_eq!(codes(&found), [(Code::TwoProxies, Severity::Error)]);
            let mend = &found[0].mend;
            assert!(!mend.contains("kubectl") && mend.contains("on this node keep one"), "{mend}");
            assert!(mend.contains("/proc/5/cgroup") && mend.contains("/proc/7/cgroup"), "{mend}");
        }
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

    #[test]
    fn a_proxy_without_rules() {
        let mut facts = proxied(Vec::new(), vec![process(5, Program::Portolan)]);
        let found = findings(&facts);
        assert_eq!(codes(&found), [(Code::ProxyWithoutRules, Severity::Error)]);
        assert_eq!(found[0].title, "Portolan (process 5) runs, but the kernel has no rules for Services");
        facts.rules_are_partial = true;
        assert_eq!(findings(&facts), [], "they may be among those that could not be read");
        assert_eq!(findings(&proxied(vec![own()], vec![process(5, Program::Portolan)])), []);
    }

    #[test]
    fn a_program_that_contains_kube_proxy_may_program_the_rules() {
        let mut facts = proxied(vec![iptables()], Vec::new());
        facts.proxies.containing = vec![Containing { pid: 5, program: Distribution::K3s }];
        facts.proxies.complete = false;
        let found = findings(&facts);
        assert_eq!(codes(&found), [(Code::OtherServiceProxy, Severity::Note)]);
        assert_eq!(found[0].title, "k3s (process 5) contains kube-proxy, which may program Services here");
    }

    #[test]
    fn captured_packets_that_no_rule_delivers() {
        let object = |part, kind, name: &str| Object { part, kind, name: name.to_owned() };
        let table = || object(Part::Userspace, "table", USERSPACE_TABLE);
        let rule = || object(Part::Routing, "rule", "500: mark 0x1000/0x1000 to table 28783");
        let mut facts =
            proxied(vec![chain(Tool::Nft, USERSPACE_TABLE, "x")], vec![process(5, Program::Portolan)]);
        facts.objects = vec![table(), table(), rule(), rule()];
        assert_eq!(findings(&facts), []);
        facts.objects.pop();
        assert_eq!(codes(&findings(&facts)), [(Code::RoutingMissing, Severity::Error)], "of one family");
    }
}
