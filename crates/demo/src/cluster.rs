//! The cluster of the demo: the network namespaces, the API server and the proxy on the node.

use std::env;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portolan_serve::json::Value;
use portolan_serve::{ApiConfig, Config, RunningServer, Server};
use portolan_sock::{Protocol as NetlinkProtocol, Socket};
use portolan_testkit::{Family, Pod, PortolanProcess, World};
use portolan_wire::nftables::{NftablesEvent, request};

use super::objects::{self, Service};

/// Address of the API server on the node.
pub(super) const API_SERVER: &str = "127.0.0.1:8001";
/// The proxy logs this once for each family.
const IN_SYNC: &str = "compared with the kernel and in sync";
const START_WITHIN: Duration = Duration::from_secs(120);
/// With `minSyncPeriod`, changes within a second after another change wait. The demo measures changes after a pause,
/// as most are.
const PAUSE: Duration = Duration::from_millis(1_100);

/// Everything that runs. The fields are in the order in which they are dropped.
pub(super) struct Cluster {
    proxy: Option<PortolanProcess>,
    server: RunningServer,
    pub(super) pods: Pods,
    pub(super) world: World,
    last_write: Instant,
}

/// The roles of the pods.
pub(super) struct Pods {
    /// Backends from the start: two on the node, one on the other node.
    pub(super) backends: [Pod; 3],
    /// A backend that is added later.
    pub(super) spare: Pod,
    /// Sends requests, on the node.
    pub(super) sender: Pod,
    /// Sends requests, on the other node.
    pub(super) remote_sender: Pod,
}

impl Cluster {
    /// Starts the responders and the API server, without a proxy.
    pub(super) fn start(world: World) -> anyhow::Result<Self> {
        let pods = Pods::of(&world)?;
        let all = pods.backends.iter().chain([&pods.spare]);
        for (pod, service) in all.flat_map(|pod| [(pod, &objects::WEB), (pod, &objects::DNS)]) {
            world.serve(pod, service.protocol, service.target_port)?;
        }
        let service_ranges = objects::SERVICE_CIDRS.parse().context("ranges")?;
        let config =
            Config { api: ApiConfig { service_ranges, ..ApiConfig::default() }, ..Config::default() };
        let listener = world.node().namespace().run(|| TcpListener::bind(API_SERVER))?;
        let listener = listener.with_context(|| format!("cannot listen on {API_SERVER} of the node"))?;
        let server = Server::start_on(config, listener)?;
        let cluster = Self { proxy: None, server, pods, world, last_write: Instant::now() };
        cluster.server.api().blocking().apply(objects::node())?;
        Ok(cluster)
    }

    /// Starts the proxy. Returns the time until the kernel had everything.
    pub(super) fn start_proxy(&mut self) -> anyhow::Result<Duration> {
        let program = env::current_exe().context("cannot find the own program")?;
        let master = format!("http://{API_SERVER}");
        let arguments = [
            "proxy",
            "--master",
            &master,
            "--hostname-override",
            objects::NODE,
            "--proxy-mode",
            "nftables",
            "--cluster-cidr",
            objects::CLUSTER_CIDRS,
            // The default path is that of the host's own proxy.
            "--control-socket=",
        ];
        let started = Instant::now();
        let node = self.world.node().namespace();
        let proxy = self.proxy.insert(PortolanProcess::start(node, &program, &arguments)?);
        for family in Family::BOTH {
            proxy.wait_for_output(START_WITHIN, &format!("\"{IN_SYNC}\" family=\"{family}\""))?;
        }
        self.last_write = Instant::now();
        Ok(started.elapsed())
    }

    /// Kills the proxy with SIGKILL, like a crash.
    pub(super) fn kill_proxy(&mut self) -> anyhow::Result<()> {
        let proxy = self.proxy.as_mut().context("the proxy is not running")?;
        proxy.kill()?;
        Ok(())
    }

    /// Returns the log of the proxy.
    pub(super) fn proxy_log(&self) -> String {
        self.proxy.as_ref().map(PortolanProcess::output).unwrap_or_default()
    }

    /// Writes an object. Returns when the API server responded.
    pub(super) fn apply(&mut self, object: Value) -> anyhow::Result<Instant> {
        self.server.api().blocking().apply(object)?;
        self.last_write = Instant::now();
        Ok(self.last_write)
    }

    /// Writes the EndpointSlices of a Service, one of each family. Returns when the API server responded for IPv4.
    pub(super) fn endpoints(&mut self, service: &Service, pods: &[Pod]) -> anyhow::Result<Instant> {
        let pods: Vec<&Pod> = pods.iter().collect();
        let answered = self.apply(service.slice(Family::Ipv4, &pods))?;
        self.apply(service.slice(Family::Ipv6, &pods))?;
        Ok(answered)
    }

    /// Waits until the proxy's `minSyncPeriod` has passed.
    pub(super) fn pause(&self) {
        thread::sleep(PAUSE.saturating_sub(self.last_write.elapsed()));
    }

    /// Returns how many times any program has changed nftables rules on the node: the generation of the ruleset.
    pub(super) fn commits(&self) -> anyhow::Result<u32> {
        self.world.node().namespace().run(|| {
            let mut generation = None;
            Socket::open(NetlinkProtocol::Netfilter)?.query(&mut request::generation(), |frame| {
                if let NftablesEvent::Generation(now) = NftablesEvent::decode(frame)? {
                    generation = Some(now.id);
                }
                Ok(())
            })?;
            generation.context("the kernel does not say its generation")
        })?
    }
}

impl Pods {
    fn of(world: &World) -> anyhow::Result<Self> {
        let [first, second, spare, sender] = world.pods() else { bail!("four pods are needed") };
        let [third, remote_sender] = world.remote_pods() else { bail!("two remote pods are needed") };
        Ok(Self {
            backends: [first, second, third].map(Pod::clone),
            spare: spare.clone(),
            sender: sender.clone(),
            remote_sender: remote_sender.clone(),
        })
    }
}
