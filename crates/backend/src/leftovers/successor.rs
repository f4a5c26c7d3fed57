//! Whether kube-proxy does the work where tables of ours still do: without it they are all that leads to Services.

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{Event, request};

use super::Error;
use super::legacy;
use super::tables::{KUBE_PROXY, consistently, wire_family};
use crate::nft;

/// The chain that kube-proxy fills in its modes iptables and IPVS, by the last thing that it does in a family, whatever
/// Services there are. Before that it is empty. No kubelet writes to it.
const FORWARD: (&str, &str) = ("filter", "KUBE-FORWARD");
/// Tables of ours that lead to Services.
const OWN: [&str; 3] = [nft::TABLE, nft::CAPTURE_TABLE, nft::CONNECTIONS_TABLE];

/// The families in which there are tables of ours in the network namespace of this thread, and neither the table of
/// kube-proxy's nftables mode nor the rules of its other modes.
pub fn unserved() -> Result<Vec<Family>, Error> {
    let mut families = Vec::new();
    for family in Family::BOTH {
        let failed = |source| Error::Nftables { what: "rules", family, source };
        if is_unserved_by_nftables(family).map_err(failed)? && !legacy::has_rules(family, FORWARD)? {
            families.push(family);
        }
    }
    Ok(families)
}

/// Whether a table of ours is there, and what nftables knows has nothing of kube-proxy's.
fn is_unserved_by_nftables(family: Family) -> Result<bool, crate::Error> {
    let mut socket = Socket::open(Protocol::Netfilter).map_err(crate::Error::from)?;
    let wire = wire_family(family);
    consistently(|| {
        let (mut has_own, mut has_kube_proxys) = (false, false);
        socket.dump(&mut request::tables(wire), |frame| {
            if let Event::NewTable(table) = Event::decode(frame)? {
                has_own |= OWN.contains(&&*table.name);
                has_kube_proxys |= table.name == KUBE_PROXY;
            }
            Ok(())
        })?;
        if !has_own || has_kube_proxys {
            return Ok(false);
        }
        has_no_rules(&mut socket, family)
    })
}

/// Whether the chain is empty, or not there.
fn has_no_rules(socket: &mut Socket, family: Family) -> Result<bool, SocketError> {
    let ((table, chain), mut found) = (FORWARD, false);
    socket.dump(&mut request::rules(wire_family(family), table, None), |frame| {
        if let Event::NewRule(rule) = Event::decode(frame)? {
            found |= (&*rule.table, &*rule.chain) == (table, chain);
        }
        Ok(())
    })?;
    Ok(!found)
}
