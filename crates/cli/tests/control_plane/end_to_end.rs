//! End to end: a client of the API server over TLS, the proxy with a kubeconfig of its role, and packets.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use portolan_testkit::{PortolanProcess, Protocol, World, eventually};
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
        let arguments = ["serve", "--data-dir", &self.data(), "--service-cluster-ip-range", "10.96.0.0/16"];
        let mut server = self.start(&arguments);
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
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let file = Kubeconfig::read_from(kubeconfig).unwrap();
                let config =
                    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
                work(Client::try_from(config).unwrap()).await.unwrap()
            })
        };
        self.world.node().namespace().run(work).unwrap()
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
