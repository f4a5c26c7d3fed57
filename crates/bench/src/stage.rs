//! The stage of one size: a node with three pods in namespaces of their own, an API server on the node's
//! loopback that holds the objects, and listeners in a pod.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_server::{Api, Config, Resource, RunningServer, Scope, Server};
use portolan_testkit::{Family, Namespace, Pod, World};
use rustix::net::sockopt::set_socket_linger;
use serde_json::Value;

use crate::workload::{self, Size};

/// The Service whose only endpoint moves.
const MOVING: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 1);
/// The Service that connections are timed through.
const STEADY: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 2);
/// The VIP of the moving Service.
pub(crate) const MOVING_VIP: SocketAddr = SocketAddr::new(IpAddr::V4(MOVING), SERVICE_PORT);
/// The VIP of the steady Service.
pub(crate) const STEADY_VIP: SocketAddr = SocketAddr::new(IpAddr::V4(STEADY), SERVICE_PORT);
/// An address that is no Service's, for one rule written by hand.
pub(crate) const RULE_VIP: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 112, 0, 1)), SERVICE_PORT);
/// The port of all Services.
const SERVICE_PORT: u16 = 80;
/// The port of all endpoints.
const TARGET_PORT: u16 = 8080;
/// Where the serving pod is reached direct: another port, so that no connection meets the remains of one
/// through the Service in the kernel's connection table.
const DIRECT_PORT: u16 = 8081;
/// The serving pod's further addresses, one for each further endpoint of the steady Service.
const FIRST_FURTHER: u32 = u32::from_be_bytes([10, 244, 101, 0]);

/// What everything is measured on. Dropped, all of it ends.
#[derive(Debug)]
pub(crate) struct Stage {
    world: World,
    server: RunningServer,
    listeners: Vec<TcpListener>,
    /// The addresses behind the steady Service.
    steady: Vec<Ipv4Addr>,
}

/// Mean size of the stored objects, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bodies {
    /// Of a Service.
    pub(crate) service: usize,
    /// Of an EndpointSlice.
    pub(crate) slice: usize,
}

impl Stage {
    /// Builds the namespaces and loads the objects.
    pub(crate) fn build(size: Size) -> anyhow::Result<Self> {
        let world = World::builder().pods(3).remote_pods(0).build()?;
        let node = world.node().namespace();
        let listener = node.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
        let config = Config::default();
        let api = Arc::new(Api::new(&config));
        load(&api, size)?;
        let server = Server::start_with(api, config, listener)?;
        let mut stage = Self { world, server, listeners: Vec::new(), steady: Vec::new() };
        stage.listen()?;
        stage.apply(workload::node(stage.world.node().address(Family::Ipv4)))?;
        stage.apply(workload::service("bench", "moving", MOVING))?;
        stage.apply(stage.moving(false))?;
        stage.add_steady(size.endpoints)?;
        Ok(stage)
    }

    /// The node's namespace.
    pub(crate) fn node(&self) -> &Namespace {
        self.world.node().namespace()
    }

    /// The namespace that connections are made from: that of a pod.
    pub(crate) fn client(&self) -> Option<&Namespace> {
        self.world.pods().first().map(Pod::namespace)
    }

    /// Where the API server listens.
    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Writes an object in the API server.
    pub(crate) fn apply(&self, object: Value) -> anyhow::Result<()> {
        self.server.api().apply(object).map(drop).context("write an object")
    }

    /// The EndpointSlice of the moving Service: its endpoint is at a pod that listens, or at one that does not.
    pub(crate) fn moving(&self, listening: bool) -> Value {
        let pod = self.pod(if listening { 2 } else { 1 });
        workload::slice("bench", "moving", 0, &[pod])
    }

    /// The endpoints of the steady Service, reached direct.
    pub(crate) fn direct(&self) -> impl Iterator<Item = SocketAddr> + Clone {
        self.steady.iter().map(|&address| SocketAddr::from((address, DIRECT_PORT)))
    }

    /// Lets the node translate [`RULE_VIP`] by one rule that somebody wrote by hand.
    pub(crate) fn add_rule(&self) -> anyhow::Result<()> {
        let rule = format!(
            "table ip bench {{\n chain prerouting {{\n type nat hook prerouting priority dstnat - 1;\n \
             ip daddr {} tcp dport {SERVICE_PORT} dnat to {}:{TARGET_PORT}\n }}\n}}\n",
            RULE_VIP.ip(),
            self.pod(2)
        );
        Ok(self.node().output_with_input("nft", &["-f", "-"], &rule).map(drop)?)
    }

    /// Takes connections off the listeners' queues.
    pub(crate) fn drain(&self) {
        for listener in &self.listeners {
            while listener.accept().is_ok() {}
        }
    }

    /// The mean sizes of what the API server holds.
    pub(crate) fn bodies(&self) -> Bodies {
        let mean = |resource| {
            let snapshot = self.server.store().snapshot(resource, &Scope::default(), None);
            let objects = snapshot.map(|snapshot| snapshot.objects).unwrap_or_default();
            objects
                .iter()
                .map(|object| object.body().len())
                .sum::<usize>()
                .checked_div(objects.len())
                .unwrap_or(0)
        };
        Bodies { service: mean(Resource::Service), slice: mean(Resource::EndpointSlice) }
    }

    fn pod(&self, index: usize) -> Ipv4Addr {
        self.world.pods().get(index).map_or(Ipv4Addr::UNSPECIFIED, |pod| pod.addresses().ipv4)
    }

    fn listen(&mut self) -> anyhow::Result<()> {
        let pod = self.world.pods().get(2).context("the serving pod")?;
        for port in [TARGET_PORT, DIRECT_PORT] {
            let listener = pod.namespace().run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))??;
            listener.set_nonblocking(true)?;
            self.listeners.push(listener);
        }
        Ok(())
    }

    /// A Service with as many endpoints as the others, every one of which answers.
    fn add_steady(&mut self, endpoints: usize) -> anyhow::Result<()> {
        let pod = self.world.pods().get(2).context("the serving pod")?;
        let further =
            (1..endpoints).map(|index| Ipv4Addr::from_bits(FIRST_FURTHER.saturating_add(index as u32)));
        let addresses: Vec<Ipv4Addr> = std::iter::once(pod.addresses().ipv4).chain(further).collect();
        let added: Vec<IpAddr> = addresses.iter().skip(1).copied().map(IpAddr::V4).collect();
        if !added.is_empty() {
            pod.add_addresses(&added)?;
        }
        self.apply(workload::service("bench", "steady", STEADY))?;
        for (part, chunk) in addresses.chunks(100).enumerate() {
            self.apply(workload::slice("bench", "steady", part, chunk))?;
        }
        self.steady = addresses;
        Ok(())
    }
}

/// Lets a connection end without a farewell when it is dropped: nothing of it stays in the client's kernel.
pub(crate) fn close(stream: &TcpStream) -> std::io::Result<()> {
    Ok(set_socket_linger(stream, Some(Duration::ZERO))?)
}

fn load(api: &Api, size: Size) -> anyhow::Result<()> {
    for object in size.services().chain(size.slices()) {
        let outcome = api.apply(object).context("write an object")?;
        ensure!(outcome.warnings.is_empty(), "the API server found fault: {:?}", outcome.warnings);
    }
    Ok(())
}
