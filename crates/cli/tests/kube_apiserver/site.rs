//! A kube-apiserver on a node, and a client that writes its objects.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use portolan_model::object::Kind;
use portolan_testkit::{ControlPlane, Family, KubeApiserver, Namespace, SigningKey, World};
use portolan_watch::ClientSettings;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{NODE, PATIENCE, world};

/// The manifests with what the API server has to know of the agent.
const MANIFESTS: [&str; 2] = [
    include_str!("../../../../deploy/kustomize/base/serviceaccount.yaml"),
    include_str!("../../../../deploy/kustomize/base/rbac.yaml"),
];

/// Kinds with their API groups, the names of their collections, and the namespace of all objects of these tests.
const PLACES: [(&str, &str, &str, Option<&str>); 7] = [
    ("Service", "", "services", Some("default")),
    ("EndpointSlice", "discovery.k8s.io", "endpointslices", Some("default")),
    ("Node", "", "nodes", None),
    ("ServiceCIDR", "networking.k8s.io", "servicecidrs", None),
    ("ServiceAccount", "", "serviceaccounts", Some("kube-system")),
    ("ClusterRole", "rbac.authorization.k8s.io", "clusterroles", None),
    ("ClusterRoleBinding", "rbac.authorization.k8s.io", "clusterrolebindings", None),
];

pub(crate) struct Site {
    world: World,
    server: Server,
    folder: TempDir,
}

/// The server's process.
pub(crate) struct Server {
    apiserver: KubeApiserver,
    node: Namespace,
}

impl Server {
    pub(crate) fn kill(&mut self) {
        self.apiserver.process().kill().unwrap();
    }

    pub(crate) fn start(&mut self) {
        self.apiserver.start_again(&self.node).unwrap();
    }
}

impl Site {
    /// Starts the server and waits until it has its own objects. Writes the permissions of the agent's manifests.
    pub(crate) fn new() -> Self {
        let binaries = ControlPlane::from_environment().unwrap();
        eprintln!("kube-apiserver {}", binaries.version().unwrap());
        let (world, folder) = (world(), TempDir::new().unwrap());
        let (node, address) = (world.node().namespace().clone(), world.node().address(Family::Ipv4));
        let key = rcgen::KeyPair::generate().unwrap();
        let key = SigningKey { private: key.serialize_pem(), public: key.public_key_pem() };
        let apiserver = KubeApiserver::start(&binaries, &key, &node, address, folder.path()).unwrap();
        std::fs::write(folder.path().join("administrator.conf"), KubeApiserver::administrator()).unwrap();
        let mut site = Self { world, server: Server { apiserver, node }, folder };
        let token = site.run(async |server, objects| {
            objects.ready(server).await;
            for manifest in MANIFESTS {
                objects.apply(manifest).await;
            }
            objects.token().await
        });
        std::fs::write(site.agent(), KubeApiserver::kubeconfig(&token)).unwrap();
        site
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn node(&self) -> &Namespace {
        self.world.node().namespace()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the kubeconfig of a node agent, which has the permissions of its manifests.
    pub(crate) fn agent(&self) -> PathBuf {
        self.folder().join("agent.conf")
    }

    /// Runs on the node, with the process of the server and a client that may write everything.
    pub(crate) fn run<T: Send>(&mut self, work: impl AsyncFnOnce(&mut Server, Objects) -> T + Send) -> T {
        let file = self.folder().join("administrator.conf");
        self.run_as(file, work)
    }

    /// The same with the permissions of the agent's manifests.
    pub(crate) fn run_as_agent<T: Send>(
        &mut self,
        work: impl AsyncFnOnce(&mut Server, Objects) -> T + Send,
    ) -> T {
        let file = self.agent();
        self.run_as(file, work)
    }

    fn run_as<T: Send>(
        &mut self,
        kubeconfig: PathBuf,
        work: impl AsyncFnOnce(&mut Server, Objects) -> T + Send,
    ) -> T {
        let settings =
            ClientSettings { kubeconfig: Some(kubeconfig), qps: -1.0, ..ClientSettings::default() };
        let (node, server) = (self.node().clone(), &mut self.server);
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = portolan_watch::connect(&settings).await.unwrap();
                work(server, Objects(client)).await
            })
        };
        node.run(work).unwrap()
    }
}

/// A client of the server, for its objects.
pub(crate) struct Objects(Client);

impl Objects {
    /// Waits until the server is ready and has its first namespaces.
    pub(crate) async fn ready(&self, server: &mut Server) {
        let deadline = Instant::now() + PATIENCE;
        for path in ["/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system"] {
            while self.0.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await.is_err() {
                let process = server.apiserver.process();
                let waits = process.ended().is_none() && Instant::now() < deadline;
                assert!(waits, "{path} does not answer: {}", process.output());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Asserts that the server sends watches in protobuf to a client that prefers it.
    pub(crate) async fn has_protobuf(&self) {
        let accepted = "application/vnd.kubernetes.protobuf,application/json";
        let path = "/api/v1/services?watch=true&timeoutSeconds=1";
        let request = http::Request::get(path).header("Accept", accepted).body(Body::empty()).unwrap();
        let answer = self.0.send(request).await.unwrap();
        let kind = answer.headers()["Content-Type"].to_str().unwrap();
        assert!(kind.starts_with("application/vnd.kubernetes.protobuf"), "{kind}");
    }

    /// Returns the names of the objects of a kind that a node agent follows, with their namespaces.
    pub(crate) async fn names(&self, kind: Kind) -> BTreeSet<String> {
        let ours = "!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name";
        let mut ours = ListParams::default().labels(ours);
        if kind == Kind::Service {
            ours = ours.fields("spec.clusterIP!=None");
        }
        let list = self.api(&kind.to_string()).list(&ours).await.unwrap();
        let name = |object: DynamicObject| {
            format!("{}/{}", object.metadata.namespace.unwrap(), object.metadata.name.unwrap())
        };
        list.items.into_iter().map(name).collect()
    }

    /// Creates an object, or replaces it if it is there. Its status, too.
    pub(crate) async fn put(&self, object: &Value) -> kube::Result<()> {
        let (api, name) =
            (self.api(object["kind"].as_str().unwrap()), object["metadata"]["name"].as_str().unwrap());
        let mut wanted: DynamicObject = serde_json::from_value(object.clone()).unwrap();
        match api.get_opt(name).await? {
            None => api.create(&PostParams::default(), &wanted).await?,
            Some(there) => {
                wanted.metadata.resource_version = there.metadata.resource_version;
                api.replace(name, &PostParams::default(), &wanted).await?
            }
        };
        if let Some(status) = object.get("status") {
            let status = Patch::Merge(json!({"status": status}));
            api.patch_status(name, &PatchParams::default(), &status).await?;
        }
        Ok(())
    }

    /// Deletes an object, if it is there.
    pub(crate) async fn delete(&self, kind: Kind, name: &str) {
        match self.api(&kind.to_string()).delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("delete {kind} {name}: {error}"),
        }
    }

    /// Deletes an object that a finalizer holds, and then removes the finalizer.
    pub(crate) async fn hold_and_delete(&self, object: &Value) {
        let (api, name) =
            (self.api(object["kind"].as_str().unwrap()), object["metadata"]["name"].as_str().unwrap());
        let finalizers = |names: Value| Patch::Merge(json!({"metadata": {"finalizers": names}}));
        for (names, is_last) in [(json!(["example.net/hold"]), false), (json!([]), true)] {
            api.patch(name, &PatchParams::default(), &finalizers(names)).await.unwrap();
            if !is_last {
                api.delete(name, &DeleteParams::default()).await.unwrap();
            }
        }
    }

    /// Writes a name into one object of each collection.
    pub(crate) async fn mark(&self, name: &str, number: u8) {
        let metadata = json!({"name": name, "namespace": "default"});
        let objects = [
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "ExternalName", "externalName": "x"}}),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
                "endpoints": [],
            }),
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
                "spec": {"cidrs": [format!("10.200.{number}.0/24")]},
            }),
        ];
        for object in &objects {
            self.put(object).await.unwrap();
        }
        let labels = Patch::Merge(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": name}}}));
        self.api("Node").patch(NODE, &PatchParams::default(), &labels).await.unwrap();
    }

    /// Writes the objects of a manifest.
    async fn apply(&self, manifest: &str) {
        let objects: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
        for object in &objects {
            self.put(object).await.unwrap();
        }
    }

    /// Returns a token of the service account of the agent's manifests.
    async fn token(&self) -> String {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let path = "/api/v1/namespaces/kube-system/serviceaccounts/portolan/token";
        let request = http::Request::post(path).header("Content-Type", "application/json");
        let answer = self.0.request_text(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Returns a page of the server, or the status of its refusal.
    pub(crate) async fn get(&self, path: &str) -> Result<String, u16> {
        match self.0.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await {
            Ok(page) => Ok(page),
            Err(kube::Error::Api(status)) => Err(status.code),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let place = PLACES.iter().find(|(of, ..)| *of == kind);
        let (_, group, plural, namespace) = place.unwrap_or_else(|| panic!("no place for {kind}"));
        let resource = ApiResource {
            group: (*group).to_owned(),
            version: "v1".to_owned(),
            api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
            kind: kind.to_owned(),
            plural: (*plural).to_owned(),
        };
        match namespace {
            Some(namespace) => Api::namespaced_with(self.0.clone(), namespace, &resource),
            None => Api::all_with(self.0.clone(), &resource),
        }
    }
}
