//! The other processes: backends, and the relay with its capture rules.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, bail};
use portolan_engine::Driven;
use portolan_model::{Backend, Change, Family, Forwarding, Protocol, ServicePortName, Settings};
use portolan_relay::{RelayOptions, raise_descriptors};
use portolan_userspace::Userspace;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{PORTS, VIP, datagrams};

/// The core of the measured process.
pub(super) const PROXY_CORE: &str = "0";
const OTHERS_CORE: usize = 1;
/// Number of Services besides the measured ones.
const SERVICES: u16 = 1_000;
/// Number of threads that answer short connections.
const WORKERS: usize = 4;
/// Bytes of a response.
pub(super) const ANSWER: usize = 512;

/// The role of a process of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Serves the ports.
    Backend,
    /// Relays connections and datagrams to the virtual address.
    Relay,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Relay => "relay",
        }
    }
}

impl FromStr for Role {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Backend, Self::Relay].into_iter().find(|role| role.name() == text).context("no such role")
    }
}

/// Plays the role until the process is killed.
pub(crate) fn play(role: Role, backend: Option<IpAddr>) -> anyhow::Result<()> {
    let limit = raise_descriptors();
    match role {
        Role::Backend => serve(),
        Role::Relay => relay(backend.context("a backend")?, limit),
    }
}

/// Pins this thread to a core. Threads that it starts stay on the core, too.
pub(super) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // A machine with one core has no other.
    let _ = sched_setaffinity(None, &set);
}

/// Pins this thread to the core of clients and backends.
pub(super) fn pin_to_others() {
    pin(OTHERS_CORE);
}

fn relay(backend: IpAddr, descriptors: usize) -> anyhow::Result<()> {
    pin(0);
    let options = RelayOptions { flows_max: 100, ..RelayOptions::default() };
    let relay = portolan_relay::spawn(&[Family::Ipv4], options.within_descriptors(descriptors))?;
    let settings = Settings::plain(Family::Ipv4);
    let mut plane = Driven::new(settings.clone(), Userspace::open(settings, relay)?);
    let measured = PORTS.map(|port| (VIP, port, Protocol::Tcp));
    let measured = measured.into_iter().chain([(VIP, datagrams::PORT, Protocol::Udp)]);
    let others = (0..SERVICES).map(|number| {
        let [high, low] = number.to_be_bytes();
        (Ipv4Addr::new(10, 97, high, low), 80, Protocol::Tcp)
    });
    let changes: Vec<Change> =
        measured.chain(others).map(|(ip, port, protocol)| service(ip, port, protocol, backend)).collect();
    plane.apply(&changes)?;
    plane.resync()?;
    loop {
        thread::park();
    }
}

fn service(ip: Ipv4Addr, port: u16, protocol: Protocol, backend: IpAddr) -> Change {
    let [namespace, name, port_name] = ["bench", &ip.to_string(), &port.to_string()].map(Arc::from);
    let name = ServicePortName { namespace, service: name, port: port_name, protocol };
    let cluster = Box::new([Backend { address: backend, port, may_hairpin: false }]);
    let forwarding = Forwarding::plain((ip, port).into(), protocol, cluster);
    Change { name: Arc::new(name), family: Family::Ipv4, old: None, new: Some(Arc::new(forwarding)) }
}

fn serve() -> anyhow::Result<()> {
    pin_to_others();
    let [bulk, short, echo] =
        PORTS.map(|port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("a port of the backend"));
    let (bulk, short, echo) = (bulk?, Arc::new(short?), echo?);
    for _ in 0..WORKERS {
        let short = short.clone();
        thread::spawn(move || short.incoming().map_while(Result::ok).for_each(|stream| drop(answer(stream))));
    }
    thread::spawn(move || each(&bulk, pour));
    let datagrams = datagrams::backend()?;
    thread::spawn(move || datagrams::send_back(&datagrams));
    each(&echo, send_back);
    bail!("no more connections")
}

fn each(listener: &TcpListener, work: fn(TcpStream) -> std::io::Result<()>) {
    for stream in listener.incoming().map_while(Result::ok) {
        // Small stacks: there may be ten thousand threads.
        let _ = thread::Builder::new().stack_size(64 << 10).spawn(move || drop(work(stream)));
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut question = [0; 64];
    if stream.read(&mut question)? > 0 {
        stream.write_all(&[7; ANSWER])?;
    }
    Ok(())
}

fn pour(mut stream: TcpStream) -> std::io::Result<()> {
    let data = vec![7; 256 << 10];
    loop {
        stream.write_all(&data)?;
    }
}

fn send_back(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(buffer.get(..count).unwrap_or_default())?,
        }
    }
}
