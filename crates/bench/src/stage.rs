//! The stage of one size: a node with three pods and another node with one, each in a namespace of its own, an
//! API server with the objects on the node's loopback, and Services that answer.

mod kubernetes;
mod server;
mod writer;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;
use portolan_serve::{Resource, Scope};
use portolan_testkit::{ControlPlane, Family, Namespace, Pod, World};
use rustix::net::sockopt::set_socket_linger;
use serde_json::Value;

use self::server::ApiServer;
use crate::steady::{SERVICE_PORT, Steady};
use crate::workload::{self, Size};

pub(crate) use self::kubernetes::Kubernetes;
pub(crate) use self::writer::Writer;

/// Cluster IP of the Service whose only endpoint moves.
const MOVING: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 1);
/// VIP of the Service whose only endpoint moves.
pub(crate) const MOVING_VIP: SocketAddr = SocketAddr::new(IpAddr::V4(MOVING), SERVICE_PORT);

/// Cluster IP of the Service without endpoints.
const EMPTY: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 4);
/// VIP of the Service without endpoints.
pub(crate) const EMPTY_VIP: SocketAddr = SocketAddr::new(IpAddr::V4(EMPTY), SERVICE_PORT);

/// Cluster IP of the Service whose external traffic policy is Local.
const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 5);
/// Node port of this Service.
const NODE_PORT: u16 = 30_080;

/// The namespaces, pods and objects of the measurements. All of it ends when dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    world: World,
    server: ApiServer,
    /// A Service with its endpoints on another node, where most of a Service's endpoints are.
    pub(crate) far: Steady,
    /// A Service with its endpoints on the client's own node.
    pub(crate) near: Steady,
}

/// Mean size of the stored objects, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bodies {
    /// Mean size of a Service.
    pub(crate) service: usize,
    /// Mean size of an EndpointSlice.
    pub(crate) slice: usize,
}

impl Stage {
    /// Builds the namespaces and loads the objects. The API server is that of `portolan serve`.
    pub(crate) fn build(size: Size) -> anyhow::Result<Self> {
        Self::build_on(None, size)
    }

    /// Builds the namespaces and loads the objects into a kube-apiserver, if its binaries are given.
    pub(crate) fn build_on(control_plane: Option<&ControlPlane>, size: Size) -> anyhow::Result<Self> {
        let world = World::builder().pods(3).remote_pods(1).build()?;
        forget_connections(&world)?;
        let (node, address) = (world.node().namespace(), world.node().address(Family::Ipv4));
        let server = ApiServer::start(control_plane, node, address, size)?;
        let pod = |pods: &[Pod], index: usize| pods.get(index).cloned().context("a pod");
        let far = Steady::new("far", 2, &pod(world.remote_pods(), 0)?, size.endpoints)?;
        let near = Steady::new("near", 3, &pod(world.pods(), 2)?, size.endpoints)?;
        let stage = Self { world, server, far, near };
        let node = workload::node(stage.world.node().address(Family::Ipv4));
        let moving = [workload::service(workload::OWN, "moving", MOVING), stage.moving(false)];
        let empty = workload::service(workload::OWN, "empty", EMPTY);
        let steady = stage.far.objects().into_iter().chain(stage.near.objects());
        let local = local(stage.near.endpoints());
        [node, empty]
            .into_iter()
            .chain(moving)
            .chain(steady)
            .chain(local)
            .try_for_each(|object| stage.apply(object))?;
        Ok(stage)
    }

    /// Returns the node's namespace.
    pub(crate) fn node(&self) -> &Namespace {
        self.world.node().namespace()
    }

    /// Returns the namespace from which connections are made: that of a pod.
    pub(crate) fn client(&self) -> Option<&Namespace> {
        self.world.pods().first().map(Pod::namespace)
    }

    /// Returns the namespace of a client outside of the cluster. Its packets reach pods by way of the node.
    pub(crate) fn outside(&self) -> &Namespace {
        self.world.client().namespace()
    }

    /// Returns the node port of a Service whose endpoints are those of [`Stage::near`], with external traffic policy Local.
    pub(crate) fn node_port(&self) -> SocketAddr {
        SocketAddr::new(self.world.node().address(Family::Ipv4), NODE_PORT)
    }

    /// Returns the URL of the API server.
    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Returns a kubeconfig for the API server.
    pub(crate) fn kubeconfig(&self) -> String {
        self.server.kubeconfig()
    }

    /// Writes an object to the API server.
    pub(crate) fn apply(&self, object: Value) -> anyhow::Result<()> {
        self.server.apply(object)
    }

    /// Returns the EndpointSlice of the moving Service. Its endpoint is a pod that listens, or one that does not.
    pub(crate) fn moving(&self, listening: bool) -> Value {
        let pod = self.pod(if listening { 2 } else { 1 });
        workload::slice(workload::OWN, "moving", 0, &[pod])
    }

    /// Returns the mean sizes of the objects that Portolan's API server has stored.
    pub(crate) fn bodies(&self) -> Bodies {
        let ApiServer::Portolan(server) = &self.server else { return Bodies::default() };
        let mean = |resource| {
            let snapshot = server.store().snapshot(resource, &Scope::default(), None);
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
}

/// Returns the Service with external traffic policy Local and its EndpointSlice. All endpoints are on the node.
#[expect(clippy::indexing_slicing, reason = "these are objects, and an assignment adds what they lack")]
fn local(endpoints: &[Ipv4Addr]) -> [Value; 2] {
    let mut service = workload::service(workload::OWN, "local", LOCAL);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["ports"][0]["nodePort"] = NODE_PORT.into();
    let mut slice = workload::slice(workload::OWN, "local", 0, endpoints);
    for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
        endpoint["nodeName"] = workload::NODE.into();
    }
    [service, slice]
}

/// Sets the kernel's timeout of closed connections to one second instead of ten. The connections of a measurement would
/// pile up otherwise, and their cost is not part of the translation of a new connection.
fn forget_connections(world: &World) -> anyhow::Result<()> {
    for node in [world.node(), world.remote_node()] {
        let setting = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close";
        node.namespace().run(|| fs::write(setting, "1")).context("the node")?.context(setting)?;
    }
    Ok(())
}

/// Makes a connection end with a reset when it is dropped, so that the client's kernel keeps no state of it.
pub(crate) fn close(stream: &TcpStream) -> std::io::Result<()> {
    Ok(set_socket_linger(stream, Some(Duration::ZERO))?)
}
