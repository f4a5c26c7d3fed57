//! What registers hold while a rule is read, and the conditions that follow from bits of it.

use portolan_wire::nftables::expr::{CtKey, Fib, FibFlags, FibResult, MetaKey};

use super::bytes::{number, prefix};
use crate::{ConntrackStates, Test};

/// `IPS_DST_NAT` (`nf_conntrack_common.h`).
pub(super) const STATUS_DNAT: u32 = 1 << 5;
/// `IPS_SRC_NAT`.
const STATUS_SNAT: u32 = 1 << 4;
/// `RTN_LOCAL`: the address is one of this node.
pub(super) const LOCAL: u32 = 2;
/// `NFTA_FIB_F_SADDR` and `NFTA_FIB_F_DADDR`, alone.
const FIB_OF_SOURCE: FibFlags = FibFlags(1);
const FIB_OF_DESTINATION: FibFlags = FibFlags(2);
/// `NF_CT_STATE_UNTRACKED_BIT`. The other bits of a state are those of [`ConntrackStates`].
const STATE_UNTRACKED: u32 = 1 << 6;

/// What a register holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Input,
    Output,
    InputIndex,
    OutputIndex,
    Family,
    /// The protocol of the link layer's payload (`ETH_P_IP`, `ETH_P_IPV6`).
    EtherType,
    Protocol,
    Source {
        prefix: u8,
    },
    Destination {
        prefix: u8,
    },
    Port,
    /// Some flags of TCP.
    TcpFlags(u8),
    /// The type of the source's or the destination's address.
    SourceType,
    DestinationType,
    /// Some bits of the state.
    State(u32),
    /// Some bits of the status.
    Status(u32),
    Other(&'static str),
}

impl Value {
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Input => "iifname",
            Self::Output => "oifname",
            Self::Family => "family",
            Self::EtherType => "protocol of the link",
            Self::Protocol => "protocol",
            Self::Source { .. } => "saddr",
            Self::Destination { .. } => "daddr",
            Self::Port => "dport",
            Self::InputIndex => "iif",
            Self::OutputIndex => "oif",
            Self::TcpFlags(_) => "tcp flags",
            Self::SourceType => "fib saddr type",
            Self::DestinationType => "fib daddr type",
            Self::State(_) => "ct state",
            Self::Status(_) => "ct status",
            Self::Other(name) => name,
        }
    }
}

pub(super) fn meta(key: MetaKey) -> Value {
    match key {
        MetaKey::IIFNAME => Value::Input,
        MetaKey::OIFNAME => Value::Output,
        MetaKey::NFPROTO => Value::Family,
        MetaKey::PROTOCOL => Value::EtherType,
        MetaKey::L4PROTO => Value::Protocol,
        MetaKey::MARK => Value::Other("mark"),
        MetaKey::IIF => Value::InputIndex,
        MetaKey::OIF => Value::OutputIndex,
        _ => Value::Other("meta"),
    }
}

/// Reads a lookup of the type of an address. It counts if the interface does not matter.
pub(super) fn fib(fib: &Fib) -> Value {
    match (fib.result, fib.flags) {
        (FibResult::ADDRTYPE, FIB_OF_SOURCE) => Value::SourceType,
        (FibResult::ADDRTYPE, FIB_OF_DESTINATION) => Value::DestinationType,
        _ => Value::Other("fib"),
    }
}

pub(super) fn ct(key: CtKey) -> Value {
    match key {
        CtKey::STATE => Value::State(u32::MAX),
        CtKey::STATUS => Value::Status(u32::MAX),
        CtKey::MARK => Value::Other("ct mark"),
        _ => Value::Other("ct"),
    }
}

pub(super) fn masked(value: Value, mask: &[u8]) -> Value {
    match value {
        Value::Source { .. } => prefix(mask).map_or(Value::Other("saddr"), |prefix| Value::Source { prefix }),
        Value::Destination { .. } => {
            prefix(mask).map_or(Value::Other("daddr"), |prefix| Value::Destination { prefix })
        }
        Value::TcpFlags(_) => mask.first().map_or(Value::Other("tcp flags"), |mask| Value::TcpFlags(*mask)),
        Value::State(_) => number(mask).map_or(Value::Other("ct state"), Value::State),
        Value::Status(_) => number(mask).map_or(Value::Other("ct status"), Value::Status),
        value => Value::Other(value.name()),
    }
}

/// Returns the condition that some bits equal `data`. Usually it is that they are not 0. `test` makes the condition that
/// any of some bits is set.
pub(super) fn bits(mask: u32, data: &[u8], test: fn(u32) -> Option<Test>) -> Option<(Test, bool)> {
    match number(data)? {
        0 => Some((test(mask)?, true)),
        // Several bits at once are not the same as any of them.
        value if value & mask == value && value.is_power_of_two() => {
            let exact = mask == u32::MAX || mask == value;
            exact.then_some((test(value)?, false))
        }
        _ => None,
    }
}

pub(super) fn state(mask: u32) -> Option<Test> {
    let low = u16::try_from(mask & 0xf).ok()?;
    let untracked = if mask & STATE_UNTRACKED == 0 { ConntrackStates(0) } else { ConntrackStates::UNTRACKED };
    Some(Test::State(ConntrackStates(low).with(untracked)))
}

/// Only a test for translation is a state; other bits are unknown.
pub(super) fn status(mask: u32) -> Option<Test> {
    let translated = [(STATUS_DNAT, ConntrackStates::DNAT), (STATUS_SNAT, ConntrackStates::SNAT)];
    if mask & !(STATUS_DNAT | STATUS_SNAT) != 0 {
        return None;
    }
    let states = translated.into_iter().filter(|(bit, _)| mask & bit != 0);
    Some(Test::State(states.fold(ConntrackStates(0), |all, (_, state)| all.with(state))))
}
