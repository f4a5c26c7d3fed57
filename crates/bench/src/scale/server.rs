//! The API server of all nodes, as a process in a namespace of its own: `portolan serve`, or a kube-apiserver.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_model::object::Kind;
use portolan_testkit::{ControlPlane, KubeApiserver, Namespace, PortolanProcess};
use portolan_watch::ClientSettings;
use serde_json::Value;
use tempfile::TempDir;

use super::fleet::KINDS;
use crate::stage::{Kubernetes, Writer};

/// Maximum time until a server is ready, and until it has ended.
const WITHIN: Duration = Duration::from_secs(180);
const PORT: u16 = 8001;
/// Connections that are not those of nodes.
const OTHER_CONNECTIONS: usize = 100;
/// The addresses at which nodes reach `portolan serve`. A connection to one of them also has it as its source, so
/// the server counts the nodes as three clients. It gives at most half of its connections to one client.
const ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// A server with its namespace.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) namespace: Namespace,
    kind: ServerKind,
}

#[derive(Debug)]
enum ServerKind {
    Portolan(Box<Portolan>),
    Kubernetes(Box<Kubernetes>),
}

/// `portolan serve`.
#[derive(Debug)]
struct Portolan {
    process: PortolanProcess,
    writer: Writer,
    binary: PathBuf,
    flags: Vec<String>,
    _folder: TempDir,
}

impl Server {
    /// Starts `portolan serve` with its objects in a file. Its limits allow all connections and watches of the nodes.
    pub(super) fn portolan(binary: &Path, nodes: usize) -> anyhow::Result<Self> {
        let (namespace, folder) = (namespace()?, TempDir::with_prefix("portolan-bench-")?);
        add_addresses(&namespace)?;
        let data = folder.path().join("data").to_string_lossy().into_owned();
        let connections = nodes.saturating_mul(KINDS.len()).saturating_add(OTHER_CONNECTIONS);
        let flags = [
            "serve".to_owned(),
            format!("--listen=127.0.0.1:{PORT}"),
            "--insecure-http".to_owned(),
            format!("--data-dir={data}"),
            format!("--max-connections={connections}"),
            format!("--max-watches={connections}"),
        ];
        let mut process = spawn(&namespace, binary, &flags)?;
        let writer =
            Writer::new(&namespace, ClientSettings { qps: -1.0, ..portolan_settings(Ipv4Addr::LOCALHOST) })?;
        wait_for(&mut process, &writer)?;
        let (binary, flags) = (binary.to_owned(), flags.to_vec());
        let server = Portolan { process, writer, binary, flags, _folder: folder };
        Ok(Self { namespace, kind: ServerKind::Portolan(Box::new(server)) })
    }

    /// Starts a kube-apiserver with its objects in etcd.
    pub(super) fn kubernetes(binaries: &ControlPlane) -> anyhow::Result<Self> {
        let namespace = namespace()?;
        let server = Kubernetes::start(binaries, &namespace, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)))?;
        Ok(Self { namespace, kind: ServerKind::Kubernetes(Box::new(server)) })
    }

    /// Returns the ways in which nodes reach it.
    pub(super) fn settings(&self) -> Vec<ClientSettings> {
        match &self.kind {
            ServerKind::Portolan(_) => ADDRESSES.map(portolan_settings).to_vec(),
            ServerKind::Kubernetes(server) => vec![ClientSettings {
                kubeconfig: Some(server.kubeconfig_path()),
                content_type: "application/json".to_owned(),
                ..ClientSettings::default()
            }],
        }
    }

    pub(super) fn load(&self, objects: Vec<Value>, namespaces: &[&str]) -> anyhow::Result<()> {
        self.writer().load(objects, namespaces)
    }

    pub(super) fn apply(&self, object: Value) -> anyhow::Result<()> {
        self.writer().apply(object)
    }

    /// Returns the current versions of the collections that a node follows.
    pub(super) fn versions(&self) -> anyhow::Result<Vec<(Kind, Box<str>)>> {
        let version = |kind| -> anyhow::Result<Option<(Kind, Box<str>)>> {
            let path = match kind {
                Kind::Service => "/api/v1/services",
                Kind::EndpointSlice => "/apis/discovery.k8s.io/v1/endpointslices",
                Kind::Node => "/api/v1/nodes",
                Kind::ServiceCidr => "/apis/networking.k8s.io/v1/servicecidrs",
            };
            let text = match self.writer().get(&format!("{path}?limit=1")) {
                // Kubernetes before 1.33 has no ServiceCIDRs.
                Err(error) if is_missing(&error) => return Ok(None),
                text => text?,
            };
            let list: Value = serde_json::from_str(&text)?;
            let version = list.pointer("/metadata/resourceVersion").and_then(Value::as_str);
            Ok(Some((kind, version.context("a list without a version")?.into())))
        };
        KINDS.into_iter().filter_map(|kind| version(kind).transpose()).collect()
    }

    pub(super) fn processor_time(&mut self) -> anyhow::Result<Duration> {
        self.process().processor_time().context("the processor time of the server")
    }

    pub(super) fn resident(&mut self) -> anyhow::Result<u64> {
        self.process().resident().context("the memory of the server")
    }

    /// Returns the bytes that went over the loopback, headers and acknowledgements included.
    pub(super) fn traffic(&self) -> anyhow::Result<u64> {
        let text = self.namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:"));
        let bytes = line.and_then(|line| line.split_whitespace().next()).and_then(|bytes| bytes.parse().ok());
        bytes.context("the counters of the loopback")
    }

    /// Ends the server with SIGTERM.
    pub(super) fn terminate(&mut self) -> anyhow::Result<()> {
        Ok(self.process().terminate(WITHIN).map(drop)?)
    }

    /// Ends the server with SIGKILL.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.process().kill().map(drop)?)
    }

    /// Starts the server again and waits until it is ready.
    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        match &mut self.kind {
            ServerKind::Portolan(server) => {
                server.process = spawn(&self.namespace, &server.binary, &server.flags)?;
                wait_for(&mut server.process, &server.writer)
            }
            ServerKind::Kubernetes(server) => server.start_again(&self.namespace),
        }
    }

    /// Resets all connections to the server, as a load balancer does that is replaced.
    pub(super) fn cut_connections(&self) -> anyhow::Result<()> {
        let port = match &self.kind {
            ServerKind::Portolan(_) => PORT,
            ServerKind::Kubernetes(_) => KubeApiserver::port(),
        };
        let filter = ["-K", "-H", "-n", "-t", "state", "established", "dport", "=", &format!(":{port}")];
        let cut = self.namespace.output("ss", &filter)?;
        ensure!(
            !cut.trim().is_empty(),
            "ss cannot end connections: the kernel lacks CONFIG_INET_DIAG_DESTROY"
        );
        Ok(())
    }

    fn writer(&self) -> &Writer {
        match &self.kind {
            ServerKind::Portolan(server) => &server.writer,
            ServerKind::Kubernetes(server) => server.writer(),
        }
    }

    fn process(&mut self) -> &mut PortolanProcess {
        match &mut self.kind {
            ServerKind::Portolan(server) => &mut server.process,
            ServerKind::Kubernetes(server) => server.process(),
        }
    }
}

fn namespace() -> anyhow::Result<Namespace> {
    let namespace = Namespace::new("api-server")?;
    namespace.ip("link set lo up\n")?;
    // Each node has four connections, and all those to a kube-apiserver come from one address.
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    namespace.run(|| std::fs::write(range, "10000 65535"))?.context(range)?;
    Ok(namespace)
}

/// Leads connections to the further [`ADDRESSES`] to the one that `portolan serve` listens on. The rules only exchange addresses, in
/// both directions, so that the kernel tracks no connections. `--listen` takes one address, and plain HTTP is only served on loopback.
fn add_addresses(namespace: &Namespace) -> anyhow::Result<()> {
    let [own, further @ ..] = ADDRESSES;
    let mut rules = "table ip addresses {\n\
        chain there { type filter hook output priority 0; }\n\
        chain back { type filter hook prerouting priority 0; }\n\
        }\n"
    .to_owned();
    for address in further {
        namespace.ip(&format!("address add {address}/32 dev lo\n"))?;
        let there = format!("ip daddr {address} tcp dport {PORT} ip daddr set {own}");
        let back = format!("ip daddr {address} tcp sport {PORT} ip saddr set {address}");
        writeln!(rules, "add rule ip addresses there {there}\nadd rule ip addresses back {back}")?;
    }
    namespace.output("nft", &[&rules])?;
    Ok(())
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 404)
}

fn portolan_settings(address: Ipv4Addr) -> ClientSettings {
    ClientSettings {
        master: Some(format!("http://{address}:{PORT}")),
        content_type: "application/json".to_owned(),
        ..ClientSettings::default()
    }
}

fn spawn(namespace: &Namespace, binary: &Path, flags: &[String]) -> anyhow::Result<PortolanProcess> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    PortolanProcess::start(namespace, binary, &flags).context("start portolan serve")
}

fn wait_for(process: &mut PortolanProcess, writer: &Writer) -> anyhow::Result<()> {
    Ok(process.wait_until(WITHIN, "a server that is ready", || writer.get("/readyz").is_ok())?)
}
