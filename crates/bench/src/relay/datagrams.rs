//! Datagrams through each way: clients and the backend send several in one call, so that the way is what is measured.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use portolan_sock::datagrams::{Addresses, BATCH, Batch, send, together};

use super::float;

/// The UDP port of the backend.
pub(super) const PORT: u16 = 8004;
/// Bytes of a datagram.
const LENGTH: usize = 512;
/// Number of clients, each with a flow of its own.
const CLIENTS: usize = 4;
/// Datagrams of one client that are on the way at the same time.
const WINDOW: usize = 32;
/// How long a client waits for an answer before it sends again: a datagram may be lost.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns true if the backend answers at this address.
pub(super) fn answers(to: SocketAddr) -> bool {
    client(to).is_ok_and(|socket| socket.send(b"?").is_ok() && socket.recv(&mut [0; 1]).is_ok())
}

/// Sends datagrams, each of which is answered, for some time. Returns how many were answered a second.
pub(super) fn measure(to: SocketAddr, time: Duration) -> anyhow::Result<f64> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let started = Instant::now();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let socket = client(to)?;
                    while !stop.load(Ordering::Relaxed) {
                        count.fetch_add(exchange(&socket)?, Ordering::Relaxed);
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().try_for_each(|client| client.join().ok().context("a client")?)
    })?;
    Ok(float(count.load(Ordering::Relaxed)) / started.elapsed().as_secs_f64())
}

/// Answers every datagram with itself.
pub(super) fn send_back(socket: &UdpSocket) -> anyhow::Result<()> {
    let mut batch = Batch::default();
    loop {
        // Waits for the first one.
        socket.peek(&mut [0; 1])?;
        if batch.receive(socket).is_err() {
            continue;
        }
        let received: Vec<_> = batch.datagrams().collect();
        for of_one_client in received.chunk_by(|one, other| one.source() == other.source()) {
            let Some(client) = of_one_client.first().and_then(portolan_sock::datagrams::Datagram::source)
            else {
                continue;
            };
            let mut rest: &[IoSlice<'_>] =
                &of_one_client.iter().map(|it| IoSlice::new(it.data)).collect::<Vec<_>>();
            while !rest.is_empty() {
                let (first, others) = rest.split_at(together(rest));
                // A lost answer is asked for again.
                let _ = send(socket, first, Addresses::To(client));
                rest = others;
            }
        }
    }
}

/// Opens the backend's socket.
pub(super) fn backend() -> anyhow::Result<UdpSocket> {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("a port of the backend")
}

fn client(to: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Sends a window of datagrams and waits for the answers. Returns how many came.
fn exchange(socket: &UdpSocket) -> anyhow::Result<u64> {
    const { assert!(WINDOW <= BATCH) };
    let data = [7; LENGTH];
    send(socket, &[IoSlice::new(&data); WINDOW], Addresses::Connected)
        .map_err(|errno| anyhow!("send: {errno}"))?;
    let answered = (0..WINDOW).take_while(|_| socket.recv(&mut [0; LENGTH]).is_ok()).count();
    Ok(answered as u64)
}
