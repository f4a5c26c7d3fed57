//! What the kernel has counted of Services.
//!
//! The reader of the mode reads the whole kernel, whatever is asked for. So requests share a reading: it counts all Service
//! ports, and is kept while the pause after it lasts, which is three times as long as the reading. Requests cannot keep more
//! than a quarter of a processor busy. A reading that takes longer than its request waits answers the next one. When the
//! pause is over, the counts are freed.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_engine::{FamilySnapshot, endpoints};
use portolan_model::observed::{self, Counted, Traffic};
use portolan_model::table::Entry;
use portolan_model::{Family, Forwarding, ServicePortName, Settings};
use portolan_node::config::Configuration;
use portolan_node::health::Now;
use portolan_relay::Handle;
use portolan_status::{Counters, Passed, Refused, ServicePort};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::super::explain::Active;
use super::super::{Control, SHORT_ENGINE_WAIT};
use crate::agent::Agent;
use crate::modes::NotCounted;

/// How long a request waits for a reading.
const WAIT: Duration = Duration::from_secs(5);
/// How many times as long as a reading the pause after it is.
const PAUSE: u32 = 3;
/// The shortest pause: requests that wait for the reading get it, and so do the pages of one list.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// What was counted, of all Service ports.
#[derive(Debug, Default)]
pub(in super::super) struct Counts {
    pub(in super::super) ports: HashMap<(Family, Arc<ServicePortName>), Counted>,
    /// Why nothing was read, or not all families.
    pub(in super::super) failed: Option<String>,
    /// Why the modes do not count, or do not count all.
    pub(in super::super) not_counted: Option<&'static str>,
    /// Whether the mode of a family counts something.
    pub(in super::super) is_counting: bool,
    /// When the kernel was read. `None` if it was not.
    pub(in super::super) at: Option<Now>,
    /// How long the kernel was read.
    took: Duration,
}

impl Counts {
    /// Returns why something is missing.
    pub(in super::super) fn missing(&self) -> Option<&str> {
        self.failed.as_deref().or(self.not_counted)
    }

    fn failed(why: &str) -> Self {
        Self { failed: Some(why.to_owned()), ..Self::default() }
    }
}

/// The reading that requests share. There is one at a time.
#[derive(Debug)]
pub(in super::super) struct Shared {
    /// The turn of the task that reads and then pauses.
    turn: Arc<Semaphore>,
    /// The last reading, until its pause is over.
    latest: watch::Sender<Option<Arc<Counts>>>,
}

impl Shared {
    pub(in super::super) fn new() -> Arc<Self> {
        Arc::new(Self { turn: Arc::new(Semaphore::new(1)), latest: watch::Sender::new(None) })
    }

    /// Returns the reading that is kept or under way. If there is none, begins one.
    async fn get<F>(self: &Arc<Self>, reading: impl Fn() -> F) -> Arc<Counts>
    where
        F: Future<Output = Counts> + Send + 'static,
    {
        let mut latest = self.latest.subscribe();
        let got = async {
            loop {
                tokio::select! {
                    biased;
                    kept = latest.wait_for(Option::is_some) => break kept.ok()?.clone(),
                    turn = Arc::clone(&self.turn).acquire_owned() => {
                        // A task of its own: the reading is kept also if the client hangs up.
                        tokio::spawn(Arc::clone(self).read_and_keep(reading(), turn.ok()?));
                    }
                }
            }
        };
        let got = tokio::time::timeout(WAIT, got).await.ok().flatten();
        got.unwrap_or_else(|| Arc::new(Counts::failed("reading the rules takes long; ask again")))
    }

    async fn read_and_keep(
        self: Arc<Self>,
        reading: impl Future<Output = Counts>,
        turn: OwnedSemaphorePermit,
    ) {
        let counts = reading.await;
        let (took, is_large) = (counts.took, !counts.ports.is_empty());
        self.latest.send_replace(Some(Arc::new(counts)));
        tokio::time::sleep(took.saturating_mul(PAUSE).max(PAUSE_MIN)).await;
        // Before the turn ends: the next reading is not replaced.
        let old = self.latest.send_replace(None);
        if is_large {
            let freeing = crate::blocking::run(move || {
                drop(old);
                portolan_sock::memory::trim();
            });
            if let Err(error) = freeing.await {
                tracing::warn!(%error, "the memory of counters of Services could not be freed");
            }
        }
        drop(turn);
    }
}

/// What the data plane of a family is.
#[derive(Debug)]
struct Lane {
    mode: &'static str,
    iptables: Option<&'static str>,
    settings: Settings,
}

impl Lane {
    fn of(snapshot: &FamilySnapshot) -> Self {
        let FamilySnapshot { mode, iptables, table, .. } = snapshot;
        Self { mode, iptables: *iptables, settings: table.settings().clone() }
    }
}

/// What is read, and of which Service ports.
struct Reading {
    lanes: Vec<Lane>,
    configuration: Configuration,
    relay: Option<Handle>,
    ports: Vec<Entry>,
}

/// Returns what the kernel has counted of all Service ports. It can be as old as the last reading and its pause.
pub(in super::super) async fn read(control: &Arc<Control>) -> Arc<Counts> {
    control.counts.get(|| read_kernel(Arc::clone(control))).await
}

async fn read_kernel(control: Arc<Control>) -> Counts {
    let Some(facts) = control.ask(Agent::of_packets).await else {
        return Counts::failed("the agent is ending");
    };
    let Some(facts) = facts else {
        return Counts::failed("the Services are not known completely yet; ask again");
    };
    let Some(snapshots) = Control::ask_engine(&facts.engine, SHORT_ENGINE_WAIT, |snapshots| snapshots).await
    else {
        return Counts::failed("a commit takes long; ask again");
    };
    let lanes = snapshots.iter().map(Lane::of).collect();
    let began = Instant::now();
    let reading = move || {
        let mut ports: Vec<Entry> = Vec::new();
        for snapshot in snapshots {
            // The engine's next change would copy a table that is kept.
            ports.extend(snapshot.table.iter().map(|(name, forwarding)| (Arc::clone(name), forwarding)));
        }
        Reading { lanes, configuration: facts.configuration, relay: facts.relay, ports }
    };
    let counts = crate::blocking::run(move || reading().counts()).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the counters of Services could not be read");
        Counts::failed("the rules could not be read; the log says why")
    });
    Counts { took: began.elapsed(), ..counts }
}

impl Reading {
    /// Reads the kernel. Blocks.
    fn counts(self) -> Counts {
        let Self { lanes, configuration, relay, ports } = self;
        let mut counts = Counts::default();
        for Lane { mode, iptables, settings } in lanes {
            let family = settings.family;
            let active = Active::new(mode, iptables, &configuration);
            let not_counted = active.not_counted(&settings);
            if let Some(NotCounted::All(why) | NotCounted::Part(why)) = not_counted {
                counts.not_counted.get_or_insert(why);
            }
            if let Some(NotCounted::All(_)) = not_counted {
                continue;
            }
            counts.is_counting = true;
            let own: Vec<Entry> =
                ports.iter().filter(|(_, forwarding)| forwarding.family == family).cloned().collect();
            if own.is_empty() {
                continue;
            }
            counts.at.get_or_insert_with(Now::read);
            match active.read(&settings, relay.clone()) {
                Ok(Some(observed)) => {
                    let names = own.iter().map(|(name, _)| (family, Arc::clone(name)));
                    counts.ports.extend(names.zip(observed.counted(&own)));
                }
                Ok(None) => {}
                Err(error) => counts.failed = Some(format!("the {family} rules cannot be read: {error}")),
            }
        }
        // All rules of Services were in memory.
        portolan_sock::memory::trim();
        counts
    }
}

/// Adds what was counted to a Service port.
pub(in super::super) fn add(port: &mut ServicePort, forwarding: &Forwarding, counted: &Counted) {
    let refused = counted.total.refused;
    if counted.total.passed.is_some() || refused != observed::Refused::default() {
        port.counters = Some(Counters {
            passed: counted.total.passed.map(passed),
            refused: Refused {
                no_endpoint: refused.no_endpoint,
                no_local_endpoint: refused.no_local_endpoint,
                source_range: refused.source_range,
            },
        });
    }
    for (endpoint, (at, ..)) in port.endpoints.iter_mut().zip(endpoints(forwarding)) {
        endpoint.counters = counted.endpoints.get(&at.socket()).copied().map(passed);
    }
}

fn passed(observed::Counters { connections, traffic }: observed::Counters) -> Passed {
    let (packets, bytes) = traffic.map(|Traffic { packets, bytes }| (packets, bytes)).unzip();
    Passed { connections, packets, bytes }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use portolan_model::{Backend, Protocol};

    use super::*;
    use crate::control::services::{Reasons, service_port};

    #[test]
    fn counts_are_those_of_the_endpoints() {
        let backends =
            [1, 2].map(|last| Backend { address: [10, 244, 0, last].into(), port: 80, may_hairpin: false });
        let forwarding = Forwarding::plain(([10, 96, 0, 1], 80).into(), Protocol::Tcp, Box::new(backends));
        let [namespace, service, port] = ["demo", "web", ""].map(Arc::from);
        let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
        let of = |connections| observed::Counters::of_connections(connections);
        let at = |last: u8| SocketAddr::from(([10, 244, 0, last], 80));
        let mut counted =
            Counted { endpoints: [(at(1), of(3)), (at(2), of(4))].into(), ..Counted::default() };
        let mut shown = service_port(&name, &forwarding, &Reasons::new());
        add(&mut shown, &forwarding, &counted);
        assert_eq!(shown.counters, None, "nothing of the whole");
        let all: Vec<_> = shown
            .endpoints
            .iter()
            .map(|endpoint| (endpoint.address.as_str(), endpoint.counters.unwrap().connections))
            .collect();
        assert_eq!(all, [("10.244.0.1:80", 3), ("10.244.0.2:80", 4)]);
        counted.total.passed =
            Some(observed::Counters { connections: 7, traffic: Some(Traffic { packets: 8, bytes: 9 }) });
        counted.total.refused.source_range = Some(5);
        add(&mut shown, &forwarding, &counted);
        let counters = shown.counters.unwrap();
        assert_eq!(counters.passed, Some(Passed { connections: 7, packets: Some(8), bytes: Some(9) }));
        assert_eq!((counters.refused.source_range, counters.refused.no_endpoint), (Some(5), None));
    }

    /// Returns a shared reading, and how often it was begun.
    async fn asked(shared: &Arc<Shared>, begun: &Arc<AtomicU32>, takes: Duration) -> Arc<Counts> {
        let reading = || {
            begun.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(takes).await;
                Counts { is_counting: true, took: takes, ..Counts::default() }
            }
        };
        shared.get(reading).await
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_a_reading_until_its_pause_is_over() {
        let (shared, begun, takes) = (Shared::new(), Arc::default(), Duration::from_secs(2));
        let (first, second) = tokio::join!(asked(&shared, &begun, takes), asked(&shared, &begun, takes));
        assert!(first.is_counting && Arc::ptr_eq(&first, &second));
        tokio::time::sleep((takes * PAUSE).saturating_sub(Duration::from_millis(10))).await;
        assert!(Arc::ptr_eq(&first, &asked(&shared, &begun, takes).await), "the pause lasts");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(shared.latest.borrow().is_none(), "what is not asked for is freed");
        assert!(!Arc::ptr_eq(&first, &asked(&shared, &begun, takes).await));
        assert_eq!(begun.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_reading_is_kept_for_the_next_request() {
        let (shared, begun, takes) = (Shared::new(), Arc::default(), WAIT + Duration::from_secs(3));
        let late = asked(&shared, &begun, takes).await;
        assert_eq!(late.missing(), Some("reading the rules takes long; ask again"));
        let next = asked(&shared, &begun, takes).await;
        assert_eq!((next.missing(), next.is_counting), (None, true));
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}
