//! The host: its network namespace, the backends of its Service in others, a client, and `portolan up`.

use std::env;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail};
use portolan_serve::json::{Value, json};
use portolan_testkit::{Family, Namespace, Pod, PortolanProcess, Protocol, World};
use tempfile::TempDir;

use crate::steps;

/// The range that Services of type `LoadBalancer` get their addresses from, and the address that the Service asks for.
const LOAD_BALANCER_IPS: &str = "198.51.100.80/29";
const LOAD_BALANCER_IP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 81);
/// The port of the Service.
pub(super) const PORT: u16 = 80;
/// The Service at its load-balancer address.
pub(super) const LOAD_BALANCER: SocketAddr = SocketAddr::new(IpAddr::V4(LOAD_BALANCER_IP), PORT);
const NODE_PORT: u16 = 30_080;
/// The port of every backend.
const BACKEND_PORT: u16 = 8080;
const DNS_PORT: u16 = 53;
/// The Service's name in the DNS.
pub(super) const NAME: &str = "web.default.svc.cluster.local.";
/// The interval of health checks. It is the shortest one.
const INTERVAL: &str = "1s";
const END_WITHIN: Duration = Duration::from_secs(60);

/// Everything that runs. The fields are in the order in which they are dropped.
pub(super) struct Host {
    process: PortolanProcess,
    backends: [Pod; 3],
    world: World,
    _manifests: TempDir,
}

impl Host {
    /// Starts the backends and `portolan up`. Does not wait for its Service.
    pub(super) fn start(world: World) -> anyhow::Result<Self> {
        let ([first, second, ..], [third, ..]) = (world.pods(), world.remote_pods()) else {
            bail!("three pods are needed");
        };
        let backends = [first, second, third].map(Pod::clone);
        for backend in &backends {
            world.serve(backend, Protocol::Tcp, BACKEND_PORT)?;
        }
        let manifests = tempfile::tempdir().context("cannot create a temporary folder")?;
        for (name, object) in [("service.json", service()), ("endpoints.json", slice(&backends))] {
            fs::write(manifests.path().join(name), object.to_string())?;
        }
        let program = env::current_exe().context("cannot find the own program")?;
        let arguments = [
            "up".to_owned(),
            // Nothing is kept, and only this host reaches the API.
            "--in-memory".to_owned(),
            "--insecure-http".to_owned(),
            format!("--manifests={}", manifests.path().display()),
            format!("--node-ip={}", world.node().address(Family::Ipv4)),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--load-balancer-ip-range={LOAD_BALANCER_IPS}"),
            "--health-checks".to_owned(),
            format!("--dns-listen={}", dns_server(&world)),
            // The default path is that of the host's own proxy.
            "--control-socket=".to_owned(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let process = PortolanProcess::start(world.node().namespace(), &program, &arguments)?;
        Ok(Self { process, backends, world, _manifests: manifests })
    }

    /// Returns the log of `portolan up`.
    pub(super) fn log(&self) -> String {
        self.process.output()
    }

    pub(super) fn backends(&self) -> &[Pod; 3] {
        &self.backends
    }

    /// Returns the namespace of the host.
    pub(super) fn namespace(&self) -> &Namespace {
        self.world.node().namespace()
    }

    /// Returns the namespace of a client in another network.
    pub(super) fn client(&self) -> &Namespace {
        self.world.client().namespace()
    }

    pub(super) fn node_port(&self) -> SocketAddr {
        SocketAddr::new(self.world.node().address(Family::Ipv4), NODE_PORT)
    }

    /// Returns the address of the DNS server.
    pub(super) fn dns_server(&self) -> SocketAddr {
        dns_server(&self.world)
    }

    /// Ends the program of a backend: connections to it are refused.
    pub(super) fn end(&self, backend: &Pod) -> anyhow::Result<()> {
        for address in backend.addresses().both() {
            let place = SocketAddr::new(address, BACKEND_PORT);
            self.world.echo().close(backend.namespace(), Protocol::Tcp, place)?;
        }
        Ok(())
    }

    /// Starts the program of a backend again.
    pub(super) fn start_again(&self, backend: &Pod) -> anyhow::Result<()> {
        Ok(self.world.serve(backend, Protocol::Tcp, BACKEND_PORT)?)
    }

    /// Ends `portolan up` as systemd does.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        let status = self.process.terminate(END_WITHIN)?;
        anyhow::ensure!(status.success(), "portolan up ended with {status}");
        Ok(())
    }

    /// Returns the IDs of all network namespaces.
    pub(super) fn namespace_ids(&self) -> Vec<u64> {
        steps::namespace_ids(&self.world)
    }
}

fn dns_server(world: &World) -> SocketAddr {
    SocketAddr::new(world.node().address(Family::Ipv4), DNS_PORT)
}

fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "web",
            "annotations": {
                "portolan.dev/load-balancer-ips": LOAD_BALANCER_IP,
                "portolan.dev/health-check": "tcp",
                "portolan.dev/health-check-interval": INTERVAL,
                "portolan.dev/health-check-fall": "2",
            },
        },
        "spec": { "type": "LoadBalancer", "ports": [{ "port": PORT, "nodePort": NODE_PORT }] },
    })
}

fn slice(backends: &[Pod]) -> Value {
    let endpoints = backends.iter().map(|backend| json!({ "addresses": [backend.address(Family::Ipv4)] }));
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": "web", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{ "port": BACKEND_PORT }],
    })
}
