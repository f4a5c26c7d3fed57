//! Where this node reaches the API server: no Service may take that away from it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portolan_backend::addresses::Addresses;
use portolan_model::Family;
use portolan_model::catalog::ApiServer;
use portolan_node::config::Mode;

use super::Agent;

impl Agent {
    /// The agent connects elsewhere, or may do so.
    pub(in crate::proxy) fn api_server_moved(&mut self) {
        self.review_api_server();
        self.hand_over();
        self.show_backlog();
    }

    /// Tells the Catalog what has to stay reachable. Where the node's addresses cannot be listed, it stays as it was.
    pub(super) fn review_api_server(&mut self) {
        let Ok(own) = Addresses::open().and_then(|addresses| addresses.list_own()) else { return };
        let sockets = self.peers.sockets();
        let api_server = places(&sockets, self.configuration.mode_or_default(), &own);
        tracing::debug!(?sockets, "the API server is reached here");
        let applied = self.catalog.reach_api_server_at(api_server);
        for fault in &applied.faults {
            self.tell_fault(fault);
        }
    }
}

/// What Services must leave alone where the agent connects to these addresses and ports. `own` are the node's
/// addresses without those that the IPVS mode gave it for Services.
fn places(sockets: &BTreeSet<SocketAddr>, mode: Mode, own: &[IpAddr]) -> ApiServer {
    let is_own = |address: IpAddr| address.is_loopback() || own.contains(&address);
    let (here, away): (Vec<SocketAddr>, Vec<SocketAddr>) =
        sockets.iter().partition(|socket| is_own(socket.ip()));
    let node_ports = here.iter().map(|socket| (Family::of(socket.ip()), socket.port())).collect();
    let away = if mode == Mode::Ipvs { away } else { Vec::new() };
    let addresses = away.iter().map(SocketAddr::ip).collect();
    ApiServer { sockets: sockets.clone(), addresses, node_ports }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_depends_on_the_mode_and_on_whose_address_it_is() {
        let sockets: BTreeSet<SocketAddr> =
            ["192.0.2.1:6443", "127.0.0.1:7443", "192.0.2.9:6443", "[2001:db8::1]:443"]
                .iter()
                .map(|socket| socket.parse().unwrap())
                .collect();
        let own: [IpAddr; 1] = ["192.0.2.9".parse().unwrap()];
        let node_ports = BTreeSet::from([(Family::Ipv4, 6443), (Family::Ipv4, 7443)]);
        for mode in [Mode::Nftables, Mode::Iptables, Mode::Userspace] {
            let wanted = ApiServer {
                sockets: sockets.clone(),
                addresses: BTreeSet::new(),
                node_ports: node_ports.clone(),
            };
            assert_eq!(places(&sockets, mode, &own), wanted);
        }
        // IPVS makes each address of a Service one of this node: what it has anyway, it may have.
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap()).into();
        assert_eq!(
            places(&sockets, Mode::Ipvs, &own),
            ApiServer { sockets: sockets.clone(), addresses, node_ports }
        );
    }
}
