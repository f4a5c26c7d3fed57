//! Keeps the node's path to the API server: finds the addresses and ports that no Service may capture.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portolan_model::Family;
use portolan_model::catalog::ApiServer;

use super::Agent;
use crate::modes;

impl Agent {
    /// Handles a possible change of the address to which the client of the API server connects.
    pub(crate) fn api_server_moved(&mut self) {
        self.review_api_server();
        self.hand_over();
        self.show_backlog();
    }

    /// Checks whether the API servers behind the cluster IP by which the agent reaches them have changed. Only modes
    /// that add the addresses of Services to the node need them.
    pub(super) fn follow_api_servers(&mut self) {
        if self.running.is_some()
            && self.adds_addresses()
            && self.catalog.api_servers_behind(&self.peers.sockets()) != self.api_servers
        {
            self.review_api_server();
        }
    }

    /// Returns true if a data plane adds the addresses of Services to the node: a current one, or one that is to replace it.
    pub(super) fn adds_addresses(&self) -> bool {
        let adds = |mode| modes::driver(mode).adds_addresses();
        let planes = self.running.as_ref().map(|running| running.planes.as_slice()).unwrap_or_default();
        adds(self.configuration.mode_or_default())
            || planes.iter().any(|plane| adds(plane.mode) || adds(plane.blueprint.mode()))
    }

    /// Passes the addresses and ports that must stay reachable to the Catalog. If the node's addresses cannot be listed, that is
    /// done later.
    pub(super) fn review_api_server(&mut self) {
        let own = self.interface_addresses();
        self.lacks.api_server = own.is_none();
        let Some(own) = own else { return };
        let sockets = self.peers.sockets();
        self.api_servers = self.catalog.api_servers_behind(&sockets);
        let api_server = places(&sockets, &self.api_servers, self.adds_addresses(), &own);
        tracing::debug!(?sockets, behind = ?self.api_servers, "the API server is reached here");
        let applied = self.catalog.set_api_server(api_server);
        for fault in &applied.faults {
            self.report_fault(fault);
        }
        self.count_guarded_addresses();
    }
}

/// Returns what Services must not capture. `sockets` are the addresses and ports to which the agent connects,
/// `behind` the API servers behind them, and `own` the node's addresses without those that a mode added for Services.
/// `adds_addresses` tells whether the mode does that.
pub(crate) fn places(
    sockets: &BTreeSet<SocketAddr>,
    behind: &BTreeSet<IpAddr>,
    adds_addresses: bool,
    own: &[IpAddr],
) -> ApiServer {
    let is_own = |address: IpAddr| address.is_loopback() || own.contains(&address);
    let here = sockets.iter().filter(|socket| is_own(socket.ip()));
    let node_ports = here.map(|socket| (Family::of(socket.ip()), socket.port())).collect();
    let all = sockets.iter().map(SocketAddr::ip).chain(behind.iter().copied());
    let away = all.filter(|address| adds_addresses && !is_own(*address));
    ApiServer { sockets: sockets.clone(), addresses: away.collect(), node_ports }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_addresses_depend_on_the_mode_and_the_nodes_addresses() {
        let sockets: BTreeSet<SocketAddr> =
            ["192.0.2.1:6443", "127.0.0.1:7443", "192.0.2.9:6443", "[2001:db8::1]:443"]
                .iter()
                .map(|socket| socket.parse().unwrap())
                .collect();
        let own: [IpAddr; 1] = ["192.0.2.9".parse().unwrap()];
        let behind = BTreeSet::from(["198.51.100.1".parse().unwrap(), own[0]]);
        let node_ports = BTreeSet::from([(Family::Ipv4, 6443), (Family::Ipv4, 7443)]);
        let wanted = ApiServer {
            sockets: sockets.clone(),
            addresses: BTreeSet::new(),
            node_ports: node_ports.clone(),
        };
        assert_eq!(places(&sockets, &behind, false, &own), wanted);
        // The IPVS mode adds each address of a Service to the node. Addresses that the node has anyway need no
        // protection.
        let addresses =
            ["192.0.2.1", "198.51.100.1", "2001:db8::1"].map(|address| address.parse().unwrap()).into();
        assert_eq!(
            places(&sockets, &behind, true, &own),
            ApiServer { sockets: sockets.clone(), addresses, node_ports }
        );
    }
}
