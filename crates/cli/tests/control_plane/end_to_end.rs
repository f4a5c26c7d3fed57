//! End to end: a client of the API server over TLS, the proxy with a kubeconfig of its role, and packets.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use portolan_testkit::{Addresses, Family, PortolanProcess, Protocol, World, eventually};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{self, BINARY, PATIENCE, backends, configuration, in_sync, objects, reaches};

struct Cluster {
    folder: TempDir,
    world: World,
}

#[test]
fn a_service_made_by_a_client_answers_at_the_address_that_it_was_given() {
    let cluster = Cluster { folder: TempDir::new().unwrap(), world: common::world() };
    let (_server, admin) = (cluster.serve(), cluster.kubeconfig("admin"));
    let node = typed::<Node>(objects::node(&cluster.world));
    cluster
        .run(&admin, async |client| Api::all(client).create(&PostParams::default(), &node).await.map(drop));
    let _proxy = cluster.proxy();

    let service =
        typed::<Service>(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"name": "tcp", "port": 80, "targetPort": common::BACKEND_PORT}]}}));
    let created =
        cluster.run(&admin, async |client| services(client).create(&PostParams::default(), &service).await);
    let address = created.spec.and_then(|spec| spec.cluster_ip).unwrap();
    let at = SocketAddr::new(address.parse().unwrap(), 80);
    let (near, far) = (&cluster.world.pods()[0], &cluster.world.remote_pods()[0]);
    let from = cluster.world.pods()[1].namespace();
    for pods in [&[near][..], &[far], &[near, far]] {
        let slice = objects::slice("web", pods, &[("tcp".to_owned(), portolan_testkit::Family::Ipv4)]);
        cluster.apply(&admin, &slice);
        reaches(from, Protocol::Tcp, at, pods);
    }
    cluster
        .run(&admin, async |client| services(client).delete("web", &DeleteParams::default()).await.map(drop));
    let is_gone = || backends(from, Protocol::Tcp, at).is_empty();
    eventually(PATIENCE, "the end of the Service", is_gone).unwrap();
}

/// The client knows no other way to the cluster than a static route, as the page about addresses describes.
#[test]
fn a_client_outside_reaches_a_service_at_its_load_balancer_address() {
    let cluster = Cluster { folder: TempDir::new().unwrap(), world: common::world() };
    let client = cluster.world.client().namespace();
    for (family, all, range) in
        [(Family::Ipv4, "0.0.0.0/0", "192.0.2.0/28"), (Family::Ipv6, "::/0", "2001:db8:7::/124")]
    {
        let gateway = Addresses::OUTSIDE.of(family);
        client.ip(&format!("route del {all} via {gateway}\nroute add {range} via {gateway}\n")).unwrap();
    }
    let ranges = ["--load-balancer-ip-range", "192.0.2.0/28,2001:db8:7::/124"];
    let cluster_ips = ["--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112"];
    let (_server, admin) = (cluster.serve_with(&[ranges, cluster_ips].concat()), cluster.kubeconfig("admin"));
    let node = typed::<Node>(objects::node(&cluster.world));
    cluster
        .run(&admin, async |client| Api::all(client).create(&PostParams::default(), &node).await.map(drop));
    let _proxy = cluster.proxy();
    let service =
        typed::<Service>(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack",
            "ports": [{"name": "tcp", "port": 80, "targetPort": common::BACKEND_PORT}]}}));
    let created =
        cluster.run(&admin, async |client| services(client).create(&PostParams::default(), &service).await);
    let ingress = created.status.and_then(|status| status.load_balancer?.ingress).unwrap();
    let addresses: Vec<IpAddr> =
        ingress.iter().map(|entry| entry.ip.as_ref().unwrap().parse().unwrap()).collect();
    assert_eq!(addresses.len(), 2, "{ingress:?}");
    let pod = &cluster.world.pods()[0];
    for (family, address) in Family::BOTH.into_iter().zip(&addresses) {
        let mut slice = objects::slice("web", &[pod], &[("tcp".to_owned(), family)]);
        slice["metadata"]["name"] = format!("web-{}", address.is_ipv6()).into();
        cluster.apply(&admin, &slice);
        reaches(client, Protocol::Tcp, SocketAddr::new(*address, 80), &[pod]);
    }
    cluster
        .run(&admin, async |client| services(client).delete("web", &DeleteParams::default()).await.map(drop));
    let is_gone =
        || addresses.iter().all(|ip| backends(client, Protocol::Tcp, SocketAddr::new(*ip, 80)).is_empty());
    eventually(PATIENCE, "the end of the Service", is_gone).unwrap();
}

fn services(client: Client) -> Api<Service> {
    Api::namespaced(client, "default")
}

fn typed<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

impl Cluster {
    fn data(&self) -> String {
        self.folder.path().join("data").to_str().unwrap().to_owned()
    }

    fn serve(&self) -> PortolanProcess {
        self.serve_with(&["--service-cluster-ip-range", "10.96.0.0/16"])
    }

    fn serve_with(&self, arguments: &[&str]) -> PortolanProcess {
        let data = self.data();
        let mut server = self.start(&[&["serve", "--data-dir", &data][..], arguments].concat());
        server.wait_for_output(PATIENCE, "tls=true").unwrap();
        server
    }

    fn proxy(&self) -> PortolanProcess {
        let file = self.folder.path().join("config.yaml");
        let yaml = format!("clientConnection: {{kubeconfig: {}}}\n", self.kubeconfig("proxy").display());
        std::fs::write(&file, configuration(&yaml)).unwrap();
        let mut proxy = self.start(&["proxy", "--config", file.to_str().unwrap()]);
        in_sync(&mut proxy);
        proxy
    }

    fn start(&self, arguments: &[&str]) -> PortolanProcess {
        PortolanProcess::start(self.world.node().namespace(), BINARY.as_ref(), arguments).unwrap()
    }

    /// Writes the output of `portolan serve kubeconfig` to a file and returns its path.
    fn kubeconfig(&self, role: &str) -> PathBuf {
        let arguments = ["serve", "kubeconfig", "--role", role, "--data-dir", &self.data()];
        let output = Command::new(BINARY).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = self.folder.path().join(format!("{role}.conf"));
        std::fs::write(&path, output.stdout).unwrap();
        path
    }

    /// Runs a client on the node.
    fn run<T: Send>(&self, kubeconfig: &Path, work: impl AsyncFnOnce(Client) -> kube::Result<T> + Send) -> T {
        common::client::run(self.world.node().namespace(), kubeconfig, work)
    }

    fn apply(&self, kubeconfig: &Path, slice: &Value) {
        let name = objects::name(slice).to_owned();
        let parameters = PatchParams::apply("test").force();
        self.run(kubeconfig, async |client| {
            let api: Api<EndpointSlice> = Api::namespaced(client, "default");
            api.patch(&name, &parameters, &Patch::Apply(slice)).await.map(drop)
        });
    }
}
