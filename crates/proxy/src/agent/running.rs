//! What runs once the first complete state is known: the engine's thread and the data plane of each family.

use std::net::IpAddr;
use std::thread::JoinHandle;

use anyhow::bail;
use portolan_conntrack::{CleanerThread, NodePorts};
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
    /// The addresses of this node, as far as they were listed last.
    pub(super) addresses: Vec<IpAddr>,
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
    /// The addresses that the flow clean-up was given last.
    pub(super) flow_ports: NodePorts,
    /// The data planes that are to replace the current one, the wanted one last. The engine may have finished an earlier one
    /// whose report is on its way.
    pub(super) next: Vec<Next>,
}

/// A data plane that is not active yet.
pub(super) struct Next {
    /// Its mode.
    pub(super) mode: Mode,
    /// The settings that it was created with.
    pub(super) settings: Settings,
    /// See [`Made`](crate::modes::Made).
    pub(super) own: Option<Own>,
}

impl Plane {
    /// Returns true if a data plane of another mode is to replace the current one.
    pub(super) fn changes_mode(&self) -> bool {
        !self.next.is_empty() && self.mode != self.blueprint.mode()
    }

    /// Records that a data plane of a mode has replaced the current one. `settings` are those of the wanted one.
    fn replaced(&mut self, mode: &str, settings: Option<&Settings>) {
        // Of two of one mode, the last one: the engine gives up the first when it gets the second.
        let Some(at) = self.next.iter().rposition(|next| next.mode.name() == mode) else { return };
        // What was to come before it never will.
        let Some(next) = self.next.drain(..=at).next_back() else { return };
        let is_wanted = self.next.is_empty();
        (self.own, self.mode) = (next.own, next.mode);
        self.settings = settings.filter(|_| is_wanted).cloned().unwrap_or(next.settings);
    }
}

impl Running {
    /// Returns the error that ends the process if a thread has ended that should run for as long as the process.
    /// `ended_relay` is the name of such a thread of a relay.
    pub(super) fn check_threads(&self, ended_relay: Option<&'static str>) -> anyhow::Result<()> {
        let engine = (!self.is_ending && self.engine_thread.is_finished()).then_some("engine");
        let conntrack = (!self.flows.is_running()).then_some("conntrack");
        let Some(thread) = engine.or(conntrack).or(ended_relay) else { return Ok(()) };
        bail!(
            "the thread {thread:?} has ended: ending, so that the process is started again; rules stay as they are"
        )
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

    /// Returns the mode of a family's current data plane.
    pub(super) fn mode_of(&self, family: Family) -> Option<Mode> {
        self.planes.iter().find(|plane| plane.family == family).map(|plane| plane.mode)
    }

    /// Records that a data plane of a mode has become the active one of a family.
    pub(super) fn replaced(&mut self, family: Family, mode: &str) {
        let settings = self.settings.iter().find(|settings| settings.family == family);
        let Some(plane) = self.planes.iter_mut().find(|plane| plane.family == family) else { return };
        plane.replaced(mode, settings);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use portolan_engine::Timing;
    use portolan_model::catalog::{PerFamily, UdpService};
    use portolan_model::{Protocol, ServicePortName};
    use portolan_node::address::NodeAddresses;
    use portolan_node::config::Configuration;
    use portolan_testkit::eventually;

    use super::*;
    use crate::settings;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Returns a state without data planes, with real threads. That of conntrack ends with its first clean-up.
    fn running() -> Running {
        let (engine, engine_thread) = portolan_engine::spawn(Vec::new(), Timing::default(), |_| {}).unwrap();
        let report = |_| panic!("the thread of conntrack ends");
        Running {
            engine,
            engine_thread,
            flows: CleanerThread::spawn(PerFamily::default(), portolan_ipvs::DEVICE, report).unwrap(),
            settings: Vec::new(),
            health_checks: Vec::new(),
            unsynced: Vec::new(),
            unverified: Vec::new(),
            planes: Vec::new(),
            addresses: Vec::new(),
            former_claims: Vec::new(),
            removes_leftovers: false,
            reported_until: None,
            is_ending: false,
        }
    }

    fn end_engine(running: &Running) {
        running.engine.stop();
        eventually(PATIENCE, "the end of the engine", || running.engine_thread.is_finished()).unwrap();
    }

    fn end_conntrack(running: &Running) {
        let [namespace, service, port] = ["default", "dns", ""].map(Into::into);
        let name = ServicePortName { namespace, service, port, protocol: Protocol::Udp };
        let service = UdpService::new(name.into(), Vec::new(), Vec::new());
        running.flows.requests().request(Family::Ipv4, vec![service]);
        eventually(PATIENCE, "the end of conntrack", || !running.flows.is_running()).unwrap();
    }

    #[test]
    fn a_thread_that_has_ended_is_named_and_ends_the_process() {
        let nothing: fn(&Running) = |_| {};
        for (is_ending, end, ended_relay, named) in [
            (false, nothing, None, None),
            (false, end_engine, None, Some("engine")),
            (false, end_conntrack, None, Some("conntrack")),
            (false, nothing, Some("relay"), Some("relay")),
            // The end of the process has begun with that of the engine. The others still have to run.
            (true, end_engine, None, None),
            (true, end_conntrack, None, Some("conntrack")),
            (true, end_engine, Some("relay"), Some("relay")),
        ] {
            let running = Running { is_ending, ..running() };
            assert!(running.check_threads(None).is_ok());
            end(&running);
            let error = running.check_threads(ended_relay).err().map(|error| error.to_string());
            let expected = named.map(|name| {
                format!(
                    "the thread \"{name}\" has ended: ending, so that the process is started again; rules stay as they are"
                )
            });
            assert_eq!(error, expected, "is ending: {is_ending}");
        }
    }

    /// Returns a family's data plane, whose blueprint is that of the configured mode.
    fn plane(mode: Mode, settings: Settings) -> Plane {
        let family = settings.family;
        let ips = NodeAddresses { primary: family, v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST };
        let node = settings::Node { ips: &ips, pod_cidrs: &[], addresses: &[] };
        let configuration = Configuration { mode: Some(mode), ..Configuration::default() };
        let blueprint = Blueprint::new(&configuration, family, &node);
        Plane {
            family,
            blueprint,
            claims: None,
            own: None,
            mode,
            settings,
            flow_ports: NodePorts::default(),
            next: Vec::new(),
        }
    }

    #[test]
    fn the_data_plane_that_took_over_is_the_one_of_the_report() {
        let settings = |masquerade_bit| Settings { masquerade_bit, ..Settings::plain(Family::Ipv4) };
        let next = |mode, bit| Next { mode, settings: settings(bit), own: None };
        let mut plane = plane(Mode::Iptables, settings(1));
        plane.next = vec![next(Mode::Nftables, 2), next(Mode::Iptables, 3)];
        assert!(!plane.changes_mode(), "the wanted one has the same mode");
        plane.replaced("nftables", Some(&settings(4)));
        assert_eq!((plane.mode, &plane.settings, plane.next.len()), (Mode::Nftables, &settings(2), 1));
        plane.replaced("iptables", Some(&settings(4)));
        assert_eq!((plane.mode, &plane.settings, plane.next.len()), (Mode::Iptables, &settings(4), 0));
        plane.next = vec![next(Mode::Nftables, 5), next(Mode::Iptables, 6)];
        plane.replaced("iptables", None);
        assert!(plane.next.is_empty() && plane.settings == settings(6), "the first one was given up");
        plane.replaced("nftables", None);
        assert_eq!(plane.mode, Mode::Iptables, "it is unknown");
    }
}
