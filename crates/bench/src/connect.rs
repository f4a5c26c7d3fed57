//! Measures the time of `connect()`: through a VIP, through a single rule, directly to the same pod, and if it is refused.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::stage::{self, EMPTY_VIP, Stage};
use crate::statistics::Sample;
use crate::steady::Steady;

/// Connections that are not measured: caches and tables warm up.
const WARM_UP: usize = 200;

/// The times of three ways to the pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections {
    /// Through the VIP of a Service.
    pub(crate) vip: Sample,
    /// Through one rule written by hand: the minimum cost of the kernel's address translation.
    pub(crate) rule: Sample,
    /// Directly to the same endpoints, in turn.
    pub(crate) direct: Sample,
}

/// The times of blocking `connect()`s to a Service without endpoints.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals {
    pub(crate) from_pod: Sample,
    pub(crate) from_node: Sample,
}

/// Measures `count` refused connections from a pod and as many from the node.
pub(crate) fn refusals(stage: &Stage, count: usize) -> anyhow::Result<Refusals> {
    let times = || (0..count).map(|_| refused(EMPTY_VIP)).collect::<anyhow::Result<Sample>>();
    let from_pod = stage.client().context("the client pod")?.run(times)??;
    Ok(Refusals { from_pod, from_node: stage.node().run(times)?? })
}

fn refused(to: SocketAddr) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let outcome = TcpStream::connect(to);
    let time = started.elapsed();
    match outcome {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(time),
        Err(error) => Err(error).with_context(|| format!("connect to {to}, which has no endpoints")),
        Ok(_) => bail!("{to} has no endpoints, but accepted a connection"),
    }
}

/// Measures `count` connections each way, in turn, so that other load on the machine affects all ways alike.
pub(crate) fn measure(stage: &Stage, to: &Steady, count: usize) -> anyhow::Result<Connections> {
    let client = stage.client().context("the client pod")?;
    to.with_rule(stage.node(), || client.run(|| in_turns(to, to.vip(), count))?)
}

/// Measures the same from outside of the cluster, to a node port with external traffic policy Local.
pub(crate) fn through_node_port(stage: &Stage, count: usize) -> anyhow::Result<Connections> {
    let to = &stage.near;
    to.with_rule(stage.node(), || stage.outside().run(|| in_turns(to, stage.node_port(), count))?)
}

fn in_turns(to: &Steady, vip: SocketAddr, count: usize) -> anyhow::Result<Connections> {
    let mut direct = to.direct().cycle();
    let mut times = [const { Vec::new() }; 3];
    for round in 0..WARM_UP.saturating_add(count) {
        let direct = direct.next().context("an endpoint")?;
        for (way, times) in [vip, to.rule(), direct].into_iter().zip(&mut times) {
            let time = timed(way)?;
            to.drain();
            if round >= WARM_UP {
                times.push(time);
            }
        }
    }
    let [vip, rule, direct] = times.map(Sample::from_iter);
    Ok(Connections { vip, rule, direct })
}

fn timed(to: SocketAddr) -> anyhow::Result<Duration> {
    let started = Instant::now();
    let stream = TcpStream::connect(to);
    let time = started.elapsed();
    stage::close(&stream.with_context(|| format!("connect to {to}"))?)?;
    Ok(time)
}
