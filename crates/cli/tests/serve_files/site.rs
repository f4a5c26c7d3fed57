//! A server with plain HTTP in its own network namespace, and requests to it.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_testkit::{HttpClient, Namespace, PortolanProcess, eventually};
use serde_json::Value;

#[path = "../common/server.rs"]
pub(crate) mod server;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
/// Deadline of every wait: longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
pub(crate) const ADDRESS: &str = "127.0.0.1:8001";

/// The namespace. Everything in it stops when this is dropped.
pub(crate) struct Site {
    pub(crate) namespace: Namespace,
}

/// An HTTP response.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: String,
}

impl Site {
    pub(crate) fn new() -> Self {
        let namespace = Namespace::new("serve-files").unwrap();
        namespace.ip("link set lo up\n").unwrap();
        Self { namespace }
    }

    /// Starts the server. `before` goes before the binary on the command line, such as `unshare`.
    pub(crate) fn serve(&self, before: &[&str], arguments: &[&str]) -> PortolanProcess {
        let program = server::program();
        let own = [program.as_str(), "serve", "--listen", ADDRESS, "--insecure-http"];
        let all = [before, &own[..], arguments].concat();
        PortolanProcess::start(&self.namespace, all[0].as_ref(), &all[1..]).unwrap()
    }

    /// Waits until the server is ready.
    pub(crate) fn ready(&self, server: &mut PortolanProcess) {
        let ready = || self.try_ask("GET", "/readyz", "").is_some_and(|answer| answer.code == 200);
        server.wait_until(PATIENCE, "the server is ready", ready).unwrap();
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.try_ask(method, path, body).unwrap_or_else(|| panic!("{method} {path} was not answered"))
    }

    pub(crate) fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<Answer> {
        let address: SocketAddr = ADDRESS.parse().unwrap();
        let json = [("content-type", "application/json")];
        let headers: &[(&str, &str)] = if body.is_empty() { &[] } else { &json };
        let ask = || HttpClient::new(address, PATIENCE).request(method, path, headers, body.as_bytes());
        let answer = self.namespace.run(ask).unwrap().ok()?;
        Some(Answer { code: answer.status, body: String::from_utf8_lossy(&answer.body).into_owned() })
    }

    /// Returns the names of the objects at a path.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let list: Value = serde_json::from_str(&self.ask("GET", path, "").body).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }
}

/// Waits for a condition.
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(eventually(PATIENCE, what, condition).is_ok(), "never came true: {what}");
}
