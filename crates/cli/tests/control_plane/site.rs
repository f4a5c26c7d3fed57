//! A network namespace with `portolan serve` processes and optionally an etcd. All of them can be killed and
//! restarted at the same address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_testkit::{HttpClient, Namespace, PortolanProcess, etcd, eventually};
use tempfile::TempDir;

use crate::common::server;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
/// Deadline of every wait: longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The tools that the Makefile provides: names separated by spaces.
const PROVIDED: &str = "PORTOLAN_TEST_TOOLS";
const FIRST_PORT: u16 = 8001;

/// The store of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backing {
    /// The file of one server.
    File,
    /// etcd, shared by this many servers.
    Etcd(u16),
}

/// The namespace and its processes. They stop when this is dropped.
pub(crate) struct Site {
    pub(crate) namespace: Namespace,
    servers: Vec<Mutex<PortolanProcess>>,
    arguments: Vec<Vec<String>>,
    etcd: Option<(PathBuf, Mutex<PortolanProcess>)>,
    folder: TempDir,
}

impl Site {
    /// Starts everything and waits until each server responds. Returns `None` if etcd is needed and missing.
    pub(crate) fn start(backing: Backing, arguments: &[&str]) -> Option<Self> {
        let program = match backing {
            Backing::File => None,
            Backing::Etcd(_) => Some(tool("etcd")?),
        };
        let namespace = Namespace::new("control-plane").unwrap();
        namespace.ip("link set lo up\n").unwrap();
        let folder = TempDir::new().unwrap();
        let etcd = program.map(|program| {
            let process = start_etcd(&namespace, &program, folder.path());
            (program, Mutex::new(process))
        });
        let count = if let Backing::Etcd(count) = backing { count } else { 1 };
        let mut site = Self { namespace, servers: Vec::new(), arguments: Vec::new(), etcd, folder };
        site.wait_for_etcd();
        for port in (FIRST_PORT..).take(usize::from(count)) {
            let mut all = vec!["serve".to_owned(), "--listen".to_owned(), format!("127.0.0.1:{port}")];
            all.extend(["--insecure-http".to_owned(), "--data-dir".to_owned(), site.data_dir()]);
            if site.has_etcd() {
                all.extend(["--etcd-servers".to_owned(), etcd::URL.to_owned()]);
            }
            all.extend(arguments.iter().map(|&argument| argument.to_owned()));
            site.servers.push(Mutex::new(start_server(&site.namespace, &all)));
            site.arguments.push(all);
        }
        (0..site.servers.len()).for_each(|index| site.wait_for(index));
        Some(site)
    }

    /// Returns the addresses of the servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        (FIRST_PORT..).take(self.servers.len()).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    /// Returns a folder for the test's own files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills a server with SIGKILL, like a crash, and restarts it.
    pub(crate) fn crash(&self, index: usize) {
        let mut server = self.server(index);
        let ended = server.ended();
        assert!(ended.is_none(), "a server ended by itself, {ended:?}: {}", server.output());
        server.kill().unwrap();
        drop(server);
        self.restart(index);
    }

    /// Starts a server that was killed.
    pub(crate) fn restart(&self, index: usize) {
        *self.server(index) = start_server(&self.namespace, &self.arguments[index]);
    }

    /// Does the same with etcd.
    pub(crate) fn crash_etcd(&self) {
        let (program, process) = self.etcd.as_ref().unwrap();
        let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill().unwrap();
        *process = start_etcd(&self.namespace, program, self.folder.path());
        drop(process);
    }

    /// Kills etcd. [`Self::crash_etcd`] restarts it.
    pub(crate) fn kill_etcd(&self) {
        let (_, process) = self.etcd.as_ref().unwrap();
        process.lock().unwrap_or_else(PoisonError::into_inner).kill().unwrap();
    }

    /// Sends a request to a server. Returns status and body, or `None` without a response.
    pub(crate) fn ask(&self, index: usize, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let address = self.addresses()[index];
        let json = [("content-type", "application/json")];
        let ask = || HttpClient::new(address, PATIENCE).request(method, path, &json, body.as_bytes());
        let answer = self.namespace.run(ask).unwrap().ok()?;
        Some((answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
    }

    /// Returns true if there is an etcd.
    pub(crate) fn has_etcd(&self) -> bool {
        self.etcd.is_some()
    }

    /// Returns the process of a server.
    pub(crate) fn server(&self, index: usize) -> MutexGuard<'_, PortolanProcess> {
        self.servers[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a server responds.
    pub(crate) fn wait_for(&self, index: usize) {
        let address = self.addresses()[index];
        let answers = self.namespace.run(|| {
            let mut client = HttpClient::new(address, PATIENCE);
            eventually(PATIENCE, "an answer", || {
                client.request("GET", "/api/v1/namespaces", &[], b"").is_ok_and(|answer| answer.status == 200)
            })
        });
        assert!(answers.unwrap().is_ok(), "{address} does not answer: {}", self.server(index).output());
    }

    fn data_dir(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_owned()
    }

    fn wait_for_etcd(&self) {
        let Some((_, process)) = &self.etcd else { return };
        let is_healthy = || {
            let mut client = HttpClient::new(SocketAddr::from(([127, 0, 0, 1], etcd::PORT)), PATIENCE);
            let answer = client.request("GET", "/health", &[], b"");
            answer.is_ok_and(|answer| String::from_utf8_lossy(&answer.body).contains("\"true\""))
        };
        let ready = self.namespace.run(|| eventually(PATIENCE, "etcd", is_healthy)).unwrap();
        assert!(ready.is_ok(), "etcd does not answer: {}", process.lock().unwrap().output());
    }
}

/// Returns a program of `PATH`. Fails if it is missing but the Makefile provides it.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        let provided = std::env::var(PROVIDED).unwrap_or_default();
        assert!(
            !provided.split(' ').any(|tool| tool == name),
            "{name} is not there, although {PROVIDED} names it"
        );
        eprintln!("{name} is not installed: left out");
    }
    found
}

fn start_server(namespace: &Namespace, arguments: &[String]) -> PortolanProcess {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    PortolanProcess::start(namespace, server::program().as_ref(), &arguments).unwrap()
}

fn start_etcd(namespace: &Namespace, program: &Path, folder: &Path) -> PortolanProcess {
    etcd::start(namespace, program, &folder.join("etcd")).unwrap()
}
