//! What was planned and committed reads back with no difference, and damage is reported where it is.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::observed::Deviation;
use portolan_model::world::Rng;
use portolan_model::{
    Backend, ExternalPolicy, Forwarding, InternalPolicy, NodePortAddresses, Protocol, ServicePortName,
    Settings,
};
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::fixed::{LOOPBACK, NODE_PORTS, PROXY_FIREWALL, SERVICES};
use crate::interpreter::Tables;
use crate::name::{ChainName, Kind};
use crate::planner::Entry as Planning;
use crate::planner::meaning::{random_options, random_settings};
use crate::planner::tests::{Edited, Planned, family};
use crate::rule::IptablesTable;
use crate::{IptablesOptions, Redirect};

fn variant() -> impl Strategy<Value = Variant> {
    prop_oneof![Just(Variant::Nft), Just(Variant::Legacy)]
}

/// A random world whose rules are in tables.
struct Written {
    edited: Edited,
    planner: Planned,
    tables: Tables,
}

impl Written {
    fn new(seed: u64, family: Family) -> Self {
        let mut rng = Rng::new(seed);
        let mut settings = random_settings(&mut rng, family);
        if rng.chance(10) {
            settings.node_port_addresses = NodePortAddresses::Addresses(Vec::new());
        }
        let options = random_options(&mut rng, &settings);
        Self::of(
            seed,
            settings,
            IptablesOptions { count_localhost: rng.chance(50), ..options },
            Change::clone,
        )
    }

    /// Writes the rules of changes as `view` shows them.
    fn of(seed: u64, settings: Settings, options: IptablesOptions, view: impl Fn(&Change) -> Change) -> Self {
        let mut edited = Edited::new(seed, 6);
        let mut planner = Planned::new(settings, options);
        let (changes, health_checks) = edited.first();
        planner.remember(&changes.iter().map(view).collect::<Vec<_>>(), &health_checks);
        let tables = loaded(&mut planner);
        Self { edited, planner, tables }
    }

    fn edit(&mut self, count: usize) {
        let (changes, health_checks) = self.edited.edit(count);
        let text = self.planner.plan(&changes, &health_checks);
        self.tables.restore(&text, |_| {}).unwrap();
    }

    fn reading(&self, variant: Variant) -> Reading {
        let family = self.planner.settings().family;
        reading(family, &self.tables.save(family, variant)).expect("chains of this mode")
    }

    fn table(&self) -> Vec<Entry> {
        self.edited.entries(self.planner.settings().family)
    }

    /// Returns every rule of every Service port.
    fn rules(&self) -> Vec<ServiceRule> {
        let mut rules = Vec::new();
        for (name, forwarding) in self.planner.table.iter() {
            let health_check = self.planner.table.health_check_port(&name.namespace, &name.service);
            let entry = Planning { forwarding: forwarding.clone(), health_check };
            let rule = |table, chain: &str, text: &str| ServiceRule {
                name: name.clone(),
                forwarding: forwarding.clone(),
                table,
                chain: chain.to_owned(),
                text: text.to_owned(),
            };
            let shared = self.planner.dispatch(name, &entry);
            rules.extend(shared.iter().map(|own| rule(own.table, own.chain, &own.text)));
            for chain in self.planner.chains(name, &entry) {
                rules.extend(chain.rules.iter().map(|text| rule(IptablesTable::Nat, &chain.name, text)));
            }
        }
        rules
    }
}

/// One rule of a Service port.
#[derive(Debug)]
struct ServiceRule {
    name: Arc<ServicePortName>,
    forwarding: Arc<Forwarding>,
    table: IptablesTable,
    chain: String,
    text: String,
}

impl ServiceRule {
    /// Returns true if these are the deviations when the rule is missing.
    fn explains(&self, deviations: &[Deviation]) -> bool {
        let only = |is: fn(&Deviation) -> bool| !deviations.is_empty() && deviations.iter().all(is);
        let no_frontend: fn(&Deviation) -> bool =
            |own| matches!(own, Deviation::FrontendMissing(_) | Deviation::ServicePortMissing);
        let no_endpoint: fn(&Deviation) -> bool = |own| matches!(own, Deviation::EndpointMissing { .. });
        let has = |text: &str| self.text.contains(text);
        if has("-j KUBE-MARK-MASQ") || has("health check node port") || has("pod traffic for") {
            return deviations.is_empty();
        }
        match (self.table, &*self.chain, ChainName::parse(&self.chain).map(ChainName::kind)) {
            (IptablesTable::Filter, PROXY_FIREWALL, _) => only(|own| *own == Deviation::SourcesUnrestricted),
            (IptablesTable::Nat, NODE_PORTS, _) if has(LOOPBACK) => deviations.is_empty(),
            (IptablesTable::Filter, ..) | (IptablesTable::Nat, SERVICES | NODE_PORTS, _) => {
                only(no_frontend) && deviations.len() == 1
            }
            (_, _, Some(Kind::Endpoint)) => {
                only(no_endpoint) || (deviations.is_empty() && !(self.uses(true) && self.uses(false)))
            }
            (_, _, Some(Kind::Cluster | Kind::Local)) if has("--rcheck") => {
                only(|own| matches!(own, Deviation::Affinity { found: None, .. }))
            }
            (_, _, Some(Kind::Cluster)) => only(no_endpoint) || (deviations.is_empty() && !self.uses(false)),
            (_, _, Some(Kind::Local)) => only(no_endpoint) || (deviations.is_empty() && !self.uses(true)),
            (_, _, Some(Kind::External)) => only(no_frontend),
            (_, _, Some(Kind::Firewall)) => {
                let is_range = |own: &Deviation| {
                    use Deviation::{FrontendMissing, SourceRangeExtra, SourceRangeMissing};
                    matches!(own, SourceRangeMissing(_) | SourceRangeExtra(_) | FrontendMissing(_))
                };
                let is_added = self
                    .forwarding
                    .frontends
                    .iter()
                    .any(|frontend| frontend.socket().is_some_and(|at| has(&format!("-s {} ", at.ip()))));
                if is_added || !has("-j ") { deviations.is_empty() } else { only(is_range) }
            }
            _ => false,
        }
    }

    /// Returns true if a frontend leads to the local list, or to that of the cluster.
    fn uses(&self, local: bool) -> bool {
        let Forwarding { frontends, internal_policy, external_policy, .. } = &*self.forwarding;
        frontends.iter().any(|frontend| match frontend {
            Frontend::ClusterIp(..) => (*internal_policy == InternalPolicy::Local) == local,
            _ => !local || *external_policy == ExternalPolicy::Local,
        })
    }
}

/// The ports of the relay's listeners.
const LISTENERS: (u16, u16) = (20000, 20001);

/// Returns a change as the userspace mode plans it: the listeners take the place of endpoints.
fn relayed(change: &Change, at: IpAddr) -> Change {
    let view = |forwarding: &Arc<Forwarding>| {
        let is_carried = forwarding.protocol != Protocol::Sctp;
        let list = |backends: &[Backend], port: u16| -> Box<[Backend]> {
            let listener = Backend { address: at, port, may_hairpin: false };
            if is_carried && !backends.is_empty() { Box::new([listener]) } else { Box::default() }
        };
        Arc::new(Forwarding {
            cluster: list(&forwarding.cluster, LISTENERS.0),
            local: list(&forwarding.local, LISTENERS.1),
            has_endpoints: is_carried && forwarding.has_endpoints,
            affinity: None,
            ..(**forwarding).clone()
        })
    };
    Change { old: change.old.as_ref().map(view), new: change.new.as_ref().map(view), ..change.clone() }
}

fn written_by_userspace(seed: u64, family: Family) -> Written {
    let mut rng = Rng::new(seed);
    let settings = random_settings(&mut rng, family);
    let redirect = Redirect { own_mark: 4, ports: LISTENERS };
    let options = IptablesOptions {
        redirect: Some(redirect),
        localhost_node_ports: false,
        ..IptablesOptions::default()
    };
    let unspecified = if family == Family::Ipv4 { "0.0.0.0" } else { "::" }.parse().unwrap();
    let at = settings.node_ip.filter(|_| rng.chance(50)).unwrap_or(unspecified);
    Written::of(seed, settings, options, |change| relayed(change, at))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_was_planned_reads_back_without_a_difference(
        seed in any::<u64>(), family in family(), variant in variant(),
        counts in prop::collection::vec(1_usize..6, 0..4)
    ) {
        let mut written = Written::new(seed, family);
        for count in counts {
            written.edit(count);
        }
        let reading = written.reading(variant);
        prop_assert_eq!(texts(&reading.observed.difference(&written.table())), [""; 0]);
        prop_assert_eq!(reading.unknown, UnknownRules::default());
    }

    #[test]
    fn a_missing_rule_is_the_difference_of_its_service_port(
        seed in any::<u64>(), family in family(), variant in variant(), index in any::<Index>()
    ) {
        let mut written = Written::new(seed, family);
        let rules = written.rules();
        prop_assume!(!rules.is_empty());
        let rule = index.get(&rules);
        let removal = format!("*{}\n-D {} {}\nCOMMIT\n", rule.table, rule.chain, rule.text);
        written.tables.restore(&removal, |_| {}).unwrap();
        let differences = written.reading(variant).observed.difference(&written.table());
        let of_others: Vec<_> =
            differences.iter().filter(|difference| difference.name.as_ref() != Some(&rule.name)).collect();
        prop_assert!(of_others.is_empty(), "{:?}: {:?}", rule, of_others);
        let deviations: Vec<_> = differences.into_iter().map(|difference| difference.deviation).collect();
        prop_assert!(rule.explains(&deviations), "{:?}: {:?}", rule, deviations);
    }

    /// The rules are those of an older table: only Service ports that changed differ.
    #[test]
    fn what_is_out_of_date_is_the_difference_of_changed_service_ports(
        seed in any::<u64>(), family in family(), variant in variant(), count in 1_usize..6
    ) {
        let mut written = Written::new(seed, family);
        let before = written.table();
        let observed = written.reading(variant).observed;
        let (changes, _) = written.edited.edit(count);
        let after = written.table();
        let changed: BTreeSet<_> = changes.iter().filter(|change| change.family == family).map(|change| &change.name).collect();
        let differences = observed.difference(&after);
        for difference in &differences {
            let is_changed = difference.name.as_ref().is_some_and(|name| changed.contains(name));
            prop_assert!(is_changed, "{}: {:?}", difference, changed);
        }
        // An external IP and a load-balancer IP have the same rules.
        let meaning = |frontend: Frontend| match frontend {
            Frontend::LoadBalancerIp(address, port) => Frontend::ExternalIp(address, port),
            other => other,
        };
        let frontends = |table: &[Entry], name: &ServicePortName| {
            let own = table.iter().find(|(own, _)| **own == *name);
            own.map(|(_, forwarding)| forwarding.frontends.iter().copied().map(meaning).collect::<BTreeSet<_>>())
        };
        for name in changed {
            let (old, new) = (frontends(&before, name), frontends(&after, name));
            let is_reported = differences.iter().any(|difference| difference.name.as_ref() == Some(name));
            let is_nothing = |own: &Option<BTreeSet<_>>| own.as_ref().is_none_or(BTreeSet::is_empty);
            let differs = old != new && !(is_nothing(&old) && is_nothing(&new));
            prop_assert!(is_reported || !differs, "{}: {:?} {:?}", name, old, new);
        }
    }

    #[test]
    fn rules_that_lead_to_the_relay_have_frontends_and_source_ranges(
        seed in any::<u64>(), family in family(), variant in variant(), index in any::<Index>()
    ) {
        let mut written = written_by_userspace(seed, family);
        let before = written.reading(variant);
        // The table has the endpoints and timeouts that only the relay has.
        prop_assert_eq!(texts(&before.observed.difference(&written.table())), [""; 0]);
        prop_assert_eq!(before.unknown, UnknownRules::default());
        prop_assert_eq!(before.listeners, Some(LISTENERS));
        let is_unknown = |port: &ObservedPort| {
            port.endpoints == ObservedEndpoints::Unknown && port.affinity == Fact::Unknown
        };
        prop_assert!(before.observed.ports.iter().all(is_unknown));
        let translations: Vec<_> =
            written.rules().into_iter().filter(|rule| rule.chain.starts_with("KUBE-SEP-") && !rule.text.ends_with("-j RETURN")).collect();
        prop_assume!(!translations.is_empty());
        let rule = index.get(&translations);
        let removal = format!("*nat\n-D {} {}\nCOMMIT\n", rule.chain, rule.text);
        written.tables.restore(&removal, |_| {}).unwrap();
        let differences = written.reading(variant).observed.difference(&written.table());
        for difference in differences {
            prop_assert_eq!(difference.name.as_ref(), Some(&rule.name));
            prop_assert!(matches!(difference.deviation, Deviation::FrontendMissing(_)));
        }
    }

    /// Whatever a save has, it is read, and compared with any table.
    #[test]
    fn no_save_stops_the_reader(
        seed in any::<u64>(), family in family(), variant in variant(),
        damages in prop::collection::vec((any::<Index>(), any::<Index>(), 0_u8..6), 1..40)
    ) {
        let written = Written::new(seed, family);
        let text = written.tables.save(family, variant);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (one, other, kind) in damages {
            let (one, other) = (one.index(lines.len()), other.index(lines.len()));
            match kind {
                0 => lines.swap(one, other),
                1 => lines[one] = lines[other].clone(),
                2 => {
                    // Every word of a rule is plain text.
                    let (from, to) = (lines[one].clone(), lines[other].clone());
                    let words = from.split(' ').take(from.len() % 9).chain(to.split(' ').skip(to.len() % 7));
                    lines[one] = words.collect::<Vec<_>>().join(" ");
                }
                3 => {
                    let half = lines[one].len() / 2;
                    lines[one].truncate(half);
                }
                4 => lines[one] = lines[one].replace(['0', '1'], "99"),
                _ => lines[one] = lines[one].replace("KUBE-S", "KUBE-"),
            }
        }
        if let Some(reading) = reading(family, &lines.join("\n")) {
            texts(&reading.observed.difference(&written.table()));
            prop_assert!(reading.unknown.first.len() <= 16);
        }
    }
}

/// In a large cluster, rules of single endpoints have no comments.
#[test]
fn a_large_cluster_reads_back_without_a_difference() {
    let number = 1001_u16;
    let service = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let forwarding = Forwarding::plain(
            (IpAddr::from([172, 30, high, low]), 80).into(),
            Protocol::Tcp,
            Box::new([Backend { address: [10, 180, high, low].into(), port: 80, may_hairpin: false }]),
        );
        crate::planner::tests::example::put(&format!("s{number}"), "", forwarding)
    };
    let changes: Vec<Change> = (0..number).map(service).collect();
    let text = loaded(&mut planner(Family::Ipv4, &changes)).save(Family::Ipv4, Variant::Nft);
    assert!(!text.contains(" -> "));
    let reading = reading(Family::Ipv4, &text).unwrap();
    assert_eq!(texts(&reading.observed.difference(&entries(&changes))), [""; 0]);
    assert!(reading.observed.ports.iter().all(|port| port.name.is_some()));
}
