//! Takes all measurements of one size, in order.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::changes::{self, Burst};
use crate::connect::{self, Connections, Refusals};
use crate::kernel::{self, Commits};
use crate::proxy::{Proxy, Start};
use crate::restart::{self, Restarts};
use crate::round_trips::{self, RoundTrips};
use crate::stage::{Bodies, Stage};
use crate::statistics::Sample;
use crate::workload::Size;

/// Pause in which the kernel removes the tables and connections of a namespace that has ended. It does so in the
/// background, beside the next measurement.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// The number of repetitions of each measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rounds {
    /// Single changes, of the whole path and of the kernel's part.
    pub(crate) changes: usize,
    /// Single changes with the default minSyncPeriod, each after a pause longer than that.
    pub(crate) paused_changes: usize,
    /// Restarts during which changes arrive.
    pub(crate) restarts: usize,
    /// Changes in a burst.
    pub(crate) burst: usize,
    /// Changes that come at once.
    pub(crate) at_once: usize,
    /// Connections through the VIP, and as many direct ones.
    pub(crate) connections: usize,
    /// Requests on an open connection through the VIP, and as many on a direct one.
    pub(crate) requests: usize,
}

/// The figures of one size.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) size: Size,
    pub(crate) bodies: Bodies,
    pub(crate) commits: Commits,
    /// The same with counters of Services.
    pub(crate) counting_commits: Commits,
    /// Changes that arrive during the comparison of a restart.
    pub(crate) restarts: Restarts,
    /// Start with an empty kernel.
    pub(crate) cold: Start,
    /// Start with a kernel that is in sync.
    pub(crate) warm: Start,
    /// Single changes with minSyncPeriod 0.
    pub(crate) changes: Sample,
    /// Single changes with the default minSyncPeriod, after pauses.
    pub(crate) paused_changes: Sample,
    /// Burst with the default minSyncPeriod.
    pub(crate) burst: Burst,
    /// Burst with minSyncPeriod 0.
    pub(crate) burst_at_once: Burst,
    /// Time until changes that came at once are all effective, with minSyncPeriod 0.
    pub(crate) at_once: Duration,
    /// Maximum resident memory, in KiB, of the proxy that started with an empty kernel, after its changes.
    pub(crate) high_water_cold: u32,
    /// Maximum resident memory, in KiB, of the proxy that started with a kernel in sync.
    pub(crate) high_water_warm: u32,
    /// Connections to pods of another node.
    pub(crate) far: Connections,
    /// Connections to pods of the client's own node.
    pub(crate) near: Connections,
    /// Connections from outside to a node port with external traffic policy Local.
    pub(crate) node_port: Connections,
    /// Request and response on open connections to pods of another node.
    pub(crate) far_round_trips: RoundTrips,
    /// Request and response on open connections to pods of the client's own node.
    pub(crate) near_round_trips: RoundTrips,
    /// Connections to pods of another node, with counters of Services.
    pub(crate) counting_far: Connections,
    /// The start that switches the counters on.
    pub(crate) counting: Start,
    /// Connections to a Service without endpoints.
    pub(crate) refusals: Refusals,
}

/// Measures one size.
pub(crate) fn measure(binary: &Path, size: Size, rounds: Rounds) -> anyhow::Result<Figures> {
    let commits = kernel::measure(size, rounds.changes, false).context("measure the kernel's part")?;
    thread::sleep(CLEAN_UP);
    let counting_commits =
        kernel::measure(size, rounds.changes, true).context("measure the kernel's part with counters")?;
    thread::sleep(CLEAN_UP);
    let restarts = restart::measure(size, rounds.restarts).context("measure changes during restarts")?;
    thread::sleep(CLEAN_UP);
    let stage = Stage::build(size).context("build the namespaces and load the objects")?;

    let (proxy, cold) = Proxy::start(binary, &stage, "1s")?;
    let paused_changes = changes::after_pauses(&stage, rounds.paused_changes)?;
    let burst = changes::burst(&stage, &|| proxy.processor_time(), size, 0, rounds.burst)?;
    let high_water_cold = proxy.high_water()?;
    proxy.stop()?;

    let (proxy, warm) = Proxy::start(binary, &stage, "0s")?;
    ensure!(
        warm.elements == 0 && warm.objects == 0,
        "a restart with unchanged objects wrote {} elements and {} objects",
        warm.elements,
        warm.objects
    );
    let changes = changes::single(&stage, rounds.changes)?;
    let burst_at_once = changes::burst(&stage, &|| proxy.processor_time(), size, rounds.burst, rounds.burst)?;
    let high_water_warm = proxy.high_water()?;
    let at_once = changes::at_once(&stage, &proxy, size, rounds.burst.saturating_mul(2), rounds.at_once)?;
    let far = connect::measure(&stage, &stage.far, rounds.connections)?;
    let near = connect::measure(&stage, &stage.near, rounds.connections)?;
    let node_port = connect::through_node_port(&stage, rounds.connections)?;
    let far_round_trips = round_trips::measure(&stage, &stage.far, rounds.requests)?;
    let near_round_trips = round_trips::measure(&stage, &stage.near, rounds.requests)?;
    let refusals = connect::refusals(&stage, rounds.connections)?;
    proxy.stop()?;

    let (proxy, counting) = Proxy::start_counting(binary, &stage)?;
    let counting_far = connect::measure(&stage, &stage.far, rounds.connections)?;
    proxy.stop()?;

    let bodies = stage.bodies();
    drop(stage);
    thread::sleep(CLEAN_UP);
    Ok(Figures {
        size,
        bodies,
        commits,
        counting_commits,
        restarts,
        cold,
        warm,
        changes,
        paused_changes,
        burst,
        burst_at_once,
        at_once,
        high_water_cold,
        high_water_warm,
        far,
        near,
        node_port,
        far_round_trips,
        near_round_trips,
        counting_far,
        counting,
        refusals,
    })
}
