//! The layout that translates packets to endpoints, for the nftables mode.

use portolan_model::{Family, Settings};
use portolan_wire::nftables::expr::MetaKey;
use portolan_wire::nftables::{ChainType, Expr, Hook};

use super::super::chain::{ChainBody, RuleBody, SERVICES, base, commented, rule};
use super::super::class::{Balance, Class};
use super::super::element::Set;
use super::super::expression::{
    Side, accept, address, address_is_local, address_words, delete, dnat, from_loopback, goto, jump,
    local_pod, map, mark_for_masquerade, masquerade, member, meta, no_input_interface, priority,
    protocol_and_port, random, reset_priority, set_meta, status_dnat, take_mark, update,
};
use super::super::value::{ID_MASK, LOCAL_OFFSET};
use super::{Kind, NAT_PRIORITY, external_local_rules};

/// The name of the nftables mode's table, in either family.
pub const TABLE: &str = "portolan";

/// `NF_IP_PRI_NAT_SRC` (`netfilter_ipv4.h`).
const SOURCE_PRIORITY: i32 = 100;

pub(super) const KIND: Kind = Kind {
    mode: "nftables",
    table: TABLE,
    first_chain: PREROUTING_CHAIN,
    holds_endpoints: true,
    modules: "nft_chain_nat, nft_ct, nft_fib_ipv4, nft_fib_ipv6, nft_masq, nft_nat, nft_numgen, nft_reject_ipv4 and \
              nft_reject_ipv6",
    leads_in,
};

/// The base chain that translates packets that this node receives.
const PREROUTING_CHAIN: &str = "nat-prerouting";

/// The chain that masquerades.
const MASQUERADING: &str = "masquerading";

/// Returns true for a base chain that translates, drops or rejects packets, and false for the one that masquerades.
fn leads_in(chain: &str) -> bool {
    chain != MASQUERADES
}

/// The base chain that masquerades translated packets.
const MASQUERADES: &str = "nat-postrouting";

/// Returns the base chains that translate and masquerade.
pub(super) fn base_chains() -> [ChainBody; 3] {
    let nat = |name, hook, priority, chain| {
        base(name, ChainType::Nat, hook, priority, vec![rule(vec![jump(chain)])])
    };
    [
        nat(PREROUTING_CHAIN, Hook::PREROUTING, NAT_PRIORITY, SERVICES),
        nat("nat-output", Hook::OUTPUT, NAT_PRIORITY, SERVICES),
        nat(MASQUERADES, Hook::POSTROUTING, SOURCE_PRIORITY, MASQUERADING),
    ]
}

/// Returns the rule that lets packets of this node to itself pass that a Service has translated. Only these pass prerouting
/// after their translation: for all others, connection tracking tells of one that is to come.
pub(super) fn translated() -> RuleBody {
    commented([&from_loopback()[..], &status_dnat(), &[accept()]].concat(), "to endpoints")
}

/// Returns the chain that masquerades. The base chains jump to it.
pub(super) fn own_chain(settings: &Settings) -> ChainBody {
    ChainBody::regular(MASQUERADING, masquerading_rules(settings))
}

fn masquerading_rules(settings: &Settings) -> Vec<RuleBody> {
    let family = settings.family;
    let words = address_words(family);
    let hairpin = [
        status_dnat(),
        vec![address(family, Side::Source, 0), address(family, Side::Destination, words)],
        protocol_and_port(words * 2).to_vec(),
        vec![member(Set::HairpinConnections, 0), masquerade()],
    ];
    vec![rule([&take_mark(settings)[..], &[masquerade()]].concat()), commented(hairpin.concat(), "hairpin")]
}

/// Returns the rules of a class. They mark packets to be masqueraded.
pub(super) fn class_rules(settings: &Settings, class: Class) -> Vec<RuleBody> {
    let to = |balance: Balance| rule(vec![goto(balance.to_string())]);
    let mark = mark_for_masquerade(settings);
    match class {
        Class::Internal(balance) => internal_masquerade(settings).into_iter().chain([to(balance)]).collect(),
        Class::External(balance) => vec![commented(mark.to_vec(), "masquerade"), to(balance)],
        Class::ExternalLocal(cluster, local) => {
            external_local_rules(settings, [&from_node()[..], &mark].concat(), cluster, local)
        }
    }
}

/// `meta iif 0 fib saddr type local`: packets of this node in the hook output, where packets have no input interface.
///
/// Packets of this node are translated there, so none is left for prerouting. A packet from an interface is not of this node, even
/// with such a source, and its source is not looked up. In output, the source tells this node's packets from those that another
/// program sends for other hosts.
fn from_node() -> Vec<Expr> {
    [no_input_interface(), address_is_local(Side::Source)].concat()
}

/// Returns the rules that choose one of N endpoints and translate the destination.
pub(super) fn balance_rules(settings: &Settings, balance: Balance) -> Vec<RuleBody> {
    let family = settings.family;
    match balance.affinity {
        None if settings.counters => counted_balance_rules(family, balance),
        None => plain_balance_rules(family, balance),
        Some(seconds) => affinity_rules(settings, balance, seconds),
    }
}

fn internal_masquerade(settings: &Settings) -> Option<RuleBody> {
    let mark = mark_for_masquerade(settings).to_vec();
    if settings.masquerade_all {
        return Some(commented(mark, "masquerade all clusterIP traffic"));
    }
    let from_outside = local_pod(settings, false)?;
    Some(commented([from_outside, mark].concat(), "masquerade clusterIP traffic from outside cluster"))
}

/// Returns the index of the first endpoint of the set.
const fn offset(balance: Balance) -> u32 {
    if balance.local { LOCAL_OFFSET } else { 0 }
}

/// `dnat to meta priority & ID . numgen random mod N map @endpoints`
///
/// The second rule serves a packet that drew the last index just when that index was removed. It takes the first
/// index.
fn plain_balance_rules(family: Family, balance: Balance) -> Vec<RuleBody> {
    let choose = |modulus: u16| {
        let mut expressions = priority(ID_MASK, 0).to_vec();
        expressions.extend([random(modulus, offset(balance), 1), map(Set::Endpoints, 0, 0)]);
        expressions.push(dnat(family, 0));
        rule(expressions)
    };
    let mut rules = vec![choose(balance.backends)];
    if balance.backends > 1 {
        rules.push(choose(1));
    }
    rules.push(rule(reset_priority(0).to_vec()));
    rules
}

/// `meta priority set meta priority & ID . numgen random mod N map @affinity-choices`: draws a slot.
fn choose_slot(balance: Balance, modulus: u16) -> RuleBody {
    let mut expressions = priority(ID_MASK, 0).to_vec();
    let draw = random(modulus, offset(balance), 1);
    expressions.extend([draw, map(Set::AffinityChoices, 0, 0), set_meta(MetaKey::PRIORITY, 0)]);
    rule(expressions)
}

/// `dnat to meta priority map @affinity-endpoints`: translates to the endpoint of the slot.
fn follow_slot(family: Family, balance: Balance) -> RuleBody {
    let slots = if balance.local { Set::AffinityLocalEndpoints } else { Set::AffinityEndpoints };
    rule(vec![meta(MetaKey::PRIORITY, 0), map(slots, 0, 0), dnat(family, 0)])
}

/// `meta priority & ID @service-counters`. A rule of its own: without the element, packets go on to the next rule.
fn count() -> RuleBody {
    rule([&priority(ID_MASK, 0)[..], &[member(Set::ServiceCounters, 0)]].concat())
}

/// Draws a slot, counts, and translates to the slot's endpoint, whose element counts, too. The second draw serves a packet
/// whose slot was removed just then, also if the only endpoint was replaced.
fn counted_balance_rules(family: Family, balance: Balance) -> Vec<RuleBody> {
    let follow = || follow_slot(family, balance);
    vec![
        choose_slot(balance, balance.backends),
        count(),
        follow(),
        choose_slot(balance, 1),
        follow(),
        rule(reset_priority(0).to_vec()),
    ]
}

/// Draws a slot, then creates or refreshes the client's binding, reads it, and translates to its endpoint. If that
/// endpoint is gone, the binding is deleted and the rules do the same once more.
fn affinity_rules(settings: &Settings, balance: Balance, seconds: u32) -> Vec<RuleBody> {
    let family = settings.family;
    let id_and_client = || [&priority(ID_MASK, 0)[..], &[address(family, Side::Source, 1)]].concat();
    let after_client = 1 + address_words(family);
    let choose = |modulus: u16| choose_slot(balance, modulus);
    let remember = || {
        let value = [meta(MetaKey::PRIORITY, after_client), update(Set::Affinity, 0, after_client, seconds)];
        rule([id_and_client(), value.to_vec()].concat())
    };
    let recall = || {
        let value = [map(Set::Affinity, 0, 0), set_meta(MetaKey::PRIORITY, 0)];
        rule([id_and_client(), value.to_vec()].concat())
    };
    let follow = || follow_slot(family, balance);
    let forget = rule([id_and_client(), vec![delete(Set::Affinity, 0, 0)]].concat());
    let mut rules = vec![choose(balance.backends), remember(), recall()];
    rules.extend(settings.counters.then(count));
    rules.extend([
        follow(),
        forget,
        choose(1),
        choose(balance.backends),
        remember(),
        recall(),
        follow(),
        rule(reset_priority(0).to_vec()),
    ]);
    rules
}
