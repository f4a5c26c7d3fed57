//! Faults of the API server that the agent must notice.

use portolan_testkit::{Namespace, eventually};

use crate::common::faulty::{self, BREAKS_OFF, FaultyServer};
use crate::common::watches::{all_open, empty_lists_held};
use crate::common::{PATIENCE, objects, watch_restarts};
use crate::fault::Fault;
use crate::{Chaos, foreign};

/// Requests that fail while the API server is cut off or breaks off its answers. Each of the four watches asks every half second to every second.
const FAILED: usize = 16;
/// The collections whose empty lists are not believed at first.
const HELD: [&str; 2] = ["services", "endpointslices"];

impl Chaos {
    /// Resets all connections, and refuses new ones until a number of requests have failed.
    pub(crate) fn server_cut_off(&mut self, edits: u8) {
        self.watches_are_open();
        let before = watch_restarts(self.node());
        foreign::refuse(self.node(), self.cluster.address.port());
        foreign::reset(self.node(), self.cluster.address.port());
        self.edit(edits);
        let have_failed = || watch_restarts(self.node()) >= before + FAILED;
        let failed = eventually(PATIENCE, "failed requests", have_failed);
        assert!(failed.is_ok(), "{}", self.proxy.output());
        foreign::lose_no_more(self.node());
    }

    /// Puts a server that breaks off its answers in the place of the API server, until a number of requests have failed.
    pub(crate) fn server_breaks_off(&mut self, edits: u8) {
        self.watches_are_open();
        let before = watch_restarts(self.node());
        self.cluster.stop_server();
        let answers = faulty::Fault::Answers(BREAKS_OFF);
        let faulty = FaultyServer::start(self.node(), self.cluster.address.port(), answers);
        self.edit(edits);
        let have_failed = || watch_restarts(self.node()) >= before + FAILED;
        let failed = eventually(PATIENCE, "answers that break off", have_failed);
        assert!(failed.is_ok(), "{} requests\n{}", faulty.requests(), self.proxy.output());
        drop(faulty);
        self.cluster.restart_server();
    }

    /// Puts a server without Services and EndpointSlices in the place of the API server, until the agent has had an empty list of
    /// both and not believed it. The API server is back long before the agent would believe a list.
    pub(crate) fn server_emptied(&mut self, edits: u8) {
        self.watches_are_open();
        let before = held(self.node());
        self.cluster.stop_server();
        let empty = FaultyServer::start(self.node(), self.cluster.address.port(), faulty::Fault::Empties);
        self.edit(edits);
        let have_both = || held(self.node()).iter().zip(before).all(|(now, before)| *now > before);
        let outcome = eventually(PATIENCE, "empty lists", have_both);
        assert!(outcome.is_ok(), "{}", self.proxy.output());
        drop(empty);
        self.cluster.restart_server();
    }

    /// Takes a backup, edits until the agent has followed, and starts the API server with the backup. Its revision is older than
    /// that of the agent's watches. So it ends them after half a minute, and the agent lists again. Meanwhile there are edits.
    pub(crate) fn server_rolled_back(&mut self, edits: u8) {
        self.watches_are_open();
        let (backup, services) = (self.cluster.back_up(), self.services.clone());
        self.edit(edits.div_ceil(2));
        self.settle(Fault::RolledBack);
        self.cluster.stop_server();
        self.cluster.restore(backup);
        self.services = services;
        self.cluster.restart_server();
        self.edit(edits / 2);
    }

    /// Waits until the agent follows each collection. What its log says later is about the fault.
    pub(crate) fn watches_are_open(&mut self) {
        let service = objects::cluster_ip("watched", "10.96.0.99");
        let slice = objects::slice("watched", &[], &objects::ports(&service));
        all_open(&self.cluster, service, slice, self.number);
        self.log.fault_begins(&self.proxy);
    }
}

/// Returns how many empty lists of each collection the agent did not believe.
fn held(node: &Namespace) -> [f64; 2] {
    HELD.map(|collection| empty_lists_held(node, collection))
}
