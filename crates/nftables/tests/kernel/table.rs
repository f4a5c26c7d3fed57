//! The table in the kernel, read with other code than the data plane's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{
    Chain, Data, Family as WireFamily, NftablesEvent, Rule, Set, SetFlags, UserData, Verdict, request,
};
use portolan_wire::{Frame, Request};

const TABLE: &str = "portolan";

/// First index of local endpoints.
const LOCAL: u32 = 65_536;

/// Our table without handles, counts, and elements that rules have added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    flags: u32,
    chains: BTreeMap<String, (Chain, Vec<Rule>)>,
    sets: BTreeMap<String, Set>,
    elements: BTreeMap<String, Elements>,
}

/// Data and comment of each element, by key and end of the interval.
type Elements = BTreeMap<ElementKey, Content>;
type ElementKey = (Vec<u8>, Vec<u8>);
type Content = (Option<Data>, String);

/// Returns the generation, which every commit of any program increments.
pub(crate) fn generation() -> u32 {
    let mut generation = None;
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let take = |frame: &Frame<'_>| {
        if let NftablesEvent::Generation(now) = NftablesEvent::decode(frame)? {
            generation = Some(now.id);
        }
        Ok(())
    };
    socket.query(&mut request::generation(), take).unwrap();
    generation.unwrap()
}

fn dump(socket: &mut Socket, mut request: Request, mut take: impl FnMut(NftablesEvent<'_>)) {
    let handle = |frame: &Frame<'_>| {
        take(NftablesEvent::decode(frame)?);
        Ok(())
    };
    socket.dump(&mut request, handle).unwrap();
}

impl Table {
    /// Returns the number of rules of a chain.
    pub(crate) fn rules_of(&self, chain: &str) -> usize {
        self.chains[chain].1.len()
    }

    /// Reads the table in this thread's namespace.
    pub(crate) fn read(family: Family) -> Self {
        let family = match family {
            Family::Ipv4 => WireFamily::IPV4,
            Family::Ipv6 => WireFamily::IPV6,
        };
        let (mut table, mut counts) = (Self::default(), BTreeMap::new());
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        dump(&mut socket, request::tables(family), |event| {
            let NftablesEvent::NewTable(found) = event else { panic!("{event:?}") };
            if found.name == TABLE {
                table.flags = found.flags;
            }
        });
        table.read_chains(&mut socket, family);
        dump(&mut socket, request::sets(family, TABLE), |event| {
            let NftablesEvent::NewSet(set) = event else { panic!("{event:?}") };
            counts.insert(set.name.clone(), set.element_count);
            table.sets.insert(set.name.clone(), set.normalized());
        });
        for (name, set) in &table.sets {
            let request = || request::elements(family, TABLE, name);
            let elements = match set.flags {
                flags if flags.contains(SetFlags::EVAL) => Elements::new(),
                flags if flags.contains(SetFlags::INTERVAL) => read_elements(&mut socket, request, None),
                _ => read_elements(&mut socket, request, counts[name]),
            };
            table.elements.insert(name.clone(), elements);
        }
        table
    }

    /// Reads the table, or returns `None` if it does not exist.
    pub(crate) fn read_or_empty(family: Family) -> Option<Self> {
        let name = match family {
            Family::Ipv4 => "table ip portolan",
            Family::Ipv6 => "table ip6 portolan",
        };
        super::support::nft("list tables").lines().any(|line| line == name).then(|| Self::read(family))
    }

    fn read_chains(&mut self, socket: &mut Socket, family: WireFamily) {
        dump(socket, request::chains(family), |event| {
            let NftablesEvent::NewChain(chain) = event else { panic!("{event:?}") };
            if chain.table == TABLE {
                self.chains.insert(chain.name.clone(), (chain.normalized(), Vec::new()));
            }
        });
        dump(socket, request::rules(family, TABLE, None), |event| {
            let NftablesEvent::NewRule(rule) = event else { panic!("{event:?}") };
            let (_, rules) = self.chains.get_mut(&rule.chain).unwrap();
            rules.push(Rule { position: None, ..rule.normalized() });
        });
    }

    /// Returns the names of the chains.
    pub(crate) fn chains(&self) -> BTreeSet<&str> {
        self.chains.keys().map(String::as_str).collect()
    }

    /// Returns the names of the sets.
    pub(crate) fn sets(&self) -> BTreeSet<&str> {
        self.sets.keys().map(String::as_str).collect()
    }

    /// Returns the number of elements of a set.
    pub(crate) fn count(&self, set: &str) -> usize {
        self.elements[set].len()
    }

    /// Returns what the table does, as lines, without ids, class numbers, the order of indexes, and slots. Panics if
    /// the parts do not fit together.
    pub(crate) fn meaning(&self) -> BTreeSet<String> {
        let chains = self.chains.iter().map(|(name, (chain, rules))| format!("{name}: {chain:?} {rules:?}"));
        let sets = self.sets.values().map(|set| format!("{set:?}"));
        let mut lines: BTreeSet<String> = chains.chain(sets).collect();
        lines.insert(format!("flags {}", self.flags));
        for (name, elements) in &self.elements {
            match name.as_str() {
                "services" | "node-ports" => lines.extend(self.frontends(name, elements)),
                "classes" | "endpoints" | "service-counters" => {}
                _ if name.starts_with("affinity") => {}
                _ => lines.extend(
                    elements.iter().map(|(key, (_, comment))| format!("{name}: {key:02x?} {comment}")),
                ),
            }
        }
        self.check_nothing_is_left_over();
        lines
    }

    fn frontends(&self, set: &str, elements: &Elements) -> Vec<String> {
        let line = |((key, _), (data, comment)): (&ElementKey, &Content)| {
            let value = number(data.as_ref());
            let (id, class) = (value >> 14 << 14, value & 0x3fff);
            let class = self.class(class);
            let (cluster, local) = (self.backends(id, 0), self.backends(id, LOCAL));
            check_counts(&class, cluster.len(), local.len());
            format!("{set} {key:02x?} {comment} {class} {cluster:02x?} {local:02x?}")
        };
        elements.iter().map(line).collect()
    }

    /// Returns the chain of a class.
    fn class(&self, number: u32) -> String {
        match &self.elements["classes"][&(number.to_ne_bytes().to_vec(), Vec::new())].0 {
            Some(Data::Verdict(Verdict::Goto(chain))) => chain.clone(),
            other => panic!("class {number} leads to {other:?}"),
        }
    }

    /// Returns the backends of an id, sorted. Panics if a slot belongs to another id or has no
    /// endpoint, or if a backend has two indexes.
    fn backends(&self, id: u32, first: u32) -> Vec<Vec<u8>> {
        let key = |index: u32| ([id.to_ne_bytes(), index.to_ne_bytes()].concat(), Vec::new());
        let direct =
            (first..).map_while(|index| Some(bytes(self.elements["endpoints"].get(&key(index))?.0.as_ref())));
        let slots = if first == 0 { "affinity-endpoints" } else { "affinity-local-endpoints" };
        let by_slot = (first..).map_while(|index| {
            let slot = self.elements["affinity-choices"].get(&key(index))?.0.as_ref();
            assert_eq!(number(slot) >> 14 << 14, id, "a slot of its own");
            Some(bytes(self.elements[slots][&(bytes(slot), Vec::new())].0.as_ref()))
        });
        let all: Vec<Vec<u8>> = direct.chain(by_slot).collect();
        let distinct: BTreeSet<_> = all.iter().cloned().collect();
        assert_eq!(distinct.len(), all.len(), "a backend twice: {all:02x?}");
        distinct.into_iter().collect()
    }

    /// Returns the id that the frontends with this comment lead to.
    pub(crate) fn id_of(&self, comment: &str) -> u32 {
        let frontends = ["services", "node-ports"].into_iter().flat_map(|set| self.elements[set].values());
        let own = frontends.filter(|(_, of)| of == comment);
        let ids: BTreeSet<u32> = own.map(|(data, _)| number(data.as_ref()) >> 14).collect();
        assert_eq!(ids.len(), 1, "{comment}: {ids:?}");
        ids.into_iter().next().unwrap()
    }

    /// Returns the endpoint of each slot of an id.
    pub(crate) fn slots_of(&self, id: u32) -> BTreeMap<u32, Vec<u8>> {
        let slots = self.elements["affinity-endpoints"].iter();
        let slots = slots.map(|((key, _), (data, _))| {
            (u32::from_ne_bytes(key.as_slice().try_into().unwrap()), bytes(data.as_ref()))
        });
        slots.filter(|(slot, _)| slot >> 14 == id).collect()
    }

    fn check_nothing_is_left_over(&self) {
        let values = ["services", "node-ports"].into_iter().flat_map(|set| self.elements[set].values());
        let ids: BTreeSet<u32> = values.map(|(data, _)| number(data.as_ref()) >> 14 << 14).collect();
        let (mut found, mut slots) = (0, BTreeSet::new());
        for &id in &ids {
            found += self.backends(id, 0).len() + self.backends(id, LOCAL).len();
        }
        assert_eq!(
            self.count("endpoints") + self.count("affinity-choices"),
            found,
            "an endpoint without an id"
        );
        for ((key, _), (slot, _)) in &self.elements["affinity-choices"] {
            let local = u32::from_ne_bytes(key[4..].try_into().unwrap()) >= LOCAL;
            slots.insert((local, number(slot.as_ref())));
        }
        let counts = self.count("affinity-endpoints") + self.count("affinity-local-endpoints");
        assert_eq!(slots.len(), counts, "a slot without a choice, or one that two have");
    }
}

/// Lists the elements until their number is right. While the kernel resizes a set, a listing lacks some elements and
/// has others twice.
fn read_elements(socket: &mut Socket, request: impl Fn() -> Request, count: Option<u32>) -> Elements {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let (mut elements, mut listed) = (Elements::new(), 0);
        dump(socket, request(), |event| {
            let NftablesEvent::NewElements(list) = event else { panic!("{event:?}") };
            for element in list.elements() {
                let element = element.unwrap().to_owned();
                let comment =
                    UserData::from_bytes(&element.userdata).comment_text().unwrap_or_default().to_owned();
                let key = (element.key, element.key_end.unwrap_or_default());
                elements.insert(key, (element.data, comment));
                listed += 1;
            }
        });
        if elements.len() == listed && count.is_none_or(|count| usize::try_from(count) == Ok(listed)) {
            return elements;
        }
        assert!(
            Instant::now() < deadline,
            "{listed} listed, {} different, {count:?} counted",
            elements.len()
        );
    }
}

/// Asserts that the numbers of endpoints match the class: `internal-local-3` needs three local endpoints,
/// `external-local-3-1-affinity-60` three endpoints of the cluster and one local.
fn check_counts(class: &str, cluster: usize, local: usize) {
    let (kind, _) = class.split_once("-affinity-").unwrap_or((class, ""));
    let numbers: Vec<usize> = kind.split('-').filter_map(|part| part.parse().ok()).collect();
    let wanted = match numbers[..] {
        [all, here] => all == cluster && here == local,
        [here] if kind.contains("local") => here == local,
        [all] => all == cluster,
        _ => false,
    };
    assert!(wanted, "{class} with {cluster} and {local} backends");
}

fn bytes(data: Option<&Data>) -> Vec<u8> {
    match data {
        Some(Data::Value(bytes)) => bytes.clone(),
        other => panic!("{other:?} instead of a value"),
    }
}

fn number(data: Option<&Data>) -> u32 {
    u32::from_ne_bytes(bytes(data).try_into().unwrap())
}
