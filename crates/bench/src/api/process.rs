//! The server under test, in a network namespace of its own, with etcd beside it if needed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_testkit::{HttpClient, Namespace, PortolanProcess, etcd, eventually};
use tempfile::TempDir;

/// Maximum time to wait for any response.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
const ETCD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), etcd::PORT);

/// A running server. When dropped, it ends and its state is removed.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) namespace: Namespace,
    pub(super) server: PortolanProcess,
    arguments: Vec<String>,
    _etcd: Option<PortolanProcess>,
    _folder: TempDir,
}

impl Host {
    /// Starts a server with its objects in a file.
    pub(super) fn embedded(binary: &Path) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        Self::start(binary, namespace()?, None, folder, &[])
    }

    /// Starts a server with its objects in etcd.
    pub(super) fn on_etcd(binary: &Path, etcd: &Path) -> anyhow::Result<Self> {
        let (namespace, folder) = (namespace()?, TempDir::new()?);
        let etcd = etcd::start(&namespace, etcd, &folder.path().join("etcd"))?;
        wait_for(&namespace, ETCD, "/health", "etcd")?;
        Self::start(binary, namespace, Some(etcd), folder, &["--etcd-servers", etcd::URL])
    }

    fn start(
        binary: &Path,
        namespace: Namespace,
        etcd: Option<PortolanProcess>,
        folder: TempDir,
        store: &[&str],
    ) -> anyhow::Result<Self> {
        let mut arguments: Vec<String> = vec![binary.to_string_lossy().into_owned()];
        let data = folder.path().join("data").to_string_lossy().into_owned();
        arguments.extend(["serve", "--listen"].map(str::to_owned));
        arguments.extend([ADDRESS.to_string(), "--insecure-http".to_owned(), "--data-dir".to_owned(), data]);
        arguments.extend(store.iter().map(|&text| text.to_owned()));
        let server = spawn(&namespace, &arguments)?;
        wait_for(&namespace, ADDRESS, "/readyz", "the server")?;
        Ok(Self { namespace, server, arguments, _etcd: etcd, _folder: folder })
    }

    /// Kills the server, starts it again and returns the time until it is ready.
    pub(super) fn restart(&mut self) -> anyhow::Result<Duration> {
        self.server.kill()?;
        let begin = Instant::now();
        self.server = spawn(&self.namespace, &self.arguments)?;
        wait_for(&self.namespace, ADDRESS, "/readyz", "the server")?;
        Ok(begin.elapsed())
    }

    /// Returns a client, for use on a thread in the namespace.
    pub(super) fn client() -> HttpClient {
        HttpClient::new(ADDRESS, PATIENCE)
    }

    /// Returns the server's address.
    pub(super) fn address() -> SocketAddr {
        ADDRESS
    }

    /// Creates objects, all on one connection.
    pub(super) fn create(&self, requests: Vec<Vec<u8>>) -> anyhow::Result<()> {
        self.namespace.run(|| {
            let mut client = Self::client();
            for request in requests {
                let answer = client.send(&request)?;
                ensure!(
                    answer.status == 201,
                    "a create was answered with {}",
                    String::from_utf8_lossy(&answer.body)
                );
            }
            Ok(())
        })?
    }
}

fn namespace() -> anyhow::Result<Namespace> {
    let namespace = Namespace::new("api-server")?;
    namespace.ip("link set lo up\n")?;
    Ok(namespace)
}

fn spawn(namespace: &Namespace, arguments: &[String]) -> anyhow::Result<PortolanProcess> {
    let (program, rest) = arguments.split_first().context("a program")?;
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    Ok(PortolanProcess::start(namespace, program.as_ref(), &rest)?)
}

fn wait_for(namespace: &Namespace, address: SocketAddr, path: &str, what: &str) -> anyhow::Result<()> {
    namespace.run(|| {
        let mut client = HttpClient::new(address, PATIENCE);
        let answers = || client.request("GET", path, &[], b"").is_ok_and(|answer| answer.status == 200);
        eventually(PATIENCE, what, answers)
    })??;
    Ok(())
}
