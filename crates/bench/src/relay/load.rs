//! The clients: their load and its times.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_relay::raise_descriptors;
use portolan_testkit::Namespace;

use super::roles::{ANSWER, pin_to_others};
use super::{PORTS, datagrams, float};
use crate::statistics::Sample;

/// Time for which each rate is measured.
const TIME: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);
/// Number of clients that open short connections at the same time.
const CLIENTS: usize = 16;
/// Number of requests whose round trips are timed.
const QUESTIONS: usize = 5_000;
/// Kernel clock ticks per second in `/proc` (`USER_HZ`).
const TICKS: f64 = 100.0;

/// The figures of one way.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) bytes_a_second: f64,
    pub(crate) connections_a_second: f64,
    /// Connections for each second of processor time of the measured process.
    pub(crate) connections_a_cpu_second: Option<f64>,
    /// Round-trip times of one byte on an open connection.
    pub(crate) latency: Sample,
    pub(crate) datagrams_a_second: f64,
    /// Answered datagrams for each second of processor time of the measured process.
    pub(crate) datagrams_a_cpu_second: Option<f64>,
}

/// Returns true if a backend answers at this address.
pub(super) fn answers(to: SocketAddr) -> bool {
    let [_, short, _] = PORTS;
    let Ok(mut stream) = TcpStream::connect(to) else { return false };
    let timeout = stream.set_read_timeout(Some(Duration::from_secs(1)));
    // A relay accepts connections even if their backend does not exist.
    let asked = to.port() == short || stream.write_all(b"?").is_ok();
    let asked = asked && (to.port() != short || stream.write_all(b"?").is_ok());
    timeout.is_ok() && asked && matches!(stream.read(&mut [0]), Ok(1))
}

/// Measures everything except idle connections.
pub(super) fn measure(client: &Namespace, to: IpAddr, process: Option<u32>) -> anyhow::Result<Figures> {
    let [bulk, short, echo] = PORTS.map(|port| SocketAddr::new(to, port));
    client.run(|| {
        pin_to_others();
        let bytes_a_second = stream(bulk)?;
        let latency = latency(echo)?;
        let seconds = (TIME + WARM_UP).as_secs_f64();
        let (connections, used) = using(process, || short_connections(short))?;
        let (datagrams_a_second, used_by_datagrams) =
            using(process, || datagrams::measure(SocketAddr::new(to, datagrams::PORT), TIME))?;
        Ok(Figures {
            bytes_a_second,
            connections_a_second: float(connections) / seconds,
            connections_a_cpu_second: used.map(|used| float(connections) / used),
            latency,
            datagrams_a_second,
            datagrams_a_cpu_second: used_by_datagrams
                .map(|used| datagrams_a_second * TIME.as_secs_f64() / used),
        })
    })?
}

/// Runs a load. Returns its result, and the processor time that the process used meanwhile in seconds.
fn using<T>(
    process: Option<u32>,
    load: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(T, Option<f64>)> {
    let before = process.map(processor_seconds).transpose()?;
    let result = load()?;
    let after = process.map(processor_seconds).transpose()?;
    Ok((result, after.zip(before).map(|(after, before)| after - before)))
}

fn stream(to: SocketAddr) -> anyhow::Result<f64> {
    let mut stream = TcpStream::connect(to)?;
    let mut buffer = vec![0; 1 << 20];
    let mut receive = |time: Duration| -> anyhow::Result<f64> {
        let (started, mut total) = (Instant::now(), 0.0);
        while started.elapsed() < time {
            total += float(stream.read(&mut buffer)?);
        }
        Ok(total / started.elapsed().as_secs_f64())
    };
    receive(WARM_UP)?;
    receive(TIME)
}

fn latency(to: SocketAddr) -> anyhow::Result<Sample> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::with_capacity(QUESTIONS);
    for number in 0..QUESTIONS + QUESTIONS / 10 {
        let started = Instant::now();
        stream.write_all(b"?")?;
        stream.read_exact(&mut [0])?;
        if number >= QUESTIONS / 10 {
            times.push(started.elapsed());
        }
    }
    Ok(times.into_iter().collect())
}

fn short_connections(to: SocketAddr) -> anyhow::Result<u64> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        short_connection(to)?;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        thread::sleep(TIME + WARM_UP);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().try_for_each(|client| client.join().ok().context("a client")?)
    })?;
    Ok(count.load(Ordering::Relaxed))
}

/// Opens a connection, sends a request and reads the response until the backend closes.
fn short_connection(to: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(b"?")?;
    let mut answer = [0; ANSWER + 1];
    let mut length = 0;
    loop {
        match stream.read(answer.get_mut(length..).unwrap_or_default())? {
            0 => break,
            count => length += count,
        }
    }
    anyhow::ensure!(length == ANSWER, "an answer of {length} bytes");
    Ok(())
}

/// Opens as many idle connections as descriptors allow. Returns their number and the result of `resident` with them.
pub(super) fn idle(
    client: &Namespace,
    to: IpAddr,
    wanted: usize,
    resident: impl Fn() -> anyhow::Result<u32> + Sync,
) -> anyhow::Result<(usize, u32)> {
    let [_, _, echo] = PORTS;
    // The relay needs two descriptors for each connection and some for itself, and reserves a part for other Services.
    let most = raise_descriptors().saturating_sub(1_600) / 10 * 3;
    let count = wanted.min(most);
    client.run(|| {
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            let mut stream = TcpStream::connect((to, echo))?;
            stream.write_all(b"?")?;
            stream.read_exact(&mut [0])?;
            held.push(stream);
        }
        Ok((held.len(), resident()?))
    })?
}

/// Returns the processor time that a process has used, in seconds.
fn processor_seconds(process: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // After the name, which ends with the last bracket, the state is the first field. The times are the 12th and 13th.
    let (_, fields) = stat.rsplit_once(')').context("stat")?;
    let times =
        fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().unwrap_or_default());
    Ok(times.sum::<f64>() / TICKS)
}
