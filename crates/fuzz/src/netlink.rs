//! Every message of each subsystem of netlink.
//!
//! Choices edit what a kernel lists, where Portolan writes such objects. Other inputs are messages.

use std::borrow::Cow;

use portolan_wire::conntrack::ConntrackEvent;
use portolan_wire::generic::GenericEvent;
use portolan_wire::ipset::IpsetEvent;
use portolan_wire::nfacct::NfacctEvent;
use portolan_wire::nftables::NftablesEvent;
use portolan_wire::route::RouteEvent;
use portolan_wire::route::path::Path;
use portolan_wire::route::policy::{MarkRule, deleted_rule, is_local_route};
use portolan_wire::{Frame, Frames, ipvs};

use crate::observed::{NFNETLINK_HEADER, header_of, ipvs_listing, nftables_listing};
use crate::script::Script;
use crate::{edits, worlds};

/// Returns the messages of an input for ipset, IPVS and rtnetlink.
fn of_ipvs(bytes: &[u8]) -> Cow<'_, [u8]> {
    let Some(mut script) = Script::of(bytes) else { return bytes.into() };
    let (messages, _) = ipvs_listing(&worlds::table(&mut script));
    edits::frames(&messages, header_of, &mut script).into()
}

/// Returns the messages of an input for `nf_tables`.
fn of_nftables(bytes: &[u8]) -> Cow<'_, [u8]> {
    let Some(mut script) = Script::of(bytes) else { return bytes.into() };
    let messages = match script.below(2) {
        0 => portolan_nftables::fuzzing::OTHER.to_vec(),
        _ => nftables_listing(&mut script).2,
    };
    edits::frames(&messages, |_| NFNETLINK_HEADER, &mut script).into()
}

fn each(bytes: &[u8], decode: impl FnMut(Frame<'_>)) {
    Frames::new(bytes).map_while(Result::ok).for_each(decode);
}

/// Acknowledgements with their extended attributes.
pub(crate) fn acknowledgement(bytes: &[u8]) {
    each(bytes, |frame| {
        let _ = frame.acknowledgement();
    });
}

/// Messages of conntrack.
pub(crate) fn conntrack(bytes: &[u8]) {
    each(bytes, |frame| {
        let _ = ConntrackEvent::decode(&frame);
    });
}

/// Messages of generic netlink: families, and those of IPVS.
pub(crate) fn generic(bytes: &[u8]) {
    each(&of_ipvs(bytes), |frame| {
        let _ = GenericEvent::decode(&frame);
        let _ = ipvs::IpvsEvent::decode(frame.header.kind, &frame);
    });
}

/// Messages of ipset.
pub(crate) fn ipset(bytes: &[u8]) {
    each(&of_ipvs(bytes), |frame| {
        let _ = IpsetEvent::decode(&frame);
    });
}

/// Messages of nfacct.
pub(crate) fn nfacct(bytes: &[u8]) {
    each(bytes, |frame| {
        let _ = NfacctEvent::decode(&frame);
    });
}

/// Messages of `nf_tables`, including lists of elements.
pub(crate) fn nftables(bytes: &[u8]) {
    each(&of_nftables(bytes), |frame| {
        if let Ok(NftablesEvent::NewElements(list) | NftablesEvent::DeleteElements(list)) =
            NftablesEvent::decode(&frame)
        {
            list.elements().for_each(drop);
        }
    });
}

/// Messages of rtnetlink.
pub(crate) fn route(bytes: &[u8]) {
    each(&of_ipvs(bytes), |frame| {
        let _ = RouteEvent::decode(&frame);
        let _ = MarkRule::decode(&frame);
        let _ = is_local_route(&frame, 2, 28_783);
        let _ = deleted_rule(&frame);
        let _ = Path::decode(&frame);
    });
}
