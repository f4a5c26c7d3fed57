//! The time of `connect()`: through a VIP, through a single rule, and to the same pod direct.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::stage::{self, Stage};
use crate::statistics::Sample;

/// Connections that nobody times: caches and tables warm up.
const WARM_UP: usize = 200;

/// Three ways to the pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    /// Through the VIP of a Service.
    pub(crate) vip: Sample,
    /// Through one rule written by hand: the least that the kernel's address translation costs.
    pub(crate) rule: Sample,
    /// To the same endpoints direct, in turns.
    pub(crate) direct: Sample,
}

/// Times as many connections each way, in turns, so that whatever else the machine does falls on all of them.
pub(crate) fn measure(stage: &Stage, count: usize) -> anyhow::Result<Connections> {
    stage.add_rule()?;
    let client = stage.client().context("the client pod")?;
    client.run(|| {
        let mut direct = stage.direct().cycle();
        let mut times = [const { Vec::new() }; 3];
        for round in 0..WARM_UP.saturating_add(count) {
            let ways = [Some(stage::STEADY_VIP), Some(stage::RULE_VIP), direct.next()];
            for (to, times) in ways.into_iter().zip(&mut times) {
                let time = timed(stage, to.context("an endpoint")?)?;
                if round >= WARM_UP {
                    times.push(time);
                }
            }
        }
        let [vip, rule, direct] = times.map(Sample::from_iter);
        Ok(Connections { vip, rule, direct })
    })?
}

fn timed(stage: &Stage, to: SocketAddr) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let stream = TcpStream::connect(to);
    let time = started.elapsed();
    stage::close(&stream.with_context(|| format!("connect to {to}"))?)?;
    stage.drain();
    Ok(time)
}
