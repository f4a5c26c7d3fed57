//! Why a Service port has no rules, or not all.

use portolan_model::{Forwarding, Protocol, ServicePortName};

use super::super::IptablesOptions;

/// Longest name, in bytes. iptables accepts comments of up to 255 bytes, and the longest of ours adds some 50 to the
/// name.
const NAME_MAX: usize = 200;

/// What a Service port lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// A name that can be in a rule. It has no rules.
    Name,
    /// Rules for ports of SCTP. It has no rules.
    Sctp,
    /// Rules that remember clients. It has no session affinity.
    Affinity,
}

impl Lack {
    /// Returns what a Service port lacks on a node with these options.
    pub(super) fn of(
        options: &IptablesOptions,
        name: &ServicePortName,
        forwarding: &Forwarding,
    ) -> Option<Self> {
        if !is_plain(name) {
            Some(Self::Name)
        } else if !options.sctp && forwarding.protocol == Protocol::Sctp {
            Some(Self::Sctp)
        } else if !options.affinity && forwarding.affinity.is_some() {
            Some(Self::Affinity)
        } else {
            None
        }
    }

    /// Returns the reason, and what to do about it.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Name => {
                "its name is longer, or has other characters, than names of Services have; rename it"
            }
            Self::Sctp => {
                "it has no rules, because iptables or the kernel refuses rules for ports of SCTP (the log has the message); \
                 load the kernel module xt_sctp, or use the nftables mode"
            }
            Self::Affinity => {
                "it has no session affinity, because iptables or the kernel refuses rules that remember clients (the log has \
                 the message); load the kernel module xt_recent, or use the nftables mode"
            }
        }
    }
}

/// Returns true if the name can be in a rule as it is. Names from an API server always can.
fn is_plain(name: &ServicePortName) -> bool {
    let parts = [&name.namespace, &name.service, &name.port];
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    parts.iter().flat_map(|part| part.bytes()).all(plain)
        && parts.iter().map(|part| part.len()).sum::<usize>() <= NAME_MAX
}
