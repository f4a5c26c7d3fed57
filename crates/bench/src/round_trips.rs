//! Measures request and response on an open connection: through the cluster IP of a Service, through a single rule, and
//! directly to the same pod.
//!
//! Client and pods share one processor. On two, a request waits until the other processor wakes up, which takes ten times as
//! long as the rest, and the scheduler decides for each connection where its ends run.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_testkit::eventually_some;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::stage::{self, Stage};
use crate::statistics::Sample;
use crate::steady::Steady;

/// Requests that are not measured.
const WARM_UP: usize = 200;
/// Maximum time until the pod has a connection that the client has opened, and of one response.
const WITHIN: Duration = Duration::from_secs(10);

/// The times of one byte there and back.
#[derive(Debug, Clone, Default)]
pub(crate) struct RoundTrips {
    /// Through the VIP of a Service.
    pub(crate) vip: Sample,
    /// Through one rule written by hand: the minimum cost of the kernel's address translation.
    pub(crate) rule: Sample,
    /// Directly to one of its endpoints.
    pub(crate) direct: Sample,
}

/// Measures `count` requests each way, in turn, so that other load on the machine affects all ways alike.
pub(crate) fn measure(stage: &Stage, to: &Steady, count: usize) -> anyhow::Result<RoundTrips> {
    let client = stage.client().context("the client pod")?;
    to.with_rule(stage.node(), || client.run(|| in_turns(to, count))?)
}

fn in_turns(to: &Steady, count: usize) -> anyhow::Result<RoundTrips> {
    let direct = to.direct().next().context("an endpoint")?;
    let _one = OneProcessor::take()?;
    let mut connections = [open(to, to.vip())?, open(to, to.rule())?, open(to, direct)?];
    let mut times = [const { Vec::new() }; 3];
    for round in 0..WARM_UP.saturating_add(count) {
        for (connection, times) in connections.iter_mut().zip(&mut times) {
            let time = request(connection)?;
            if round >= WARM_UP {
                times.push(time);
            }
        }
    }
    connections.iter().try_for_each(stage::close)?;
    let [vip, rule, direct] = times.map(Sample::from_iter);
    Ok(RoundTrips { vip, rule, direct })
}

/// Keeps this thread, and those that it starts, on one processor. Dropped, it lets this thread go.
struct OneProcessor(CpuSet);

impl OneProcessor {
    fn take() -> anyhow::Result<Self> {
        let before = sched_getaffinity(None).context("the processors of a thread")?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one).context("one processor for a thread")?;
        Ok(Self(before))
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        // The processors were the thread's own before.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Opens a connection whose other end returns every byte.
fn open(to: &Steady, address: SocketAddr) -> anyhow::Result<TcpStream> {
    to.drain();
    let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let mut accepted = eventually_some(WITHIN, "the pod's end of a connection", || to.accept())?;
    accepted.set_nodelay(true)?;
    thread::spawn(move || {
        let mut byte = [0];
        // Ends with the connection.
        while accepted.read_exact(&mut byte).and_then(|()| accepted.write_all(&byte)).is_ok() {}
    });
    Ok(stream)
}

fn request(stream: &mut TcpStream) -> anyhow::Result<Duration> {
    let started = Instant::now();
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0])?;
    Ok(started.elapsed())
}
