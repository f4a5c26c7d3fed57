//! API servers with faults.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_testkit::Namespace;
use serde_json::json;

/// An answer that announces a list of 9,000 bytes, and ends before the first item.
pub(crate) const BREAKS_OFF: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n\
    {\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[";

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
    /// Responds to every list of Services or EndpointSlices with an empty one, to other lists with status 503, and to every
    /// watch with status 410 (Gone). Refuses Events.
    Empties,
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
            Fault::Lists(list) => respond(&mut stream, &String::from_utf8_lossy(&head), Some(list)),
            Fault::Empties => {
                let head = String::from_utf8_lossy(&head);
                respond(&mut stream, &head, empty_list(&head).as_deref());
            }
        }
    }
}

/// Responds to a request of this head with a list. Does not respond to requests other than GET.
fn respond(stream: &mut TcpStream, head: &str, list: Option<&str>) {
    const GONE: &str = r#"{"kind":"Status","code":410,"reason":"Expired"}"#;
    if !head.starts_with("GET ") {
        return;
    }
    let (status, body) = match list {
        _ if head.contains("watch=true") => ("410 Gone", GONE),
        Some(list) => ("200 OK", list),
        None => ("503 Service Unavailable", ""),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    drop(stream.write_all(answer.as_bytes()));
}

/// Returns an empty list for a request of all Services or all EndpointSlices.
fn empty_list(head: &str) -> Option<String> {
    let (kind, version) = match head.split([' ', '?']).nth(1)? {
        "/api/v1/services" => ("ServiceList", "v1"),
        "/apis/discovery.k8s.io/v1/endpointslices" => ("EndpointSliceList", "discovery.k8s.io/v1"),
        _ => return None,
    };
    let metadata = json!({"resourceVersion": "900"});
    Some(json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": []}).to_string())
}
