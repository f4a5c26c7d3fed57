//! Requests for lists of objects and for the generation. The answers are read with [`NftablesEvent::decode`](super::NftablesEvent).

use super::{chain, kind, operation, rule, set};
use crate::Request;
use crate::netlink::{Message, NLM_F_DUMP};
use crate::nfnetlink::{Family, Header};

/// Requests all tables of a family.
pub fn tables(family: Family) -> Request {
    dump(operation::GET_TABLE, family, |_| {})
}

/// Requests all chains of a family. The kernel cannot filter them by table.
pub fn chains(family: Family) -> Request {
    dump(operation::GET_CHAIN, family, |_| {})
}

/// Requests a chain by name (not a list: send it with the socket's `query`).
pub fn chain(family: Family, table: &str, name: &str) -> Request {
    query(operation::GET_CHAIN, family, |message| chain::encode_name(message, table, name))
}

/// Requests all rules of a table, or of one of its chains.
pub fn rules(family: Family, table: &str, chain: Option<&str>) -> Request {
    dump(operation::GET_RULE, family, |message| rule::encode_name(message, table, chain, None))
}

/// Requests all sets and maps of a table, without their elements.
pub fn sets(family: Family, table: &str) -> Request {
    dump(operation::GET_SET, family, |message| set::encode_name(message, table, None))
}

/// Requests all elements of a set or map.
pub fn elements(family: Family, table: &str, set: &str) -> Request {
    dump(operation::GET_ELEMENT, family, |message| set::encode_name(message, table, Some(set)))
}

/// Requests the current generation (not a list: send it with the socket's `query`).
pub fn generation() -> Request {
    query(operation::GET_GENERATION, Family::UNSPECIFIED, |_| {})
}

fn dump(operation: u8, family: Family, content: impl FnOnce(&mut Message<'_>)) -> Request {
    Request::new(kind(operation), NLM_F_DUMP, &Header::of(family), content)
}

fn query(operation: u8, family: Family, content: impl FnOnce(&mut Message<'_>)) -> Request {
    Request::new(kind(operation), 0, &Header::of(family), content)
}
