//! One Service port, with the texts that its rules have in common.

use portolan_model::table::Disposition;
use portolan_model::{Backend, Forwarding, ServicePortName, Settings};

use super::IptablesOptions;
use super::name::{ChainName, Hash, Kind};
use super::rule;

/// What rules depend on, besides the Service port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) settings: &'a Settings,
    pub(super) options: &'a IptablesOptions,
    /// True if rules of single endpoints name the endpoint in a comment. False in a large cluster.
    pub(super) endpoint_comments: bool,
}

/// A Service port for which rules are made.
#[derive(Debug)]
pub(super) struct Service<'a> {
    pub(super) context: Context<'a>,
    pub(super) forwarding: &'a Forwarding,
    /// `namespace/service:port`.
    pub(super) name: String,
    /// The protocol in lower case, as iptables spells it.
    pub(super) protocol: &'static str,
    hash: Hash,
}

impl<'a> Service<'a> {
    pub(super) fn new(context: Context<'a>, name: &ServicePortName, forwarding: &'a Forwarding) -> Self {
        let name = name.to_string();
        let protocol = rule::lower_case(forwarding.protocol);
        let hash = Hash::of(&[&name, protocol]);
        Self { context, forwarding, name, protocol, hash }
    }

    pub(super) const fn chain(&self, kind: Kind) -> ChainName {
        self.hash.chain(kind)
    }

    /// Returns true if packets may have to be masqueraded. With listeners on this node, replies come from this node
    /// anyway.
    pub(super) const fn masquerades(&self) -> bool {
        self.context.options.redirect.is_none()
    }

    pub(super) fn has_external(&self) -> bool {
        matches!(self.forwarding.external(), Disposition::Backends(_))
    }

    /// Returns true if the Service port has a chain for external traffic, even if only the short cut is in it.
    pub(super) fn has_external_chain(&self) -> bool {
        self.forwarding.has_endpoints && self.forwarding.externally_accessible()
    }

    pub(super) fn has_firewall(&self) -> bool {
        let on_load_balancer = |f| matches!(f, &portolan_model::Frontend::LoadBalancerIp(..));
        self.forwarding.has_endpoints
            && !self.forwarding.source_ranges.is_empty()
            && self.forwarding.frontends.iter().any(on_load_balancer)
    }

    /// Returns the chain of the endpoint with this `address:port`.
    pub(super) fn endpoint_chain(&self, endpoint: &str) -> ChainName {
        Hash::of(&[&self.name, self.protocol, endpoint]).chain(Kind::Endpoint)
    }
}

/// Returns the backends with their `address:port` as text, sorted by the text and without duplicates. Rules have this
/// order.
pub(super) fn in_order<'b>(backends: impl Iterator<Item = &'b Backend>) -> Vec<(String, &'b Backend)> {
    let mut list: Vec<_> = backends.map(|backend| (backend.socket().to_string(), backend)).collect();
    list.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    list.dedup_by(|a, b| a.0 == b.0);
    list
}
