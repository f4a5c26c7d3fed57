//! A cluster of one node with a real binary: a [`World`], an API server inside the node's namespace, and a program that runs
//! the node agent.
//!
//! Owns: the [`Cluster`], the API objects that its tests use ([`objects`]), backups of its API server ([`Backup`]), the waits for
//! what its proxy does.
//!
//! In: the program ([`Agent`]) and the fields of its configuration. Out: the processes, and what clients of Services reach.
//!
//! Must not know: how the modes write rules.
//!
//! Everything stops when the values are dropped, even if a test fails.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests: what fails here fails the test"
)]

mod backup;
pub mod http;
pub mod objects;

use std::collections::BTreeSet;
use std::fs;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use portolan_serve::{
    Api, ApiConfig, CommitError, Config, Draft, Preconditions, Resource, RunningServer, Server, Target,
    Transaction, WriteOptions, json,
};
use portolan_testkit::{
    Namespace, Pod, PortolanProcess, Probe, ProbeResult, Protocol, World, eventually, probe_many,
};
use serde_json::Value;
use tempfile::TempDir;

pub use backup::Backup;

/// A program that runs the node agent.
pub trait Agent {
    /// Its path. A test names it with `env!("CARGO_BIN_EXE_...")`.
    const BINARY: &'static str;
    /// The arguments in front of those of the node agent.
    const SUBCOMMAND: &'static [&'static str];
}

/// The name of the node.
pub const NODE: &str = "node1";
/// Deadline of every wait: longer than anything takes on a busy machine. Promised times are measured separately.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// The proxy's log message for each family when the kernel has its whole state.
pub const IN_SYNC: &str = "compared with the kernel and in sync";
/// The proxy's log message for each family when another mode has replaced one.
pub const COMPLETE: &str = "the rules of this mode are complete and have taken over";
/// The port of every backend.
pub const BACKEND_PORT: u16 = 8080;

/// Differences from the default configuration: fields of a `KubeProxyConfiguration` as lines of YAML.
#[derive(Debug, Clone, Copy)]
pub struct Proxy<'a> {
    /// The lines.
    pub yaml: &'a str,
    /// The address of the API server.
    pub master: SocketAddr,
}

/// A world with an API server in its node. The program `A` runs the node agent.
pub struct Cluster<A> {
    /// The node, its pods, a pod of another node, and a client.
    pub world: World,
    /// The objects of the API server.
    pub api: Arc<Api>,
    /// The address of the API server, which is reachable on the node.
    pub address: SocketAddr,
    server: Option<RunningServer>,
    config: Config,
    folder: TempDir,
    agent: PhantomData<A>,
}

impl<A: Agent> Default for Cluster<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Agent> Cluster<A> {
    /// Creates two pods on the node and one on another, each a backend in both families. The API has the Node object.
    pub fn new() -> Self {
        Self::with(true)
    }

    /// Does the same as [`Cluster::new`]. The API stores objects without validation.
    pub fn without_validation() -> Self {
        Self::with(false)
    }

    fn with(validate: bool) -> Self {
        let world = world();
        let listener = listen(world.node().namespace(), 0);
        let address = listener.local_addr().unwrap();
        let service_ranges = "10.96.0.0/16,fd00:96::/112".parse().unwrap();
        let config = Config {
            api: ApiConfig { service_ranges, validate, ..ApiConfig::default() },
            ..Config::default()
        };
        let server = Server::start_on(config.clone(), listener).unwrap();
        let api = Arc::clone(server.api());
        let folder = TempDir::new().unwrap();
        let cluster = Self { world, api, address, server: Some(server), config, folder, agent: PhantomData };
        cluster.apply(objects::node(&cluster.world));
        cluster
    }

    /// Starts the proxy and waits until the kernel is in sync with the API.
    pub fn proxy(&self) -> PortolanProcess {
        self.proxy_with("")
    }

    /// Does the same with further lines of configuration.
    pub fn proxy_with(&self, yaml: &str) -> PortolanProcess {
        let mut proxy = self.start_proxy(yaml);
        in_sync(&mut proxy);
        proxy
    }

    /// Starts the proxy.
    pub fn start_proxy(&self, yaml: &str) -> PortolanProcess {
        start_proxy::<A>(&self.world, self.folder.path(), &Proxy { yaml, master: self.address })
    }

    /// Starts the proxy with further arguments, and waits until both families are in sync.
    pub fn proxy_with_arguments(&self, yaml: &str, arguments: &[&str]) -> PortolanProcess {
        self.configure(yaml);
        let (file, master) = (self.configuration_file(), self.master());
        let all = ["--config", file.to_str().unwrap(), "--master", &master];
        let mut proxy = self.run(&[A::SUBCOMMAND, &all, arguments].concat());
        in_sync(&mut proxy);
        proxy
    }

    /// Returns the path of the proxy's configuration file.
    pub fn configuration_file(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    /// Writes the configuration file in place, as [`Cluster::start_proxy`] does.
    pub fn configure(&self, yaml: &str) {
        fs::write(self.configuration_file(), configuration(yaml)).unwrap();
    }

    /// Runs the program with only these arguments.
    pub fn run(&self, arguments: &[&str]) -> PortolanProcess {
        let socket = format!("--control-socket={}", self.control_socket().display());
        let names_one = arguments.iter().any(|argument| argument.starts_with("--control-socket"));
        let is_proxy = match A::SUBCOMMAND.first() {
            Some(subcommand) => arguments.first() == Some(subcommand),
            None => arguments.first().is_some_and(|first| first.starts_with('-')),
        };
        let own = (is_proxy && !names_one).then_some(socket.as_str());
        let arguments: Vec<&str> = arguments.iter().copied().chain(own).collect();
        PortolanProcess::start(self.world.node().namespace(), A::BINARY.as_ref(), &arguments).unwrap()
    }

    /// Returns the path of the proxy's control socket.
    pub fn control_socket(&self) -> PathBuf {
        control_socket(self.folder.path())
    }

    /// Returns the URL of the API server.
    pub fn master(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the API server. Its objects stay and can be changed.
    pub fn stop_server(&mut self) {
        drop(self.server.take());
    }

    /// Starts the API server again on the same port.
    pub fn restart_server(&mut self) {
        let listener = listen(self.world.node().namespace(), self.address.port());
        let (api, config) = (Arc::clone(&self.api), self.config.clone());
        self.server = Some(Server::start_with(api, config, listener).unwrap());
    }

    /// Returns a backup of all objects.
    pub fn back_up(&self) -> Backup {
        Backup::of(&self.api)
    }

    /// Replaces all objects by those of a backup, at a revision that is older than any so far: the API server comes back like one
    /// whose etcd was restored from an old backup. It must be stopped.
    pub fn restore(&mut self, backup: Backup) {
        assert!(self.server.is_none(), "the API server runs");
        let newest = self.api.store().revision();
        self.api = Arc::new(backup.restored(&self.config.api, newest));
    }

    /// Creates or replaces an object.
    pub fn apply(&self, object: Value) {
        self.api.blocking().apply(object).unwrap();
    }

    /// Replaces the Node object, including its pod CIDRs, which an API server does not let clients change.
    pub fn overwrite_node(&self, node: Value) {
        let json::Value::Object(mut node) = node.into() else { panic!("an object") };
        let mut put = || {
            let stored =
                self.api.store().get(Resource::Node, node["metadata"]["name"].as_str().unwrap()).unwrap();
            node["metadata"]["uid"] = stored.decode()["metadata"]["uid"].clone();
            let put =
                Transaction::put(Resource::Node, Draft::new(Resource::Node, &node), Some(stored.revision()));
            self.api.blocking().commit(put)
        };
        let mut outcome = put();
        // The agent may have written its Node between the read and the commit.
        while let Err(CommitError::Conflict { .. }) = outcome {
            outcome = put();
        }
        outcome.unwrap();
    }

    /// Creates or replaces objects.
    pub fn apply_all(&self, objects: Vec<Value>) {
        for object in objects {
            self.apply(object);
        }
    }

    /// Deletes an object of namespace `default`, or a cluster-scoped one.
    pub fn delete(&self, resource: Resource, name: &str) {
        let cluster_scoped = matches!(resource, Resource::Node | Resource::ServiceCidr);
        let namespace = if cluster_scoped { "" } else { "default" };
        let target = Target { resource, namespace, name };
        self.api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()).unwrap();
    }

    /// Waits for an Event with this reason.
    pub fn event(&self, reason: &str) -> Value {
        let mut found = None;
        let outcome = eventually(PATIENCE, reason, || {
            let path = "/apis/events.k8s.io/v1/events";
            let answer = http::get(self.world.node().namespace(), self.address, path).unwrap();
            let list: Value = serde_json::from_str(&answer.body).unwrap();
            let mut events = list["items"].as_array().unwrap().iter();
            found = events.find(|event| event["reason"] == reason).cloned();
            found.is_some()
        });
        assert!(outcome.is_ok(), "no Event {reason}");
        found.unwrap()
    }

    /// Returns all pods, those of this node first.
    pub fn all_pods(&self) -> Vec<&Pod> {
        self.world.pods().iter().chain(self.world.remote_pods()).collect()
    }

    /// Creates a Service with one EndpointSlice of these pods.
    pub fn service(&self, service: Value, pods: &[&Pod]) {
        let (name, ports) = (objects::name(&service).to_owned(), objects::ports(&service));
        self.apply(service);
        self.apply(objects::slice(&name, pods, &ports));
    }
}

/// Creates two pods on the node and one on another, each serving both families over TCP and UDP.
pub fn world() -> World {
    let world = World::builder().pods(2).remote_pods(1).build().unwrap();
    for pod in world.pods().iter().chain(world.remote_pods()) {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            world.serve(pod, protocol, BACKEND_PORT).unwrap();
        }
    }
    world
}

/// Listens on loopback in a namespace. Port 0 selects a free one. A process that another test is starting may hold a copy of
/// the former listener for a moment.
pub fn listen(namespace: &Namespace, port: u16) -> TcpListener {
    let mut listener = None;
    let bound = eventually(PATIENCE, "the port is free", || {
        listener = namespace.run(|| TcpListener::bind(("127.0.0.1", port))).unwrap().ok();
        listener.is_some()
    });
    bound.unwrap();
    listener.unwrap()
}

/// Starts the proxy on the node, without a minimum interval between commits unless `yaml` says otherwise.
pub fn start_proxy<A: Agent>(world: &World, folder: &Path, proxy: &Proxy<'_>) -> PortolanProcess {
    let path = folder.join("config.yaml");
    fs::write(&path, configuration(proxy.yaml)).unwrap();
    let master = format!("http://{}", proxy.master);
    let socket = format!("--control-socket={}", control_socket(folder).display());
    let arguments = ["--config", path.to_str().unwrap(), "--master", &master, &socket];
    let arguments = [A::SUBCOMMAND, &arguments].concat();
    PortolanProcess::start(world.node().namespace(), A::BINARY.as_ref(), &arguments).unwrap()
}

/// Returns the path of the control socket in a folder of a test: tests run at the same time and have one `/run`.
pub fn control_socket(folder: &Path) -> PathBuf {
    folder.join("proxy.sock")
}

/// Returns a complete configuration with these fields.
pub fn configuration(yaml: &str) -> String {
    let mut text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: {NODE}\n"
    );
    let defaults = [
        ("mode:", "mode: nftables"),
        ("clusterCIDR:", "clusterCIDR: 10.244.0.0/16,fd00:10:244::/48"),
        ("nftables:", "nftables: {minSyncPeriod: 0s}"),
        ("iptables:", "iptables: {minSyncPeriod: 0s}"),
    ];
    for (key, line) in defaults {
        if !yaml.lines().any(|line| line.starts_with(key)) {
            text.extend([line, "\n"]);
        }
    }
    text + yaml
}

/// Returns a page of the metrics server, which also shows the mode and the configuration.
pub fn page<A>(cluster: &Cluster<A>, path: &str) -> String {
    http::get(cluster.world.node().namespace(), at("127.0.0.1:10249"), path).unwrap().body
}

/// Waits until both families are in sync with the kernel.
pub fn in_sync(proxy: &mut PortolanProcess) {
    logged(proxy, IN_SYNC, 2);
}

/// Waits until the log has a text at least this many times.
pub fn logged(proxy: &mut PortolanProcess, text: &str, times: usize) {
    let outcome = eventually(PATIENCE, text, || {
        let ended = proxy.ended();
        assert!(ended.is_none(), "the proxy ended before {text:?}: {}", proxy.output());
        proxy.output().matches(text).count() >= times
    });
    assert!(outcome.is_ok(), "{times} times {text:?} in: {}", proxy.output());
}

/// Waits until a batch of probes from one namespace to one address reaches exactly these backends.
pub fn reaches(from: &Namespace, protocol: Protocol, to: SocketAddr, pods: &[&Pod]) {
    let wanted: BTreeSet<SocketAddr> = pods.iter().map(|pod| backend(pod, to.ip())).collect();
    let mut seen = BTreeSet::new();
    let outcome = eventually(PATIENCE, "exactly the right backends", || {
        seen = backends(from, protocol, to);
        seen == wanted
    });
    assert!(outcome.is_ok(), "{to} from {}: wanted {wanted:?}, saw {seen:?}", from.name());
}

/// Returns the backends that a batch of probes reaches.
pub fn backends(from: &Namespace, protocol: Protocol, to: SocketAddr) -> BTreeSet<SocketAddr> {
    let probe = Probe::new(protocol, to).timeout(Duration::from_millis(250));
    let results = from.probe_many(&[probe; 24]).unwrap();
    results.iter().filter_map(ProbeResult::backend).collect()
}

/// Waits until a probe has this result.
pub fn ends_as(from: &Namespace, protocol: Protocol, to: SocketAddr, wanted: ProbeResult) {
    let mut seen = None;
    let outcome = eventually(PATIENCE, "the right result", || {
        seen = Some(from.probe(Probe::new(protocol, to).expecting_silence()).unwrap());
        seen == Some(wanted)
    });
    assert!(outcome.is_ok(), "{to} from {}: wanted {wanted:?}, saw {seen:?}", from.name());
}

/// Asserts that each of these probes reaches a backend.
pub fn all_work(probes: &[(&Namespace, Probe)]) {
    for ((from, probe), result) in probes.iter().zip(probe_many(probes).unwrap()) {
        assert!(result.backend().is_some(), "{probe:?} from {}: {result:?}", from.name());
    }
}

/// Returns the address and port of a pod's backend, in the family of `like`.
pub fn backend(pod: &Pod, like: IpAddr) -> SocketAddr {
    SocketAddr::new(pod.address(portolan_testkit::Family::of(like)), BACKEND_PORT)
}

/// Parses `address:port`.
pub fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}
