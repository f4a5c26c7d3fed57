//! The measurements of one start of an agent, in order.

use std::time::Duration;

use anyhow::Context as _;

use super::agent::Agent;
use super::{Effort, Figures, Programs};
use crate::changes::{self, Burst};
use crate::connect::{self, Connections};
use crate::round_trips::{self, RoundTrips};
use crate::stage::Stage;
use crate::statistics::Sample;

/// The figures of one turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Time from the start of the process to the first connection through a cluster IP.
    pub(super) first_sync: Duration,
    /// Processor time until then.
    pub(super) first_processor: Duration,
    /// Single changes.
    pub(super) changes: Sample,
    /// Many changes at once. `None` if there are no Services to change.
    pub(super) burst: Option<Burst>,
    /// Maximum resident memory in bytes, after the changes.
    pub(super) high_water: u64,
    /// Connections to pods of another node.
    pub(super) connections: Connections,
    /// Requests to a pod of another node.
    pub(super) round_trips: RoundTrips,
}

/// Measures an agent from its start to its end. Returns `None` if its first sync takes too long.
pub(super) fn measure(
    programs: &Programs,
    effort: &Effort,
    stage: &Stage,
    figures: &Figures,
    burst_from: usize,
) -> anyhow::Result<Option<Turn>> {
    stage.apply(stage.moving(true))?;
    let mut agent = Agent::start(programs, figures.peer, figures.mode, stage)?;
    let turn = running(&mut agent, effort, stage, figures, burst_from)
        .with_context(|| format!("its log:\n{}", agent.log()))?;
    agent.stop()?;
    Ok(turn)
}

fn running(
    agent: &mut Agent,
    effort: &Effort,
    stage: &Stage,
    figures: &Figures,
    burst_from: usize,
) -> anyhow::Result<Option<Turn>> {
    let Some(first_sync) = agent.first_sync(stage, effort.first_sync)? else { return Ok(None) };
    let first_processor = agent.processor_time()?;
    forget_attempts(stage)?;
    let changes = changes::single(stage, effort.changes)?;
    let size = figures.size;
    let burst = (size.services > 0)
        .then(|| changes::burst(stage, &|| agent.processor_time(), size, burst_from, effort.burst))
        .transpose()?;
    let high_water = agent.high_water()?;
    let connections = connect::measure(stage, &stage.far, effort.connections)?;
    let round_trips = round_trips::measure(stage, &stage.far, effort.connections)?;
    Ok(Some(Turn { first_sync, first_processor, changes, burst, high_water, connections, round_trips }))
}

/// Empties the connection table of the node. An attempt to connect before there are rules leaves an entry without address
/// translation for two minutes, and a later connection from the same port would follow it.
fn forget_attempts(stage: &Stage) -> anyhow::Result<()> {
    stage.node().output("conntrack", &["-F"]).context("empty the connection table")?;
    Ok(())
}
