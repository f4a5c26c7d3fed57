//! API servers with faults.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_testkit::Namespace;

/// The fault of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Accepts connections and never responds.
    Silent,
    /// Responds to every request with these bytes and closes the connection.
    Answers(&'static str),
    /// Responds to every list with this body and status 200, and to every watch with status 410 (Gone). Refuses
    /// Events.
    Lists(&'static str),
}

/// A server with a fault. It stops, with its connections, when dropped.
pub(crate) struct FaultyServer {
    namespace: Namespace,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    requests: AtomicUsize,
}

impl FaultyServer {
    /// Serves on loopback of a namespace.
    pub(crate) fn start(namespace: &Namespace, port: u16, fault: Fault) -> Self {
        let listener = super::listen(namespace, port);
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || serve(&listener, fault, &shared))
        };
        Self { namespace: namespace.clone(), address, shared, thread: Some(thread) }
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Wakes the thread. If this fails, the thread has ended.
        let _ = self.namespace.run(|| TcpStream::connect(self.address).map(drop));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, fault: Fault, shared: &Shared) {
    let mut silent = Vec::new();
    for stream in listener.incoming() {
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut head = [0; 4096];
        if !stream.read(&mut head).is_ok_and(|length| length > 0) {
            continue;
        }
        shared.requests.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Silent => silent.push(stream),
            Fault::Answers(answer) => drop(stream.write_all(answer.as_bytes())),
            Fault::Lists(list) => {
                let head = String::from_utf8_lossy(&head);
                if !head.starts_with("GET ") {
                    continue;
                }
                let is_watch = head.contains("watch=true");
                let gone = r#"{"kind":"Status","code":410,"reason":"Expired"}"#;
                let (status, body) = if is_watch { ("410 Gone", gone) } else { ("200 OK", list) };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\
                     Content-Length: {length}\r\n\r\n{body}"
                );
                drop(stream.write_all(answer.as_bytes()));
            }
        }
    }
}
