//! A TCP relay between the proxy and its API server that cuts connections with RST, as a middlebox does. It can answer the
//! requests for one collection with an error.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use portolan_testkit::{Namespace, TestkitError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::set_socket_linger;

/// The relay. It stops, with its connections, when dropped.
pub(crate) struct Cutter {
    namespace: Namespace,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), TestkitError>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of cuts. Connections that began before the latest cut are closed.
    cuts: AtomicUsize,
    /// Number of connections that were cut.
    cut: AtomicUsize,
    /// The request lines of all requests.
    requests: Mutex<Vec<String>>,
    /// The collection whose requests are answered with [`FAILURE`].
    failing: Mutex<Option<&'static str>>,
}

/// The answer of an API server that cannot read a collection from its store.
const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nouch\n";

impl Cutter {
    /// Relays from a free loopback port of the namespace to a server there.
    pub(crate) fn start(namespace: &Namespace, server: SocketAddr) -> Self {
        let listener = super::listen(namespace, 0);
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let accepting = Arc::clone(&shared);
        let thread = namespace.spawn_thread("cutter", move || accept(&listener, server, &accepting)).unwrap();
        Self { namespace: namespace.clone(), address, shared, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts all open connections.
    pub(crate) fn cut(&self) {
        self.shared.cuts.fetch_add(1, Ordering::SeqCst);
    }

    /// From now on, answers requests for this collection with an error and does not pass them on; with `None`, none.
    pub(crate) fn fail(&self, collection: Option<&'static str>) {
        *self.shared.failing.lock().unwrap() = collection;
    }

    /// Returns the request lines so far that name a collection.
    pub(crate) fn requests(&self, collection: &str) -> Vec<String> {
        let requests = self.shared.requests.lock().unwrap();
        requests.iter().filter(|line| is_for(line, collection)).cloned().collect()
    }

    /// Returns the number of connections that were cut.
    pub(crate) fn connections_cut(&self) -> usize {
        self.shared.cut.load(Ordering::SeqCst)
    }
}

impl Shared {
    /// Records the request line. A GET request fits into one read. Returns true if it is to fail.
    fn note(&self, bytes: &[u8]) -> bool {
        let text = String::from_utf8_lossy(bytes);
        let Some(line) = text.lines().next().filter(|line| line.starts_with("GET ")) else { return false };
        self.requests.lock().unwrap().push(line.to_owned());
        self.failing.lock().unwrap().is_some_and(|collection| is_for(line, collection))
    }
}

/// Returns true if a request line names this collection.
fn is_for(line: &str, collection: &str) -> bool {
    line.contains(&format!("/{collection}?"))
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread. If this fails, the thread has ended.
        let _ = self.namespace.run(|| TcpStream::connect(self.address).map(drop));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<Shared>) {
    let mut connections = Vec::new();
    for client in listener.incoming() {
        if shared.stop.load(Ordering::SeqCst) {
            break;
        }
        let cuts = shared.cuts.load(Ordering::SeqCst);
        let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { continue };
        let shared = Arc::clone(shared);
        connections.push(std::thread::spawn(move || {
            // Only connections that were cut count. Other errors are ignored.
            if let Ok(true) = relay(client, server, &shared, cuts) {
                shared.cut.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for connection in connections {
        drop(connection.join());
    }
}

/// Relays a connection until it ends. Returns true if it was cut.
fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    shared: &Shared,
    cuts: usize,
) -> std::io::Result<bool> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut bytes = vec![0; 64 << 10];
    // How often the cut counter is checked.
    let soon = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    loop {
        if shared.cuts.load(Ordering::SeqCst) != cuts {
            set_socket_linger(&client, Some(std::time::Duration::ZERO))?;
            return Ok(true);
        }
        let ready = {
            let mut both = [PollFd::new(&client, PollFlags::IN), PollFd::new(&server, PollFlags::IN)];
            poll(&mut both, Some(&soon))?;
            [!both[0].revents().is_empty(), !both[1].revents().is_empty()]
        };
        if ready[0] {
            let length = client.read(&mut bytes)?;
            if length == 0 {
                return Ok(false);
            }
            if shared.note(&bytes[..length]) {
                client.write_all(FAILURE.as_bytes())?;
            } else {
                server.write_all(&bytes[..length])?;
            }
        }
        if ready[1] && forward(&mut server, &mut client, &mut bytes)? == 0 {
            return Ok(false);
        }
    }
}

/// Returns the number of forwarded bytes, 0 at the end of the stream.
fn forward(from: &mut TcpStream, to: &mut TcpStream, bytes: &mut [u8]) -> std::io::Result<usize> {
    let length = from.read(bytes)?;
    to.write_all(&bytes[..length])?;
    Ok(length)
}
