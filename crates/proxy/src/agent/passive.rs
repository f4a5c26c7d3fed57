//! Passive health checks: takes endpoints out of the table while connections to them fail, in the modes in which the kernel
//! connects clients with endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_conntrack::passive::{Failure, PassiveThread, SetAside};
use portolan_node::config::{Configuration, Mode};
use tokio::sync::watch;

use super::Agent;
use crate::recording;

/// How long to wait before connections are observed again after that has failed.
const RETRY: Duration = Duration::from_secs(60);

/// Whether the kernel notifies of connections: 0 is never.
const EVENTS: &str = "/proc/sys/net/netfilter/nf_conntrack_events";

/// The endpoints that are set aside.
pub(crate) type Endpoints = BTreeMap<SocketAddr, SetAside>;

/// The observation of connections.
#[derive(Default)]
pub(super) struct Passive {
    thread: Option<PassiveThread>,
    /// What the thread has reported last.
    reported: watch::Sender<Endpoints>,
    /// When a failed start is tried again.
    retry_at: Option<Instant>,
    /// Whether it was logged that this mode has no passive health checks.
    is_refused: bool,
}

impl Agent {
    /// Returns a receiver of the endpoints that are to be set aside, for [`set_aside`](Self::set_aside).
    pub(crate) fn failing_endpoints(&self) -> watch::Receiver<Endpoints> {
        self.passive.reported.subscribe()
    }

    /// Starts or stops the observation as the configuration says.
    pub(super) fn review_passive_checks(&mut self) {
        let is_wanted = self.configuration.portolan.passive_health_checks;
        let can_be = is_of_kernel(&self.configuration);
        if is_wanted && !can_be && !self.passive.is_refused {
            let mode = self.configuration.mode_or_default().name();
            tracing::warn!(mode, "portolan.passiveHealthChecks has no effect in this mode");
        }
        self.passive.is_refused = is_wanted && !can_be;
        if !is_wanted || !can_be {
            if self.passive.thread.take().is_some() {
                self.passive.reported.send_replace(Endpoints::new());
            }
            self.passive.retry_at = None;
            return;
        }
        let is_due = self.passive.retry_at.is_none_or(|at| at <= Instant::now());
        if is_due && !self.passive.thread.as_ref().is_some_and(PassiveThread::is_running) {
            self.start_passive_checks();
        }
    }

    fn start_passive_checks(&mut self) {
        let reported = self.passive.reported.clone();
        let started = PassiveThread::spawn(move |endpoints| {
            reported.send_replace(endpoints);
        });
        self.passive.retry_at = Some(Instant::now() + RETRY);
        match started {
            Ok(thread) => {
                if std::fs::read_to_string(EVENTS).is_ok_and(|value| value.trim() == "0") {
                    let mend = "run `sysctl -w net.netfilter.nf_conntrack_events=1`";
                    tracing::warn!(mend, "{EVENTS} is 0: the kernel does not report connections");
                }
                tracing::info!("endpoints are set aside for a while if connections to them fail");
                self.passive.thread = Some(thread);
            }
            Err(error) => {
                tracing::warn!(%error, retry_in = ?RETRY, "connections to endpoints cannot be observed");
            }
        }
    }

    /// Sets these endpoints aside, and no others.
    pub(crate) fn set_aside(&mut self, endpoints: &Endpoints) {
        let changed = self.catalog.set_aside(endpoints.keys().copied().collect());
        let mut of_endpoints: BTreeMap<SocketAddr, BTreeSet<String>> = BTreeMap::new();
        for (endpoint, service) in changed {
            of_endpoints.entry(endpoint).or_default().insert(service.to_string());
        }
        for (endpoint, services) in of_endpoints {
            let services = Vec::from_iter(services).join(", ");
            let text = if let Some(SetAside { failure, pause }) = endpoints.get(&endpoint) {
                let why = why(*failure);
                tracing::warn!(%endpoint, services, why, ?pause, "an endpoint is set aside");
                self.metrics.endpoint_set_aside();
                format!("{endpoint} of {services} is set aside for {pause:?}: {why}")
            } else {
                tracing::info!(%endpoint, services, "an endpoint is used again");
                format!("{endpoint} of {services} is used again")
            };
            self.record(|| recording::note("endpoint", text));
        }
        self.metrics.endpoints_aside(self.catalog.aside_count());
        self.hand_over();
    }
}

/// Returns true in the modes in which the kernel connects clients with endpoints, as conntrack shows.
pub(crate) fn is_of_kernel(configuration: &Configuration) -> bool {
    configuration.mode_or_default() != Mode::Userspace
}

const fn why(failure: Failure) -> &'static str {
    match failure {
        Failure::Refused => "it refuses connections",
        Failure::NoAnswer => "it does not answer",
    }
}
