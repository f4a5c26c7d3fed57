//! All that is measured of one size, in order.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::changes::{self, Burst};
use crate::connect::{self, Connections, Refusals};
use crate::kernel::{self, Commits};
use crate::options::Rounds;
use crate::proxy::{Proxy, Start};
use crate::stage::{Bodies, Stage};
use crate::statistics::Sample;
use crate::workload::Size;

/// The kernel takes a namespace's tables and connections apart after its end, beside whatever comes next.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// The figures of one size.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) size: Size,
    pub(crate) bodies: Bodies,
    pub(crate) commits: Commits,
    /// With nothing in the kernel.
    pub(crate) cold: Start,
    /// With everything in the kernel.
    pub(crate) warm: Start,
    /// Single changes with minSyncPeriod 0.
    pub(crate) changes: Sample,
    /// Single changes with the default minSyncPeriod, after pauses.
    pub(crate) paused_changes: Sample,
    /// With the default minSyncPeriod.
    pub(crate) burst: Burst,
    /// With minSyncPeriod 0.
    pub(crate) burst_at_once: Burst,
    /// Resident high-water of the proxy that started with nothing in the kernel after its changes, in KiB.
    pub(crate) high_water_cold: u32,
    /// The same of the proxy that found everything in the kernel.
    pub(crate) high_water_warm: u32,
    /// To pods of another node.
    pub(crate) far: Connections,
    /// To pods of the client's own node.
    pub(crate) near: Connections,
    /// To a Service without endpoints.
    pub(crate) refusals: Refusals,
}

/// Measures one size.
pub(crate) fn measure(binary: &Path, size: Size, rounds: Rounds) -> anyhow::Result<Figures> {
    let commits = kernel::measure(size, rounds.changes).context("measure the kernel's part")?;
    thread::sleep(CLEAN_UP);
    let stage = Stage::build(size).context("build the namespaces and load the objects")?;

    let (proxy, cold) = Proxy::start(binary, &stage, "1s")?;
    let paused_changes = changes::after_pauses(&stage, rounds.paused_changes)?;
    let burst = changes::burst(&stage, &proxy, size, 0, rounds.burst)?;
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
    let burst_at_once = changes::burst(&stage, &proxy, size, rounds.burst, rounds.burst)?;
    let high_water_warm = proxy.high_water()?;
    let far = connect::measure(&stage, &stage.far, rounds.connections)?;
    let near = connect::measure(&stage, &stage.near, rounds.connections)?;
    let refusals = connect::refusals(&stage, rounds.connections)?;
    proxy.stop()?;

    let bodies = stage.bodies();
    drop(stage);
    thread::sleep(CLEAN_UP);
    Ok(Figures {
        size,
        bodies,
        commits,
        cold,
        warm,
        changes,
        paused_changes,
        burst,
        burst_at_once,
        high_water_cold,
        high_water_warm,
        far,
        near,
        refusals,
    })
}
