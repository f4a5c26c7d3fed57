//! The chains and rules of nftables, over netlink. The rules of iptables are among them where it is a front end of
//! nftables.

use std::collections::hash_map::Entry;

use portolan_sock::{Protocol, Socket, SocketError, retry_on_change};
use portolan_wire::nftables::expr::Expr;
use portolan_wire::nftables::{Chain, Element, Family, NftablesEvent, Rule, RuleName, request};
use portolan_wire::route::{self, RouteEvent};

use crate::rules::native::{self, Interfaces, Sets};

/// `NFT_TABLE_F_DORMANT`: the kernel does not call the chains of the table.
const DORMANT: u32 = 1;
/// Tables of proxies. They have as many rules as the cluster has Services, and these rules are not judged.
const OF_PROXIES: [&str; 4] = ["portolan", "portolan-userspace", "portolan-relay", "kube-proxy"];
/// Chains of single Services and endpoints in the iptables mode.
const OF_SERVICES: [&str; 6] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"];
/// The beginning of the names of anonymous sets and maps (`__set%d`, `__map%d`).
const ANONYMOUS: &str = "__";
/// Largest number of elements of a set that is read.
const ELEMENTS: usize = 64;
/// The families that see IP packets.
const FAMILIES: [Family; 4] = [Family::IPV4, Family::IPV6, Family::INET, Family::NETDEV];

/// Returns the chains of all tables in the network namespace of this thread. Tables of proxies have no rules.
pub(super) fn read() -> Result<Vec<crate::rules::Chain>, SocketError> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let (chains, rules, sets) = retry_on_change(|| list(&mut socket))?;
    let mut links = Socket::open(Protocol::Route)?;
    let interfaces = retry_on_change(|| interfaces(&mut links))?;
    Ok(native::chains(chains, rules, &sets, &interfaces))
}

/// Returns the names of the interfaces. Rules may test for their indexes.
fn interfaces(socket: &mut Socket) -> Result<Interfaces, SocketError> {
    let mut interfaces = Interfaces::new();
    socket.dump(&mut route::links(), |frame| {
        if let RouteEvent::NewLink(link) = RouteEvent::decode(frame)? {
            interfaces.insert(link.index, link.name);
        }
        Ok(())
    })?;
    Ok(interfaces)
}

fn list(socket: &mut Socket) -> Result<(Vec<Chain>, Vec<Rule>, Sets), SocketError> {
    let (mut chains, mut rules, mut sets) = (Vec::new(), Vec::new(), Sets::new());
    for family in FAMILIES {
        let tables = tables(socket, family)?;
        socket.dump(&mut request::chains(family), |frame| {
            if let NftablesEvent::NewChain(chain) = NftablesEvent::decode(frame)?
                && chain.family == family
                && tables.contains(&chain.table)
                && !is_of_a_service(&chain.name)
            {
                chains.push(chain);
            }
            Ok(())
        })?;
        for table in tables.iter().filter(|table| !OF_PROXIES.contains(&table.as_str())) {
            let of_table = rules_of(socket, family, table)?;
            for set in of_table.iter().flat_map(sets_of) {
                let key = (family.0, table.clone(), set.to_owned());
                if let Entry::Vacant(vacant) = sets.entry(key)
                    && let Some(elements) = elements(socket, family, table, set)?
                {
                    vacant.insert(elements);
                }
            }
            rules.extend(of_table);
        }
    }
    Ok((chains, rules, sets))
}

/// Returns the names of the anonymous sets and maps of a rule. They never change while the rule exists.
fn sets_of(rule: &Rule) -> impl Iterator<Item = &str> {
    rule.expressions.iter().filter_map(|expression| match expression {
        Expr::Lookup(lookup) if lookup.set.starts_with(ANONYMOUS) => Some(lookup.set.as_str()),
        _ => None,
    })
}

/// Returns the elements of a set; `None` if there are too many.
fn elements(
    socket: &mut Socket,
    family: Family,
    table: &str,
    set: &str,
) -> Result<Option<Vec<Element>>, SocketError> {
    let mut elements = Vec::new();
    socket.dump(&mut request::elements(family, table, set), |frame| {
        if let NftablesEvent::NewElements(list) = NftablesEvent::decode(frame)? {
            for element in list.elements() {
                let element = element?;
                if elements.len() <= ELEMENTS {
                    elements.push(element.to_owned());
                }
            }
        }
        Ok(())
    })?;
    Ok((elements.len() <= ELEMENTS).then_some(elements))
}

/// Returns the tables of a family whose chains are called.
fn tables(socket: &mut Socket, family: Family) -> Result<Vec<String>, SocketError> {
    let mut tables = Vec::new();
    socket.dump(&mut request::tables(family), |frame| {
        match NftablesEvent::decode(frame)? {
            NftablesEvent::NewTable(table) if table.family == family && table.flags & DORMANT == 0 => {
                tables.push(table.name);
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(tables)
}

fn rules_of(socket: &mut Socket, family: Family, table: &str) -> Result<Vec<Rule>, SocketError> {
    let mut rules = Vec::new();
    socket.dump(&mut request::rules(family, table, None), |frame| {
        let rule = match NftablesEvent::decode(frame) {
            Ok(NftablesEvent::NewRule(rule)) => rule,
            Ok(_) => return Ok(()),
            // A rule with an expression that is newer than this program. Its effect is unknown, its place is not.
            Err(_) => unreadable(RuleName::decode(frame)?),
        };
        if rule.table == table && rule.family == family && !is_of_a_service(&rule.chain) {
            rules.push(rule);
        }
        Ok(())
    })?;
    Ok(rules)
}

fn unreadable(RuleName { family, table, chain, handle }: RuleName) -> Rule {
    let unknown = Expr::Other { name: "queue".to_owned(), bytes: Vec::new() };
    Rule { handle, ..Rule::new(family, table, chain, vec![unknown]) }
}

fn is_of_a_service(chain: &str) -> bool {
    OF_SERVICES.iter().any(|start| chain.starts_with(start))
}
