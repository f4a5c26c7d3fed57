//! The time of `connect()`: through a VIP, and to the same pod direct.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::stage::{self, Stage};
use crate::statistics::Sample;

/// Connections that nobody times: caches and tables warm up.
const WARM_UP: usize = 200;

/// Both ways to the pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    /// Through the VIP of a Service.
    pub(crate) vip: Sample,
    /// To the pod's own address.
    pub(crate) direct: Sample,
}

/// Times as many connections each way, in turns, so that whatever else the machine does falls on both.
pub(crate) fn measure(stage: &Stage, count: usize) -> anyhow::Result<Connections> {
    let client = stage.client().context("the client pod")?;
    client.run(|| {
        let (vip, direct) = (stage::STEADY_VIP, stage.direct());
        for _ in 0..WARM_UP {
            timed(stage, vip)?;
            timed(stage, direct)?;
        }
        let mut times = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            times.0.push(timed(stage, vip)?);
            times.1.push(timed(stage, direct)?);
        }
        Ok(Connections { vip: times.0.into_iter().collect(), direct: times.1.into_iter().collect() })
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
