//! What runs once the first complete state is known: the engine's thread and the data plane of each family.

use std::thread::JoinHandle;

use portolan_conntrack::CleanerThread;
use portolan_engine::drift::Own;
use portolan_engine::{Claims, Handle};
use portolan_model::{Family, Settings};
use portolan_node::config::Mode;

use super::health_checks::HealthChecks;
use crate::modes::Blueprint;

/// The state that exists once the first complete state is known.
pub(super) struct Running {
    pub(super) engine: Handle,
    pub(super) engine_thread: JoinHandle<()>,
    pub(super) flows: CleanerThread,
    pub(super) settings: Vec<Settings>,
    pub(super) health_checks: Vec<HealthChecks>,
    /// Families whose first commit is not in the kernel.
    pub(super) unsynced: Vec<Family>,
    /// Families of which no comparison has shown that the kernel has everything.
    pub(super) unverified: Vec<Family>,
    pub(super) planes: Vec<Plane>,
    /// The claims of data planes that others have replaced. The engine removes their chains.
    pub(super) former_claims: Vec<Claims>,
    /// Whether what kube-proxy left is being removed.
    pub(super) removes_leftovers: bool,
    /// The generation of the ruleset up to which changes by other programs have been reported.
    pub(super) reported_until: Option<u32>,
    /// True if the engine's thread has been asked to end.
    pub(super) is_ending: bool,
}

/// The data plane of one family.
pub(super) struct Plane {
    pub(super) family: Family,
    /// Blueprint of the data plane that is wanted.
    pub(super) blueprint: Blueprint,
    /// See [`Made`](crate::modes::Made).
    pub(super) claims: Option<Claims>,
    pub(super) own: Option<Own>,
    /// The mode of the current data plane.
    pub(super) mode: Mode,
    /// The settings that were sent for it last.
    pub(super) settings: Settings,
    /// The data plane that is to replace the current one.
    pub(super) next: Option<Next>,
}

/// A data plane that is not active yet.
pub(super) struct Next {
    /// See [`Made`](crate::modes::Made).
    pub(super) own: Option<Own>,
}

impl Plane {
    /// Returns true if a data plane of another mode is to replace the current one.
    pub(super) fn changes_mode(&self) -> bool {
        self.next.is_some() && self.mode != self.blueprint.mode()
    }
}

impl Running {
    /// Returns the name of a thread that has ended, although it should run for as long as the process.
    pub(super) fn ended_thread(&self) -> Option<&'static str> {
        let has_engine = self.is_ending || !self.engine_thread.is_finished();
        let threads = [("engine", has_engine), ("conntrack", self.flows.is_running())];
        threads.into_iter().find(|(_, is_running)| !is_running).map(|(name, _)| name)
    }

    /// Records that other chains are used. Those of the former claims may still be there.
    pub(super) fn note_former(&mut self, former: Option<Claims>) {
        let Some(former) = former else { return };
        let is_known =
            |known: &Claims| known.are_where(&former) && std::ptr::fn_addr_eq(known.uses, former.uses);
        if !self.former_claims.iter().any(is_known) {
            self.former_claims.push(former);
        }
    }

    /// Records that a family's next data plane has become the active one.
    pub(super) fn replaced(&mut self, family: Family) {
        let settings = self.settings.iter().find(|settings| settings.family == family);
        for plane in self.planes.iter_mut().filter(|plane| plane.family == family) {
            if let Some(next) = plane.next.take() {
                (plane.own, plane.mode) = (next.own, plane.blueprint.mode());
                if let Some(settings) = settings {
                    plane.settings = settings.clone();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_engine::Timing;
    use portolan_model::NodePortAddresses;
    use portolan_model::catalog::PerFamily;

    use super::*;

    #[test]
    fn an_engine_whose_thread_has_ended_is_named() {
        let (engine, engine_thread) = portolan_engine::spawn(Vec::new(), Timing::default(), |_| {}).unwrap();
        let none = NodePortAddresses::Addresses(Vec::new());
        let node_ports = PerFamily { ipv4: none.clone(), ipv6: none };
        let running = Running {
            engine,
            engine_thread,
            flows: CleanerThread::spawn(node_ports, |_| {}).unwrap(),
            settings: Vec::new(),
            health_checks: Vec::new(),
            unsynced: Vec::new(),
            unverified: Vec::new(),
            planes: Vec::new(),
            former_claims: Vec::new(),
            removes_leftovers: false,
            reported_until: None,
            is_ending: false,
        };
        assert_eq!(running.ended_thread(), None);
        running.engine.stop();
        while !running.engine_thread.is_finished() {
            std::thread::yield_now();
        }
        assert_eq!(running.ended_thread(), Some("engine"));
    }
}
