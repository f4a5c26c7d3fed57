//! Decides which chains of an iptables table are kube-proxy's and may be removed.

use std::collections::{BTreeMap, BTreeSet};

use portolan_iptables::Variant;
use portolan_iptables::netlink::Jump;
use portolan_model::Family;

use super::found::{Found, Held, Kept, Kind, Object};

/// Returns the rules of a table's built-in chains that are removed even if the chains that they lead to stay.
pub(super) type Entries = fn(&str) -> Vec<&'static portolan_ipvs::Jump>;

/// The tables of iptables that kube-proxy writes to.
pub(super) const TABLES: [&str; 3] = ["nat", "filter", "mangle"];

/// The kernel's own chains.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// Chains of the nat table that built-in chains jump to, in the iptables and IPVS modes.
const NAT: [&str; 4] = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", CANARY];
/// Chains of the nat table that those chains jump to. Other programs also jump to the first one, to have packets
/// masqueraded.
const NAT_INNER: [&str; 3] = ["KUBE-MARK-MASQ", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER"];
/// An empty chain in each table.
pub(super) const CANARY: &str = "KUBE-PROXY-CANARY";
/// The chain of the filter table that kubelet shares. Its rule protects loopback addresses from the network.
pub(super) const FIREWALL: &str = "KUBE-FIREWALL";
/// Chains that kubelet creates in the tables of the iptables that it uses, in both families.
pub(super) const KUBELETS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
/// Chains of the filter table that built-in chains jump to.
const FILTER: [&str; 10] = [
    FIREWALL,
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
    CANARY,
    "KUBE-NODE-PORT",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// Chains of the mangle table that built-in chains jump to. The second is of our IPVS mode only.
const MANGLE: [&str; 2] = [CANARY, "KUBE-IPVS-OUT-FILTER"];
/// The chain of the filter table that one of those chains jumps to. Our IPVS mode has it in the mangle table, too.
const FILTER_INNER: &str = "KUBE-SOURCE-RANGES-FIREWALL";
/// Prefixes of the nat table's chains for single Services and endpoints.
const PER_SERVICE: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];

/// The removals from a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan<R> {
    /// Chains, with all their rules.
    pub(super) chains: BTreeSet<String>,
    /// Rules of built-in chains that lead to them, or that are unused otherwise.
    pub(super) rules: Vec<Jump<R>>,
    /// Chains that stay, each with the chain that has a rule of another program that leads to it.
    pub(super) held: BTreeMap<String, String>,
    /// Why [`FIREWALL`] stays, if it exists and is not removed.
    pub(super) firewall: Option<&'static str>,
}

/// The removals from the tables of a family.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RemovedChains {
    /// The number of chains.
    pub(super) chains: usize,
    /// The number of rules that led to chains that stay.
    pub(super) rules: usize,
    /// Chains that stay, because rules of other programs lead to them.
    pub(super) held: BTreeSet<String>,
}

impl RemovedChains {
    pub(super) fn add<R>(&mut self, plan: Plan<R>) {
        self.chains += plan.chains.len();
        self.rules += plan.rules.iter().filter(|jump| !plan.chains.contains(&jump.to)).count();
        self.held.extend(plan.held.into_keys());
    }
}

impl<R> Plan<R> {
    /// Adds rules that are removed even if the chains that they lead to stay.
    pub(super) fn and(mut self, rules: Vec<Jump<R>>) -> Self {
        self.rules.extend(rules.into_iter().filter(|jump| !self.chains.contains(&jump.to)));
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.rules.is_empty()
    }

    /// Adds the removals of this table to what was found.
    pub(super) fn list(&self, variant: Variant, family: Family, table: &str, found: &mut Found) {
        let object = |kind, name: &str| Object {
            variant: Some(variant),
            table: Some(table.to_owned()),
            ..Object::new(kind, Some(family), name)
        };
        let jump = |jump: &Jump<R>| Object { to: Some(jump.to.clone()), ..object(Kind::Jump, &jump.from) };
        found.objects.extend(self.rules.iter().map(jump));
        found.objects.extend(self.chains.iter().map(|chain| object(Kind::Chain, chain)));
        let held = |(chain, by): (&String, &String)| Held {
            object: object(Kind::Chain, chain),
            reason: format!("a rule in chain {by} leads to it"),
        };
        found.held.extend(self.held.iter().map(held));
        found.kept.extend(self.firewall.map(|reason| Kept { object: object(Kind::Chain, FIREWALL), reason }));
    }
}

/// Removes [`FIREWALL`] from `chains` if it stays. Returns why it stays.
pub(super) fn keep_firewall(
    chains: &mut Vec<String>,
    table: &str,
    is_kept: bool,
    is_shared: bool,
) -> Option<&'static str> {
    let place = chains.iter().position(|chain| (table, chain.as_str()) == ("filter", FIREWALL))?;
    let reason = match (is_kept, is_shared) {
        (true, _) => {
            "it keeps packets from the network away from loopback addresses, for kubelet or while route_localnet is 1"
        }
        (false, true) => "it has rules of other programs",
        (false, false) => return None,
    };
    chains.remove(place);
    Some(reason)
}

/// Chooses the chains to remove. A chain stays if a rule of a chain that stays leads to it, unless kube-proxy enters
/// its chains by that rule.
pub(super) fn plan<R>(table: &str, chains: impl Iterator<Item = String>, jumps: Vec<Jump<R>>) -> Plan<R> {
    let mut chains: BTreeSet<String> = chains.filter(|chain| is_kube_proxys(table, chain)).collect();
    let mut held = BTreeMap::new();
    let mut leading: BTreeMap<&str, Vec<&Jump<R>>> = BTreeMap::new();
    for jump in jumps.iter().filter(|jump| !is_entry(table, jump)) {
        leading.entry(&jump.from).or_default().push(jump);
    }
    let of_others = leading.iter().filter(|(from, _)| !chains.contains(**from));
    let mut queue: Vec<&Jump<R>> = of_others.flat_map(|(_, jumps)| jumps.iter().copied()).collect();
    while let Some(jump) = queue.pop() {
        if chains.remove(&jump.to) {
            held.insert(jump.to.clone(), jump.from.clone());
            queue.extend(leading.get(jump.to.as_str()).into_iter().flatten().copied());
        }
    }
    let leads = |jump: &Jump<R>| is_entry(table, jump) && chains.contains(&jump.to);
    let rules = jumps.into_iter().filter(leads).collect();
    Plan { chains, rules, held, firewall: None }
}

/// Returns true if kube-proxy enters its chains by this rule: it leads from a built-in chain to a fixed one.
fn is_entry<R>(table: &str, jump: &Jump<R>) -> bool {
    BUILT_IN.contains(&jump.from.as_str()) && entries(table).contains(&jump.to.as_str())
}

/// Returns the chains of a table that built-in chains jump to.
fn entries(table: &str) -> &'static [&'static str] {
    match table {
        "nat" => &NAT,
        "filter" => &FILTER,
        "mangle" => &MANGLE,
        _ => &[],
    }
}

fn is_kube_proxys(table: &str, chain: &str) -> bool {
    let inner = match table {
        "nat" => NAT_INNER.contains(&chain) || PER_SERVICE.iter().any(|prefix| chain.starts_with(prefix)),
        "filter" | "mangle" => chain == FILTER_INNER,
        _ => false,
    };
    inner || entries(table).contains(&chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nat(chains: &[&str], jumps: &[(&str, &str)]) -> (Vec<String>, Vec<(String, String)>) {
        let jumps = jumps.iter().map(|(from, to)| Jump { from: (*from).into(), to: (*to).into(), rule: () });
        let plan = plan("nat", chains.iter().map(ToString::to_string), jumps.collect());
        let rules = plan.rules.into_iter().map(|jump| (jump.from, jump.to)).collect();
        (plan.chains.into_iter().collect(), rules)
    }

    #[test]
    fn all_chains_of_the_iptables_mode_and_no_others_are_removed() {
        let chains =
            ["KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SEP-A", "KUBE-KUBELET-CANARY", "CNI-HOSTPORT", "OUTPUT"];
        let jumps = [
            ("PREROUTING", "KUBE-SERVICES"),
            ("OUTPUT", "KUBE-SERVICES"),
            ("OUTPUT", "CNI-HOSTPORT"),
            ("KUBE-SERVICES", "KUBE-SVC-A"),
            ("KUBE-SVC-A", "KUBE-SEP-A"),
        ];
        let (chains, rules) = nat(&chains, &jumps);
        assert_eq!(chains, ["KUBE-SEP-A", "KUBE-SERVICES", "KUBE-SVC-A"]);
        let entry = |from: &str| (from.to_owned(), "KUBE-SERVICES".to_owned());
        assert_eq!(rules, [entry("PREROUTING"), entry("OUTPUT")]);
    }

    #[test]
    fn chains_that_rules_of_other_programs_reach_stay() {
        let chains = ["KUBE-SERVICES", "KUBE-MARK-MASQ", "KUBE-SVC-A", "KUBE-SEP-A", "OTHERS"];
        let jumps = [
            ("OTHERS", "KUBE-MARK-MASQ"),
            // A rule of another program.
            ("PREROUTING", "KUBE-SVC-A"),
            ("KUBE-SVC-A", "KUBE-SEP-A"),
            ("KUBE-SERVICES", "KUBE-SVC-A"),
        ];
        let jumps = jumps.map(|(from, to)| Jump { from: from.into(), to: to.into(), rule: () });
        let plan = plan("nat", chains.iter().map(ToString::to_string), jumps.into());
        assert_eq!(plan.chains, BTreeSet::from(["KUBE-SERVICES".to_owned()]));
        assert!(plan.rules.is_empty(), "{plan:?}");
        let held = [("KUBE-MARK-MASQ", "OTHERS"), ("KUBE-SEP-A", "KUBE-SVC-A"), ("KUBE-SVC-A", "PREROUTING")];
        assert_eq!(plan.held, held.map(|(chain, by)| (chain.to_owned(), by.to_owned())).into());
    }

    #[test]
    fn all_chains_of_the_ipvs_mode_are_removed() {
        let entered =
            [("INPUT", "KUBE-IPVS-FILTER"), ("OUTPUT", "KUBE-IPVS-OUT-FILTER"), ("INPUT", "KUBE-NODE-PORT")];
        let inner = ("KUBE-PROXY-FIREWALL", "KUBE-SOURCE-RANGES-FIREWALL");
        let jumps = entered.into_iter().chain([("FORWARD", "KUBE-PROXY-FIREWALL"), inner]);
        let jumps = jumps.map(|(from, to)| Jump { from: from.to_owned(), to: to.to_owned(), rule: () });
        let jumps: Vec<_> = jumps.collect();
        let chains: Vec<_> = jumps.iter().map(|jump| jump.to.clone()).collect();
        let plan = plan("filter", chains.into_iter(), jumps);
        assert_eq!((plan.chains.len(), plan.rules.len()), (5, 4), "{plan:?}");

        let jumps = [
            ("KUBE-SERVICES", "KUBE-LOAD-BALANCER"),
            ("KUBE-SERVICES", "KUBE-NODE-PORT"),
            ("KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"),
        ];
        let all = ["KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-NODE-PORT", "KUBE-SERVICES"];
        assert_eq!(nat(&all, &jumps), (all.map(str::to_owned).to_vec(), Vec::new()));
        // A rule of another program.
        let (chains, _) =
            nat(&all, &[("PREROUTING", "KUBE-NODE-PORT"), ("KUBE-NODE-PORT", "KUBE-MARK-MASQ")]);
        assert_eq!(chains, ["KUBE-LOAD-BALANCER", "KUBE-SERVICES"]);
    }

    #[test]
    fn kubelets_chains_stay_in_every_table() {
        let all = ["KUBE-MARK-DROP", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-X"];
        for table in TABLES {
            let plan = plan::<()>(table, all.iter().map(ToString::to_string), Vec::new());
            assert!(plan.chains.is_empty(), "{table}: {:?}", plan.chains);
        }
    }
}
