//! The kube crate with typed objects: every verb on every kind.

use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Endpoints, Event as CoreEvent, Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::site::{Backing, Site};

const WITHIN: Duration = Duration::from_secs(600);
const STEPS: [&str; 4] = ["replaced", "merged", "strategic", "applied"];

#[test]
fn every_kind_with_the_kube_crate() {
    let site = Site::start(Backing::File, &[]).unwrap();
    let url = format!("http://{}", site.addresses()[0]);
    site.namespace
        .run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
                tokio::time::timeout(WITHIN, Box::pin(every_kind(client))).await.expect("in time");
            });
        })
        .unwrap();
}

async fn every_kind(client: Client) {
    let core = |kind: &str, rest: Value| object("v1", kind, rest);
    exercise(in_namespace::<Service>(&client), core("Service", json!({"spec": {"ports": [{"port": 80}]}})))
        .await;
    let subsets = json!([{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 8080}]}]);
    exercise(in_namespace::<Endpoints>(&client), core("Endpoints", json!({"subsets": subsets}))).await;
    let slice = json!({"addressType": "IPv4", "ports": [{"port": 8080}],
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": true}}]});
    exercise(in_namespace::<EndpointSlice>(&client), object("discovery.k8s.io/v1", "EndpointSlice", slice))
        .await;
    let node = core("Node", json!({"spec": {"podCIDR": "10.244.1.0/24"}}));
    Box::pin(exercise(of_cluster::<Node>(&client), node)).await;
    exercise(of_cluster::<Namespace>(&client), core("Namespace", json!({}))).await;
    let lease = json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}});
    exercise(in_namespace::<Lease>(&client), object("coordination.k8s.io/v1", "Lease", lease)).await;
    let involved = json!({"kind": "Service", "namespace": "default", "name": "web"});
    let event = json!({"involvedObject": involved, "reason": "Tested", "message": "text", "type": "Normal"});
    exercise(in_namespace::<CoreEvent>(&client), core("Event", event)).await;
    let event = json!({"regarding": involved, "reason": "Tested", "note": "text", "type": "Normal", "action": "Testing",
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "test", "reportingInstance": "test-1"});
    exercise(in_namespace::<Event>(&client), object("events.k8s.io/v1", "Event", event)).await;
    let cidr = json!({"spec": {"cidrs": ["10.200.0.0/24"]}});
    exercise(of_cluster::<ServiceCIDR>(&client), object("networking.k8s.io/v1", "ServiceCIDR", cidr)).await;
    let mut address = object(
        "networking.k8s.io/v1",
        "IPAddress",
        json!({"spec": {"parentRef": {"resource": "gateways", "group": "example.org", "name": "gate"}}}),
    );
    address["metadata"]["name"] = json!("10.96.0.77");
    exercise(of_cluster::<IPAddress>(&client), address).await;
}

fn object(api_version: &str, kind: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = json!(api_version);
    rest["kind"] = json!(kind);
    rest["metadata"] = json!({"name": "thing"});
    rest
}

fn in_namespace<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(client: &Client) -> Api<K> {
    Api::namespaced(client.clone(), "default")
}

fn of_cluster<K: Resource<Scope = ClusterResourceScope, DynamicType = ()>>(client: &Client) -> Api<K> {
    Api::all(client.clone())
}

async fn exercise<K>(api: Api<K>, body: Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    let kind = K::kind(&());
    let before = api.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let new: K = serde_json::from_value(body.clone()).unwrap();
    let name = new.name_any();
    let created =
        api.create(&PostParams::default(), &new).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
    assert!(created.uid().is_some() && created.creation_timestamp().is_some(), "{created:?}");
    refused(api.create(&PostParams::default(), &new).await, 409, "AlreadyExists");
    let read = api.get(&name).await.unwrap();
    assert_eq!(read.uid(), created.uid());

    change(&api, &name, &body).await;
    let found = api.list(&ListParams::default().labels("step=applied")).await.unwrap();
    assert_eq!(found.items.iter().map(K::name_any).collect::<Vec<_>>(), [name.as_str()], "{kind}");
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    follow(&api, &before, &name).await;
    refused(api.get(&name).await, 404, "NotFound");
}

/// Writes the label `step` in each way.
async fn change<K>(api: &Api<K>, name: &str, body: &Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let stale = api.get(name).await.unwrap();
    let step = |object: &K| object.labels().get("step").cloned().unwrap_or_default();
    // Controllers may write in between.
    let replaced = loop {
        let mut object = api.get(name).await.unwrap();
        object.labels_mut().insert("step".to_owned(), STEPS[0].to_owned());
        match api.replace(name, &PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => break other.unwrap(),
        }
    };
    assert_eq!(step(&replaced), STEPS[0]);
    refused(api.replace(name, &PostParams::default(), &stale).await, 409, "Conflict");
    let labels = |step: &str| json!({"metadata": {"labels": {"step": step}}});
    let manager = PatchParams::default();
    let merged = api.patch(name, &manager, &Patch::Merge(labels(STEPS[1]))).await.unwrap();
    let strategic = api.patch(name, &manager, &Patch::Strategic(labels(STEPS[2]))).await.unwrap();
    let mut configuration = body.clone();
    configuration["metadata"]["labels"] = json!({"step": STEPS[3]});
    let manager = PatchParams::apply("kube-rs").force();
    let applied = api.patch(name, &manager, &Patch::Apply(configuration)).await.unwrap();
    assert_eq!([step(&merged), step(&strategic), step(&applied)], STEPS[1..]);
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let tried = api.patch(name, &dry, &Patch::Merge(labels("tried"))).await.unwrap();
    assert_eq!(step(&tried), "tried");
    assert_eq!(step(&api.get(name).await.unwrap()), STEPS[3]);
}

/// Watches from an earlier revision and asserts that every step is seen in order. Controllers may add changes of
/// their own.
async fn follow<K>(api: &Api<K>, from: &str, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let parameters = WatchParams::default().timeout(60).fields(&format!("metadata.name={name}"));
    let events = api.watch(&parameters, from).await.unwrap();
    pin_mut!(events);
    let mut steps: Vec<String> = Vec::new();
    let mut is_first = true;
    loop {
        let event = events.next().await.expect("the watch goes on").unwrap();
        let object = match &event {
            WatchEvent::Added(object) if is_first => object,
            WatchEvent::Modified(object) if !is_first => object,
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Deleted(_) => break,
            other => panic!("{other:?} after {steps:?}"),
        };
        is_first = false;
        let step = object.labels().get("step").cloned().unwrap_or_default();
        if steps.last() != Some(&step) {
            steps.push(step);
        }
    }
    assert_eq!(steps[1..], STEPS, "{name}");
}

fn refused<T: Debug>(result: kube::Result<T>, code: u16, reason: &str) {
    match result {
        Err(kube::Error::Api(status)) if status.code == code && status.reason == reason => {}
        other => panic!("expected {code} {reason}: {other:?}"),
    }
}
