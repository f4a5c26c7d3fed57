use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use portolan_api::{
    Api, ApiConfig, ApiError, Change, Effect, FieldManager, HealthChecked, Part, Target, WriteOptions,
    WriteResult,
};
use portolan_prober::plan::Plan;
use portolan_prober::probe::{Failure, ProbeOutcome};
use portolan_prober::{HealthCheck, Input, LeaseClient as _, WriteError, Writer as _};
use portolan_schema::Resource;
use portolan_schema::json::{Value, json};
use portolan_schema::patch::Apply;
use portolan_store::Scope;
use portolan_web::metrics::{Collect as _, Page};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::*;
use crate::testing::assert_documented;

/// Longer than a takeover and all probes of a test. Time is paused, so nothing waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Endpoints that fail.
#[derive(Debug, Clone, Default)]
struct Failing(Arc<Mutex<BTreeSet<SocketAddr>>>);

impl Failing {
    fn set(&self, address: &str, fails: bool) {
        let address = address.parse().unwrap();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if fails {
            all.insert(address)
        } else {
            all.remove(&address)
        };
    }
}

impl Probes for Failing {
    fn probe(
        &self,
        address: SocketAddr,
        _: &Arc<HealthCheck>,
    ) -> impl Future<Output = ProbeOutcome> + Send + 'static {
        let fails = self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&address);
        async move { if fails { ProbeOutcome::Failed(Failure::Refused) } else { ProbeOutcome::Passed } }
    }
}

/// A server's prober. It is killed when dropped.
struct Server {
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn serve(api: &Arc<Api>, failing: &Failing, identity: Option<&str>) -> Server {
    let (events, reports) = EventSender::new();
    let lease = identity.map(|identity| (Leases(Arc::clone(api)), identity.to_owned()));
    let writer = Slices(Arc::clone(api));
    let prober = Prober::new(ProberOptions::default(), failing.clone(), writer, events, lease);
    let metrics = prober.metrics();
    let (stop, stopping) = watch::channel(false);
    let api = Arc::clone(api);
    let task = tokio::spawn(async move { run(&api, prober, reports, thread::stopped(stopping)).await });
    Server { task, stop, metrics }
}

fn service(annotations: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "annotations": annotations},
        "spec": {"ports": [{"port": 80}]}})
}

fn checked() -> Value {
    service(&json!({"portolan.dev/health-check": "tcp", "portolan.dev/health-check-interval": "1s"}))
}

async fn api() -> Arc<Api> {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    api.apply(checked()).await.unwrap();
    api.apply(slice(&["192.0.2.1", "192.0.2.2"])).await.unwrap();
    api
}

fn slice(addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"port": 8080}], "endpoints": endpoints})
}

fn stored(api: &Api, resource: Resource, key: &str) -> Value {
    Value::Object(api.store().get(resource, key).unwrap().decode())
}

/// Returns the condition `ready` of each endpoint.
fn ready(api: &Api) -> Vec<Option<bool>> {
    let slice = stored(api, Resource::EndpointSlice, "default/web-1");
    let endpoints = slice["endpoints"].as_array().unwrap().iter();
    let ready =
        endpoints.map(|it| it.as_object().unwrap().get("conditions")?.as_object()?.get("ready")?.as_bool());
    ready.collect()
}

/// Waits until a condition holds. Returns how long it took.
async fn until(what: &str, condition: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "never came true: {what}");
        sleep(Duration::from_millis(10)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn results_become_conditions_and_events() {
    let (api, failing) = (api().await, Failing::default());
    let before = stored(&api, Resource::EndpointSlice, "default/web-1");
    let server = serve(&api, &failing, None);
    until("both are ready", || ready(&api) == [Some(true); 2]).await;
    failing.set("192.0.2.2:8080", true);
    until("one is not ready", || ready(&api) == [Some(true), Some(false)]).await;
    failing.set("192.0.2.2:8080", false);
    until("it comes back", || ready(&api) == [Some(true); 2]).await;
    let slice = stored(&api, Resource::EndpointSlice, "default/web-1");
    assert_eq!(slice["metadata"]["managedFields"], before["metadata"]["managedFields"]);
    let events = || {
        let snapshot = api.store().snapshot(Resource::Event, &Scope::default(), None).unwrap().objects;
        snapshot.iter().map(|event| Value::Object(event.decode())).collect::<Vec<_>>()
    };
    let has = |reason: &str| events().iter().any(|event| event["reason"] == *reason);
    until("its Events", || has("EndpointUnhealthy") && has("EndpointHealthy")).await;
    for event in events() {
        let kind = if event["reason"] == *"EndpointUnhealthy" { "Warning" } else { "Normal" };
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (text("type"), text("reportingController")),
            (kind.to_owned(), "portolan-prober".to_owned())
        );
        let (resource, key) = match event["regarding"]["kind"].as_str().unwrap() {
            "Service" => (Resource::Service, "default/web"),
            _ => (Resource::EndpointSlice, "default/web-1"),
        };
        assert_eq!(event["regarding"]["uid"], stored(&api, resource, key)["metadata"]["uid"]);
    }

    let mut page = Page::default();
    server.metrics.collect(&mut page);
    assert_documented(&page.into_text(), "health-checks.md", "portolan_health_check_");

    // The conditions survive the server, and the next one writes nothing that is the same.
    server.stop.send_replace(true);
    until("the end", || server.task.is_finished()).await;
    let before = api.store().get(Resource::EndpointSlice, "default/web-1").unwrap().revision();
    let next = serve(&api, &failing, None);
    until("probes of the next server", || next.metrics.passed.get() >= 6).await;
    assert_eq!(api.store().get(Resource::EndpointSlice, "default/web-1").unwrap().revision(), before);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_changes_conditions_back_is_named() {
    let (api, failing) = (api().await, Failing::default());
    failing.set("192.0.2.2:8080", true);
    let _server = serve(&api, &failing, None);
    let has_result = || ready(&api) == [Some(true), Some(false)];
    until("the result", has_result).await;
    for _ in 0..5 {
        let mut other = stored(&api, Resource::EndpointSlice, "default/web-1");
        other["endpoints"][1]["conditions"] = json!({"ready": true, "serving": true});
        let target = Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" };
        let field_manager = FieldManager::new("other-controller").unwrap();
        let options = WriteOptions { field_manager, ..WriteOptions::default() };
        api.update(target, Part::Main, other.as_object().cloned().unwrap(), options).await.unwrap();
        until("the same result again", has_result).await;
    }
    let notes = || {
        let snapshot = api.store().snapshot(Resource::Event, &Scope::default(), None).unwrap().objects;
        let events = snapshot.iter().map(|event| Value::Object(event.decode()));
        let events = events.filter(|event| event["reason"] == *"HealthCheckOverwritten");
        events.map(|event| event["note"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    until("its Event", || notes().iter().any(|note| note.contains("\"other-controller\""))).await;
}

#[tokio::test(start_paused = true)]
async fn no_version_of_a_slice_has_a_ready_endpoint_without_a_result() {
    let api = Arc::new(Api::new(&ApiConfig { health_checked: Some(health_checked), ..ApiConfig::default() }));
    let put = async |object: Value| {
        let object = object.as_object().cloned().unwrap();
        let target = Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" };
        api.update(target, Part::Main, object, WriteOptions::default()).await.unwrap();
        ready(&api)
    };
    api.apply(checked()).await.unwrap();
    api.apply(slice(&["192.0.2.1"])).await.unwrap();
    assert_eq!(ready(&api), [Some(false)], "before the prober sees it");
    let two = || slice(&["192.0.2.9", "192.0.2.1"]);
    assert_eq!(put(two()).await, [Some(false); 2]);
    assert_eq!(put(two()).await, [Some(false); 2], "still no result");
    assert_eq!(put(slice(&["192.0.2.1"])).await, [Some(false)]);
    let failing = Failing::default();
    failing.set("192.0.2.2:8080", true);
    let _server = serve(&api, &failing, None);
    until("its first result", || ready(&api) == [Some(true)]).await;
    let more = slice(&["192.0.2.2", "192.0.2.1", "192.0.2.3"]);
    assert_eq!(put(more.clone()).await, [Some(false), Some(true), Some(false)]);
    until("the others", || ready(&api) == [Some(false), Some(true), Some(true)]).await;
    assert_eq!(put(more).await, [Some(false), Some(true), Some(true)], "results stay");
    let mut given = slice(&["192.0.2.4"]);
    given["endpoints"][0]["conditions"] = json!({"ready": true});
    assert_eq!(put(given).await, [Some(true)], "as given");
    let serving = || stored(&api, Resource::EndpointSlice, "default/web-1").to_string().contains("serving");
    until("the prober's own result", serving).await;
    // Without a check nothing would make an endpoint ready.
    api.apply(service(&json!({}))).await.unwrap();
    until("no conditions", || ready(&api) == [None]).await;
    assert_eq!(put(slice(&["192.0.2.1", "192.0.2.5"])).await, [None; 2]);
}

/// Applies a slice as `kubectl apply --server-side` does.
async fn applied(api: &Api, manager: &str, slice: Value) -> Result<WriteResult, ApiError> {
    let configuration = slice.as_object().cloned().unwrap();
    let apply = Apply::decode(Resource::EndpointSlice, configuration, false).unwrap();
    let options =
        WriteOptions { field_manager: FieldManager::new(manager).unwrap(), ..WriteOptions::default() };
    let target = Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" };
    api.change(target, Part::Main, Change::Apply(apply), options).await
}

/// Returns a slice without a field that has a default.
fn complete(addresses: &[&str]) -> Value {
    let mut slice = slice(addresses);
    slice["ports"] = json!([{"name": "", "port": 8080, "protocol": "TCP"}]);
    slice
}

fn owners(api: &Api) -> Value {
    stored(api, Resource::EndpointSlice, "default/web-1")["metadata"]["managedFields"].clone()
}

#[tokio::test(start_paused = true)]
async fn the_owner_of_a_slice_can_apply_it_again() {
    for health_checked in [Some(health_checked as HealthChecked), None] {
        let api = Arc::new(Api::new(&ApiConfig { health_checked, ..ApiConfig::default() }));
        api.apply(checked()).await.unwrap();
        applied(&api, "one", complete(&["192.0.2.1", "192.0.2.2"])).await.unwrap();
        applied(&api, "other", complete(&["192.0.2.1", "192.0.2.2"])).await.unwrap();
        let before = owners(&api);
        let failing = Failing::default();
        failing.set("192.0.2.2:8080", true);
        let _server = serve(&api, &failing, None);
        until("results", || ready(&api) == [Some(true), Some(false)]).await;
        assert_eq!(owners(&api), before, "results have no owner");

        let same = applied(&api, "one", complete(&["192.0.2.1", "192.0.2.2"])).await.unwrap();
        assert_eq!(same.effect, Effect::Unchanged);
        // The list belongs to both.
        let more = || complete(&["192.0.2.3", "192.0.2.2", "192.0.2.1"]);
        let refused = applied(&api, "one", more()).await.unwrap_err().to_string();
        assert!(refused.contains("conflict with \"other\": .endpoints"), "{refused}");
        let nothing = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1"},
            "addressType": "IPv4"});
        applied(&api, "other", nothing).await.unwrap();
        let outcome = applied(&api, "one", more()).await.unwrap();
        assert_eq!(outcome.effect, Effect::Updated);
        let known = ready(&api)[1..].to_vec();
        assert_eq!(known, [Some(false), Some(true)], "results stay");
        until("the new one", || ready(&api) == [Some(true), Some(false), Some(true)]).await;
        let same = applied(&api, "one", more()).await.unwrap();
        assert_eq!(same.effect, Effect::Unchanged);

        // Without a check there are no results.
        let before = owners(&api);
        api.apply(service(&json!({}))).await.unwrap();
        until("no conditions", || ready(&api) == [None; 3]).await;
        assert_eq!(owners(&api), before);
        let same = applied(&api, "one", more()).await.unwrap();
        assert_eq!(ready(&api), [None; 3]);
        assert_eq!(same.effect, Effect::Updated, "conditions without members are no longer there");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_whose_check_is_removed_before_its_first_result_is_ready() {
    let api = Arc::new(Api::new(&ApiConfig { health_checked: Some(health_checked), ..ApiConfig::default() }));
    api.apply(checked()).await.unwrap();
    api.apply(slice(&["192.0.2.1"])).await.unwrap();
    api.apply(service(&json!({}))).await.unwrap();
    assert_eq!(ready(&api), [Some(false)]);
    let _server = serve(&api, &Failing::default(), None);
    until("no conditions", || ready(&api) == [None]).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_servers_probes_and_another_takes_over() {
    let (api, failing) = (api().await, Failing::default());
    let one = serve(&api, &failing, Some("one"));
    until("the first one probes", || one.metrics.is_active.get() == 1).await;
    let other = serve(&api, &failing, Some("other"));
    until("results", || ready(&api) == [Some(true); 2]).await;
    let passed = one.metrics.passed.get();
    until("more probes of the first one", || one.metrics.passed.get() > passed + 20).await;
    assert_eq!(other.metrics.passed.get(), 0);
    // The first one is killed.
    failing.set("192.0.2.1:8080", true);
    drop(one);
    let took = until("the other probes", || other.metrics.is_active.get() == 1).await;
    assert!(took <= Duration::from_secs(10), "{took:?}");
    until("its conditions", || ready(&api) == [Some(false), Some(true)]).await;
    // A server that stops releases the Lease.
    let third = serve(&api, &failing, Some("third"));
    sleep(Duration::from_secs(1)).await;
    other.stop.send_replace(true);
    let took = until("the third probes", || third.metrics.is_active.get() == 1).await;
    assert!(took <= Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_of_another_version_is_a_conflict() {
    let api = api().await;
    let mut plan = Plan::new(false);
    plan.activate(Duration::ZERO);
    let decoded = |key: &str, resource| api.store().get(resource, key).unwrap().body().clone();
    let service = serde_json::from_slice(&decoded("default/web", Resource::Service)).unwrap();
    let seen = serde_json::from_slice(&decoded("default/web-1", Resource::EndpointSlice)).unwrap();
    plan.apply(Input::Services(vec![service]), Duration::ZERO);
    plan.apply(Input::EndpointSlices(vec![seen]), Duration::ZERO);
    plan.settle();
    for started in plan.take_changes().started {
        plan.result(started.endpoint, &ProbeOutcome::Failed(Failure::Refused), Duration::ZERO);
    }
    plan.settle();
    let write = plan.write(&"default/web-1".into()).unwrap();
    let slices = Slices(Arc::clone(&api));
    // The patch names an endpoint that the slice does not have any more.
    api.apply(slice(&["192.0.2.1"])).await.unwrap();
    assert_eq!(slices.write(&write).await, Err(WriteError::Conflict));
    api.apply(slice(&["192.0.2.1", "192.0.2.3"])).await.unwrap();
    assert_eq!(slices.write(&write).await, Err(WriteError::Conflict));
    api.blocking()
        .delete(
            portolan_api::Target { resource: Resource::EndpointSlice, namespace: "default", name: "web-1" },
            &portolan_api::Preconditions::default(),
            portolan_api::WriteOptions::default(),
        )
        .unwrap();
    assert_eq!(slices.write(&write).await, Err(WriteError::Gone));
}

#[tokio::test]
async fn the_lease_is_read_as_stored() {
    let api = api().await;
    let leases = Leases(Arc::clone(&api));
    assert_eq!(leases.read().await, Ok(None));
    let claim = portolan_prober::lease::Claim {
        holder: "one".to_owned(),
        transitions: 0,
        is_new: true,
        resource_version: None,
    };
    let version = leases.write(&claim).await.unwrap();
    let held = leases.read().await.unwrap().unwrap();
    assert_eq!((held.holder.as_str(), &held.resource_version), ("one", &version));
    assert_eq!(leases.write(&claim).await, Err(WriteError::Conflict), "it exists");
    let other = portolan_prober::lease::Claim {
        holder: "other".to_owned(),
        resource_version: Some("1".to_owned()),
        ..claim.clone()
    };
    assert_eq!(leases.write(&other).await, Err(WriteError::Conflict), "another version");
    let renewal =
        portolan_prober::lease::Claim { is_new: false, resource_version: Some(version.clone()), ..claim };
    assert_ne!(leases.write(&renewal).await.unwrap(), version);
}

#[test]
fn identities_differ() {
    assert_ne!(client::identity(), client::identity());
}
