//! Chains of iptables in the nftables ruleset, over netlink: where their rules lead.

use portolan_engine::Error;
use portolan_model::Family;
use portolan_sock::{ATTEMPTS, Socket, SocketError};
use portolan_wire::nftables::{
    Data, Expr, Family as WireFamily, NftablesEvent, Rule, Transaction, Verdict, request,
};

/// Sequence numbers for one transaction.
const SEQUENCE_ROOM: u32 = 1 << 16;

/// A rule that leads from one chain to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump<R> {
    /// The chain that the rule is in.
    pub from: String,
    /// The chain that the rule leads to.
    pub to: String,
    /// Identifies the rule.
    pub rule: R,
}

/// Returns where a rule leads; `None` if it leads to no chain.
pub fn jump(rule: Rule) -> Option<Jump<u64>> {
    let target = rule.expressions.into_iter().find_map(|expression| match expression {
        Expr::Immediate(immediate) => match immediate.data {
            Data::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) => Some(to),
            _ => None,
        },
        _ => None,
    });
    Some(Jump { from: rule.chain, to: target?, rule: rule.handle? })
}

/// Commits one transaction.
pub fn commit(socket: &mut Socket, fill: impl FnOnce(&mut Transaction)) -> Result<(), Error> {
    let mut transaction = Transaction::begin(socket.next_sequence(SEQUENCE_ROOM), None);
    fill(&mut transaction);
    let batch = transaction.finish().map_err(SocketError::from)?;
    Ok(socket.commit(&batch)?)
}

/// Reads again if the ruleset changed in the meantime.
pub fn retry_on_change<T>(read: impl FnMut() -> Result<T, SocketError>) -> Result<T, Error> {
    portolan_sock::retry_on_change(read).map_err(|error| match error {
        SocketError::Interrupted | SocketError::Overrun => {
            Error::Contended { mode: "nftables", attempts: ATTEMPTS, is_unchanged: false }
        }
        error => error.into(),
    })
}

/// Returns the family as `nf_tables` has it.
pub fn wire_family(family: Family) -> WireFamily {
    match family {
        Family::Ipv4 => WireFamily::IPV4,
        Family::Ipv6 => WireFamily::IPV6,
    }
}

/// Lists the targets of a chain's rules, with the rules' handles.
pub(super) fn jumps(
    socket: &mut Socket,
    family: WireFamily,
    table: &str,
    chain: &str,
) -> Result<Vec<(String, u64)>, SocketError> {
    let mut found = Vec::new();
    socket.dump(&mut request::rules(family, table, Some(chain)), |frame| {
        match NftablesEvent::decode(frame)? {
            NftablesEvent::NewRule(rule)
                if rule.table == table && rule.chain == chain && rule.family == family =>
            {
                found.extend(jump(rule).map(|jump| (jump.to, jump.rule)));
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}
