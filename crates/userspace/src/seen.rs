//! The view of a Service port that the kernel's rules implement: the relay's listeners in place of its endpoints.

use std::sync::Arc;

use portolan_model::{Backend, Change, Forwarding, Protocol};

use portolan_nftables::Listeners;

/// Why an SCTP Service port is refused.
pub(super) const SCTP: &str =
    "the userspace mode does not carry SCTP: use another mode (nftables, iptables or ipvs)";

/// Translates a change into the kernel's view. Returns `None` if the rules stay the same, as when endpoints change and
/// the set stays non-empty.
pub(super) fn change(change: &Change, listeners: Listeners) -> Option<Change> {
    let old = change.old.as_deref().map(|old| forwarding(old, listeners));
    let new = change.new.as_deref().map(|new| forwarding(new, listeners));
    (old != new).then(|| Change {
        name: change.name.clone(),
        family: change.family,
        old: old.map(Arc::new),
        new: new.map(Arc::new),
    })
}

/// Returns the kernel's view of a Service port. An SCTP port has no endpoints there, so that its packets are refused.
pub(super) fn forwarding(forwarding: &Forwarding, listeners: Listeners) -> Forwarding {
    let is_carried = forwarding.protocol != Protocol::Sctp;
    let listener = |backends: &[Backend], local: bool| -> Box<[Backend]> {
        let socket = listeners.listener(local);
        let listener = Backend { address: socket.ip(), port: socket.port(), may_hairpin: false };
        if is_carried && !backends.is_empty() { Box::new([listener]) } else { Box::default() }
    };
    Forwarding {
        cluster: listener(&forwarding.cluster, false),
        local: listener(&forwarding.local, true),
        has_endpoints: is_carried && forwarding.has_endpoints,
        affinity: None,
        keep_client_address: false,
        ..forwarding.clone()
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::{Family, ServicePortName};

    use super::*;

    fn listeners() -> Listeners {
        Listeners { cluster: ([127, 0, 0, 1], 1).into(), local: ([127, 0, 0, 1], 2).into() }
    }

    fn with(hosts: &[u8], protocol: Protocol) -> Arc<Forwarding> {
        let backend = |&host| Backend { address: [10, 244, 0, host].into(), port: 80, may_hairpin: true };
        let cluster = hosts.iter().map(backend).collect();
        Arc::new(Forwarding {
            has_endpoints: !hosts.is_empty(),
            affinity: Some(60),
            ..Forwarding::plain(([10, 96, 0, 1], 80).into(), protocol, cluster)
        })
    }

    fn between(old: Option<Arc<Forwarding>>, new: Option<Arc<Forwarding>>) -> Option<Change> {
        let texts = ["default", "web", ""].map(Arc::from);
        let [namespace, service, port] = texts;
        let name = Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp });
        change(&Change { name, family: Family::Ipv4, old, new }, listeners())
    }

    #[test]
    fn changed_endpoints_do_not_change_the_kernels_view() {
        let tcp = |hosts: &[u8]| Some(with(hosts, Protocol::Tcp));
        assert_eq!(between(tcp(&[1, 2]), tcp(&[3])), None);
        let empty = between(tcp(&[1]), tcp(&[])).and_then(|change| change.new);
        assert!(empty.is_some_and(|new| new.cluster.is_empty() && !new.has_endpoints));
        let first = between(None, tcp(&[1, 2])).and_then(|change| change.new);
        assert!(first.is_some_and(|new| new.cluster.len() == 1 && new.affinity.is_none()));
        assert!(between(tcp(&[1]), None).is_some_and(|change| change.new.is_none()));
    }

    #[test]
    fn sctp_is_refused() {
        let seen = forwarding(&with(&[1], Protocol::Sctp), listeners());
        assert_eq!(seen.internal(), portolan_model::table::Disposition::Reject);
    }
}
