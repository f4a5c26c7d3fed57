//! The part of policy routing that delivers marked packets to this host: one rule and one route.

use crate::netlink::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use crate::{DecodeError, Frame, Request};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;

const RULE: &str = "rtnetlink rule";
const ROUTE: &str = "rtnetlink route";
/// Length of `struct fib_rule_hdr`, and of `struct rtmsg`.
const HEADER: usize = 12;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_PROTOCOL: u16 = 21;
/// `RT_TABLE_DEFAULT`, `RT_TABLE_MAIN` and `RT_TABLE_LOCAL`.
const TABLES_OF_EVERY_HOST: [u8; 3] = [253, 254, 255];
/// `RTPROT_KERNEL`. systemd-networkd removes rules of other programs when it starts, but none with this protocol
/// (`ManageForeignRoutingPolicyRules`, `networkd.conf(5)`).
pub const OF_KERNEL: u8 = 2;
/// `FR_ACT_TO_TBL`: the rule selects a table.
const LOOK_UP_TABLE: u8 = 1;

const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
/// `RT_TABLE_COMPAT`: the table's number is in the attribute.
const TABLE_IN_ATTRIBUTE: u8 = 252;
/// `RTPROT_STATIC`: set by an administrator, so routing daemons do not change it.
const MADE_BY_HAND: u8 = 4;
const SCOPE_HOST: u8 = 254;
/// `RTN_LOCAL`: packets are delivered to this host.
pub(super) const LOCAL: u8 = 2;
/// Index of the loopback interface in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// A rule that routes packets with a mark by a routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkRule {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// Position among the rules. The lowest is evaluated first.
    pub priority: u32,
    /// The mark.
    pub mark: u32,
    /// Mask of the bits of the mark to compare.
    pub mask: u32,
    /// The routing table.
    pub table: u32,
    /// Who has added the rule (`FRA_PROTOCOL`); 0 if it is not said.
    pub protocol: u8,
}

/// Adds a rule. EEXIST means that it exists.
pub fn add_rule(rule: &MarkRule) -> Request {
    rule_request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, rule)
}

/// Removes a rule. ENOENT means that it does not exist.
pub fn delete_rule(rule: &MarkRule) -> Request {
    rule_request(RTM_DELRULE, NLM_F_ACK, rule)
}

/// Requests all rules of a family, to be read by [`MarkRule::decode`].
pub fn rules(family: u8) -> Request {
    let mut header = [0; HEADER];
    let [first, ..] = &mut header;
    *first = family;
    Request::new(RTM_GETRULE, NLM_F_DUMP, &header, |_| {})
}

/// Adds a route to a table that delivers all packets to this host. EEXIST means that it exists.
pub fn add_local_route(family: u8, table: u32) -> Request {
    local_route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK, family, table)
}

/// Removes that route. ESRCH means that it does not exist.
pub fn delete_local_route(family: u8, table: u32) -> Request {
    local_route(RTM_DELROUTE, NLM_F_ACK, family, table)
}

/// Requests the routes of one table, to be read by [`is_local_route`]. The kernel answers ENOENT if it has no such
/// table. The socket must have strict checks, or the kernel lists the routes of all tables.
pub fn routes(family: u8, table: u32) -> Request {
    let mut header = [0; HEADER];
    let [first, ..] = &mut header;
    *first = family;
    Request::new(RTM_GETROUTE, NLM_F_DUMP, &header, |message| {
        message.attr_u32_ne(RTA_TABLE, table);
    })
}

/// Returns true for a route that [`add_local_route`] adds: one of this family and table, to this host, for every
/// destination.
pub fn is_local_route(frame: &Frame<'_>, family: u8, table: u32) -> Result<bool, DecodeError> {
    if frame.header.kind != RTM_NEWROUTE {
        return Ok(false);
    }
    let map = frame.attributes(ROUTE, HEADER)?.by_kind::<31>()?;
    let have = frame.payload.len();
    let (&[found, destination, _, _, of_header, protocol, _, kind], _) = frame
        .payload
        .split_first_chunk()
        .ok_or(DecodeError::Truncated { object: ROUTE, offset: 0, needed: HEADER, have })?;
    let of = map.get(RTA_TABLE).map(|attribute| attribute.u32_ne()).transpose()?;
    let of = of.unwrap_or(u32::from(of_header));
    Ok((found, destination, protocol, kind, of) == (family, 0, MADE_BY_HAND, LOCAL, table))
}

/// Returns the family and the table of a rule whose deletion is notified, and `None` for other messages.
pub fn deleted_rule(frame: &Frame<'_>) -> Result<Option<(u8, u32)>, DecodeError> {
    if frame.header.kind != RTM_DELRULE {
        return Ok(None);
    }
    let map = frame.attributes(RULE, HEADER)?.by_kind::<22>()?;
    let have = frame.payload.len();
    let (&[family, _, _, _, of_header], _) = frame
        .payload
        .split_first_chunk()
        .ok_or(DecodeError::Truncated { object: RULE, offset: 0, needed: HEADER, have })?;
    let table = map.get(FRA_TABLE).map(|attribute| attribute.u32_ne()).transpose()?;
    Ok(Some((family, table.unwrap_or(u32::from(of_header)))))
}

impl MarkRule {
    /// Reads a rule. Returns `None` if it has no mark, matches addresses, or does not select a table.
    pub fn decode(frame: &Frame<'_>) -> Result<Option<Self>, DecodeError> {
        if frame.header.kind != RTM_NEWRULE {
            return Ok(None);
        }
        let map = frame.attributes(RULE, HEADER)?.by_kind::<22>()?;
        let have = frame.payload.len();
        let (&[family, destination, source, _, table, _, _, action], _) =
            frame.payload.split_first_chunk().ok_or(DecodeError::Truncated {
                object: RULE,
                offset: 0,
                needed: HEADER,
                have,
            })?;
        let number = |kind| map.get(kind).map(|attribute| attribute.u32_ne()).transpose();
        let (Some(mark), true) =
            (number(FRA_FWMARK)?, (destination, source, action) == (0, 0, LOOK_UP_TABLE))
        else {
            return Ok(None);
        };
        Ok(Some(Self {
            family,
            priority: number(FRA_PRIORITY)?.unwrap_or_default(),
            mark,
            mask: number(FRA_FWMASK)?.unwrap_or(u32::MAX),
            table: number(FRA_TABLE)?.unwrap_or(u32::from(table)),
            protocol: map.get(FRA_PROTOCOL).map(|attribute| attribute.u8()).transpose()?.unwrap_or_default(),
        }))
    }
}

/// Returns true for a rule that the kernel makes itself: it asks the table `local`, `main` or `default` for the route of
/// any packet.
pub fn is_of_every_host(frame: &Frame<'_>) -> Result<bool, DecodeError> {
    if frame.header.kind != RTM_NEWRULE {
        return Ok(false);
    }
    let map = frame.attributes(RULE, HEADER)?.by_kind::<22>()?;
    let have = frame.payload.len();
    let (&[_, destination, source, service, table, _, _, action], _) = frame
        .payload
        .split_first_chunk()
        .ok_or(DecodeError::Truncated { object: RULE, offset: 0, needed: HEADER, have })?;
    let has_condition =
        [FRA_IIFNAME, FRA_OIFNAME, FRA_FWMARK].into_iter().any(|kind| map.get(kind).is_some());
    let is_plain = (destination, source, service, action) == (0, 0, 0, LOOK_UP_TABLE) && !has_condition;
    Ok(is_plain && TABLES_OF_EVERY_HOST.contains(&table))
}

fn rule_request(kind: u16, flags: u16, rule: &MarkRule) -> Request {
    let header = [rule.family, 0, 0, 0, 0, 0, 0, LOOK_UP_TABLE, 0, 0, 0, 0];
    Request::new(kind, flags, &header, |message| {
        message.attr_u32_ne(FRA_PRIORITY, rule.priority);
        message.attr_u32_ne(FRA_FWMARK, rule.mark);
        message.attr_u32_ne(FRA_FWMASK, rule.mask);
        message.attr_u32_ne(FRA_TABLE, rule.table);
        message.attr_u8(FRA_PROTOCOL, rule.protocol);
    })
}

fn local_route(kind: u16, flags: u16, family: u8, table: u32) -> Request {
    let header = [family, 0, 0, 0, TABLE_IN_ATTRIBUTE, MADE_BY_HAND, SCOPE_HOST, LOCAL, 0, 0, 0, 0];
    Request::new(kind, flags, &header, |message| {
        message.attr_u32_ne(RTA_TABLE, table);
        message.attr_u32_ne(RTA_OIF, LOOPBACK_INDEX);
    })
}
