//! A small blocking HTTP client over loopback, so that the tests see the bytes that any client sees.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test program uses a part of it")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use portolan_serve::{Config, RunningServer, Server};
use serde_json::{Value, json};

/// Deadline of each step of a test. Only a failure takes longer.
pub const DEADLINE: Duration = Duration::from_secs(120);

pub const SERVICES: &str = "/api/v1/namespaces/default/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

pub fn start(config: Config) -> RunningServer {
    Server::start(config).unwrap()
}

pub struct Response {
    pub code: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Asserts the code and returns the body.
    pub fn expect(&self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text());
        self.json()
    }

    /// Asserts a Status with this code and reason; returns its message.
    pub fn refused(&self, code: u16, reason: &str) -> String {
        let status = self.expect(code);
        assert_eq!(
            (&status["kind"], &status["code"], &status["reason"]),
            (&json!("Status"), &json!(code), &json!(reason))
        );
        status["message"].as_str().unwrap().to_owned()
    }
}

/// Sends one request on its own connection.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut reader = send(address, method, path, headers, body);
    let (code, headers) = read_head(&mut reader);
    let mut body = Vec::new();
    let length =
        headers.iter().find(|(key, _)| key == "content-length").map(|(_, value)| value.parse().unwrap());
    match length {
        Some(length) => {
            body.resize(length, 0);
            reader.read_exact(&mut body).unwrap();
        }
        None => {
            while let Some(chunk) = read_chunk(&mut reader) {
                body.extend(chunk);
            }
        }
    }
    Response { code, headers, body }
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    request(address, "GET", path, &[], b"")
}

pub fn send_json(address: SocketAddr, method: &str, path: &str, body: &Value) -> Response {
    let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    request(address, method, path, &[("content-type", media_type)], body.to_string().as_bytes())
}

pub fn delete(address: SocketAddr, path: &str) -> Response {
    request(address, "DELETE", path, &[], b"")
}

pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A server that has refused the body closes early. The test checks its response.
    let _ = stream.write_all(body);
    BufReader::new(stream)
}

pub fn read_head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "connection closed before the headers");
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let code = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines[1..].iter().map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_lowercase(), value.to_owned())
    });
    (code, headers.collect())
}

/// Returns the next chunk of a chunked body; `None` at its end.
fn read_chunk(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut size = String::new();
    // A connection that closes in the middle of a body has no clean end.
    assert!(reader.read_line(&mut size).unwrap() > 0, "connection closed within a body");
    let size = usize::from_str_radix(size.trim_end(), 16).unwrap();
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).unwrap();
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}

/// A running watch.
pub struct Watch {
    reader: BufReader<TcpStream>,
    headers: Vec<(String, String)>,
    pending: Vec<u8>,
}

impl Watch {
    /// Starts a watch. Returns once the headers have arrived.
    pub fn start(address: SocketAddr, path: &str) -> Self {
        Self::start_with(address, path, &[])
    }

    /// Starts a watch with request headers.
    pub fn start_with(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut reader = send(address, "GET", path, headers, b"");
        let (code, headers) = read_head(&mut reader);
        assert_eq!(code, 200);
        Self { reader, headers, pending: Vec::new() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.pending.len() < count {
            self.pending.extend(read_chunk(&mut self.reader).expect("more of the watch"));
        }
        self.pending.drain(..count).collect()
    }

    /// Returns the next event; `None` once the server has ended the watch.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Some(Event(serde_json::from_slice(&line).unwrap()));
            }
            self.pending.extend(read_chunk(&mut self.reader)?);
        }
    }

    pub fn expect(&mut self) -> Event {
        self.next().expect("an event")
    }

    /// Returns the type and name of the next `count` events.
    pub fn brief(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.expect().brief()).collect()
    }
}

pub struct Event(pub Value);

impl Event {
    pub fn kind(&self) -> &str {
        self.0["type"].as_str().unwrap()
    }

    pub fn name(&self) -> &str {
        self.0["object"]["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn revision(&self) -> u64 {
        revision(&self.0["object"])
    }

    pub fn brief(&self) -> String {
        format!("{} {}", self.kind(), self.name()).trim_end().to_owned()
    }
}

pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

pub fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}})
}

pub fn labelled(name: &str, label: &str) -> Value {
    let mut service = service(name);
    service["metadata"]["labels"] = json!({"app": label});
    service
}

pub fn slice(name: &str, endpoints: usize) -> Value {
    let endpoints: Vec<Value> = (0..endpoints)
        .map(|number| {
            json!({"addresses": [format!("10.1.{}.{}", number / 250, number % 250 + 1)], "conditions": {"ready": true}})
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "endpoints": endpoints, "ports": [{"port": 8080}],
    })
}

/// Waits until the condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "never came true: {what}");
        std::thread::yield_now();
    }
}
