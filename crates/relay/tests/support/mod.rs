//! A test bed: a namespace with a relay, a Service, and backends of several kinds.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use portolan_model::{Backend, Change, Family, Forwarding, Protocol, ServicePortName};
use portolan_relay::{Counters, Handle, Ports, RelayOptions};
use portolan_testkit::{Namespace, eventually};

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// An address that never answers: packets to it vanish in an interface without a peer that responds.
pub(crate) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), 80);

/// A relay in a namespace of its own, with one Service whose frontend is a listener's address.
pub(crate) struct Bed {
    pub(crate) namespace: Namespace,
    pub(crate) relay: Handle,
    pub(crate) frontend: SocketAddr,
    protocol: Protocol,
    old: Option<Arc<Forwarding>>,
}

impl Bed {
    pub(crate) fn new(protocol: Protocol, options: RelayOptions) -> Self {
        Self::with(Family::Ipv4, protocol, options)
    }

    pub(crate) fn with(family: Family, protocol: Protocol, options: RelayOptions) -> Self {
        let namespace = Namespace::new("relay").unwrap();
        let hole = "link set lo up\nlink add hole type veth peer name end\nlink set end up\nlink set hole arp off up\n\
                    addr add 10.99.1.1/32 dev hole\nroute add 10.99.0.0/24 dev hole";
        namespace.ip(hole).unwrap();
        let relay = namespace.run(|| portolan_relay::spawn(&[family], options)).unwrap().unwrap();
        let loopback: IpAddr = match family {
            Family::Ipv4 => Ipv4Addr::LOCALHOST.into(),
            Family::Ipv6 => Ipv6Addr::LOCALHOST.into(),
        };
        let frontend = (loopback, Ports::default().cluster).into();
        Self { namespace, relay, frontend, protocol, old: None }
    }

    /// Sets the Service's backends.
    pub(crate) fn backends(&mut self, backends: &[SocketAddr]) {
        self.service(backends, None);
    }

    pub(crate) fn service(&mut self, backends: &[SocketAddr], affinity: Option<u32>) {
        let cluster = sorted(backends);
        let new = Forwarding { cluster, affinity, ..self.forwarding(self.frontend) };
        let old = self.old.replace(Arc::new(new));
        self.apply("web", old, self.old.clone());
    }

    /// Adds another Service at the listener of the other scope. Returns its frontend.
    pub(crate) fn other_service(&self, backends: &[SocketAddr]) -> SocketAddr {
        let frontend = (Ipv4Addr::LOCALHOST, Ports::default().local).into();
        let new = Forwarding { local: sorted(backends), ..self.forwarding(frontend) };
        self.apply("other", None, Some(Arc::new(new)));
        frontend
    }

    /// Gives the frontend to another Service with these backends. The first one keeps its backends, at another address.
    #[allow(dead_code, reason = "only for datagrams")]
    pub(crate) fn hand_over(&mut self, backends: &[SocketAddr]) {
        let elsewhere = (Ipv4Addr::new(10, 96, 0, 1), 80).into();
        let cluster = self.old.as_ref().map(|old| old.cluster.clone()).unwrap_or_default();
        let moved = Forwarding { cluster, ..self.forwarding(elsewhere) };
        let old = self.old.replace(Arc::new(moved));
        self.apply("web", old, self.old.clone());
        let new = Forwarding { cluster: sorted(backends), ..self.forwarding(self.frontend) };
        self.apply("other", None, Some(Arc::new(new)));
    }

    fn forwarding(&self, frontend: SocketAddr) -> Forwarding {
        Forwarding::plain(frontend, self.protocol, Box::default())
    }

    fn apply(&self, name: &str, old: Option<Arc<Forwarding>>, new: Option<Arc<Forwarding>>) {
        let [namespace, service, port] = ["default", name, ""].map(Arc::from);
        let name = Arc::new(ServicePortName { namespace, service, port, protocol: self.protocol });
        let family = Family::of(self.frontend.ip());
        self.relay.apply(family, vec![Change { name, family, old, new }]);
    }

    /// Opens a TCP listener in the namespace.
    pub(crate) fn listen(&self) -> TcpListener {
        self.namespace.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap().unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        self.connect_to(self.frontend)
    }

    pub(crate) fn connect_to(&self, frontend: SocketAddr) -> TcpStream {
        let stream = self.namespace.run(|| TcpStream::connect(frontend)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.relay.counters()
    }

    /// Waits until a counter has a value.
    pub(crate) fn wait_for(&self, what: &str, counter: impl Fn(&Counters) -> &AtomicU64, value: u64) {
        let done = || counter(self.counters()).load(Ordering::Relaxed) == value;
        let waited = eventually(PATIENCE, what, done);
        let last = counter(self.counters()).load(Ordering::Relaxed);
        assert!(waited.is_ok(), "{what}: {last} instead of {value}");
    }
}

fn sorted(backends: &[SocketAddr]) -> Box<[Backend]> {
    let backend =
        |socket: &SocketAddr| Backend { address: socket.ip(), port: socket.port(), may_hairpin: false };
    let mut sorted: Box<[Backend]> = backends.iter().map(backend).collect();
    sorted.sort_unstable();
    sorted
}

/// Serves every connection of a listener with `work`, each on a thread of its own, until the process ends.
pub(crate) fn serve(listener: TcpListener, work: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let address = listener.local_addr().unwrap();
    let work = Arc::new(work);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let work = work.clone();
            std::thread::spawn(move || work(stream));
        }
    });
    address
}

/// Sends its name, one byte, then echoes every byte.
pub(crate) fn echo(listener: TcpListener, name: u8) -> SocketAddr {
    serve(listener, move |mut stream| {
        let _ = stream.write_all(&[name]);
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
    })
}

/// Connects and waits for the backend's first byte. A reset may come during the handshake or later.
pub(crate) fn admitted(bed: &Bed) -> std::io::Result<TcpStream> {
    let mut stream = bed.namespace.run(|| TcpStream::connect(bed.frontend)).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    name(&mut stream).map(|_| stream)
}

/// Reads the name that an echo server sends first.
pub(crate) fn name(stream: &mut TcpStream) -> std::io::Result<u8> {
    let mut byte = [0];
    stream.read_exact(&mut byte).map(|()| byte[0])
}
