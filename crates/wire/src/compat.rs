//! `nft_compat`: the extensions of iptables that the kernel has.

use crate::Request;
use crate::netlink::NLM_F_ACK;
use crate::nfnetlink::{Family, Header, SUBSYSTEM_COMPAT, message_type};

const NFNL_MSG_COMPAT_GET: u8 = 0;
const NFTA_COMPAT_NAME: u16 = 1;
const NFTA_COMPAT_REV: u16 = 2;
const NFTA_COMPAT_TYPE: u16 = 3;
/// The type of a match; 1 is a target.
const MATCH: u32 = 0;

/// Asks for a revision of a match of iptables for IPv4 (not a list: send it with the socket's `query`). The kernel loads the
/// match's module and the modules that this one needs. ENOENT means that the kernel does not have the match, EPROTONOSUPPORT
/// that it has other revisions.
pub fn find_match(name: &str, revision: u32) -> Request {
    let kind = message_type(SUBSYSTEM_COMPAT, NFNL_MSG_COMPAT_GET);
    Request::new(kind, NLM_F_ACK, &Header::of(Family::IPV4), |message| {
        message.attr_str(NFTA_COMPAT_NAME, name);
        message.attr_u32_be(NFTA_COMPAT_REV, revision);
        message.attr_u32_be(NFTA_COMPAT_TYPE, MATCH);
    })
}
