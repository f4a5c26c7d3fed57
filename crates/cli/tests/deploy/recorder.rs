//! An API server with minimal responses that records the requests.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use portolan_testkit::Namespace;
use serde_json::{Value, json};

/// The key of the node's taint.
pub(crate) const TAINT: &str = "portolan.dev/agent-not-ready";

type Permissions = Arc<Mutex<BTreeSet<(String, String, String)>>>;

/// A running recorder. Its threads wait for requests until the test process ends.
pub(crate) struct Recorder {
    address: SocketAddr,
    asked: Permissions,
}

impl Recorder {
    /// Listens on loopback in a namespace.
    pub(crate) fn start(namespace: &Namespace) -> Self {
        let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Permissions::default();
        let shared = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&stream, &shared));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the group, resource and verb of every request so far, as an authorizer sees them.
    pub(crate) fn permissions(&self) -> BTreeSet<(String, String, String)> {
        self.asked.lock().unwrap().clone()
    }
}

/// Responds to requests of one connection until it ends.
fn serve(stream: &TcpStream, asked: &Permissions) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (method, path) = request(&mut reader)?;
        let (group, resource) = group_and_resource(&path);
        let watch = path.contains("watch=true");
        let verb = match method.as_str() {
            "GET" if watch => "watch",
            "GET" if path.contains(&format!("/{resource}/")) => "get",
            "GET" => "list",
            "POST" => "create",
            "PATCH" => "patch",
            other => other,
        };
        asked.lock().unwrap().insert((group.clone(), resource.clone(), verb.to_owned()));
        let mut writer = stream;
        if watch && !path.contains("sendInitialEvents") {
            // An open watch without events.
            write!(
                writer,
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            .ok()?;
            let _ = reader.read(&mut [0]);
            return None;
        }
        let (status, body) = match verb {
            "watch" => {
                (400, json!({"kind": "Status", "apiVersion": "v1", "code": 400, "reason": "BadRequest"}))
            }
            "list" => (200, list(&group, &resource)),
            _ => (201, json!({"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {}})),
        };
        let body = body.to_string();
        let length = body.len();
        write!(
            writer,
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .ok()?;
    }
}

/// Returns the method and path of the next request. Skips its body.
fn request(reader: &mut BufReader<&TcpStream>) -> Option<(String, String)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok().filter(|length| *length > 0)?;
        let Some((name, value)) = header.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some((method, path))
}

/// Returns group and resource of `/api/v1/...` and `/apis/GROUP/VERSION/...`, with or without a namespace.
fn group_and_resource(path: &str) -> (String, String) {
    let words: Vec<&str> = path.split('?').next().unwrap().trim_start_matches('/').split('/').collect();
    let (group, rest) = if words[0] == "api" { ("", &words[2..]) } else { (words[1], &words[3..]) };
    let resource = match rest {
        ["namespaces", _, resource, ..] => (*resource).to_owned(),
        [resource, _, part] => format!("{resource}/{part}"),
        _ => rest[0].to_owned(),
    };
    (group.to_owned(), resource)
}

/// Returns a list with only the node, which has a taint.
fn list(group: &str, resource: &str) -> Value {
    let (version, kind) = match resource {
        "services" => ("v1".to_owned(), "ServiceList"),
        "nodes" => ("v1".to_owned(), "NodeList"),
        "endpointslices" => (format!("{group}/v1"), "EndpointSliceList"),
        _ => (format!("{group}/v1"), "ServiceCIDRList"),
    };
    let node = json!({
        "metadata": {"name": "node1", "uid": "1", "resourceVersion": "1"},
        "spec": {"podCIDRs": ["10.244.0.0/24"], "taints": [{"key": TAINT, "effect": "NoSchedule"}]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    });
    let items = if resource == "nodes" { vec![node] } else { Vec::new() };
    json!({"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items})
}
