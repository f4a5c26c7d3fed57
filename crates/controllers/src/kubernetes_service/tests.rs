use std::time::Duration;

use portolan_api::{ApiConfig, WriteOptions};
use portolan_schema::{Resource, json::json};
use portolan_store::Scope;

use super::*;

fn server(api: &Api, address: &str) -> KubernetesService {
    let config = ControllersConfig {
        kubernetes_service: true,
        advertise_address: Some(address.parse().unwrap()),
        ..ControllersConfig::default()
    };
    KubernetesService::new(&config, api.ranges(), "0.0.0.0:6443".parse().unwrap()).unwrap()
}

/// Returns the port and addresses of each subset of the Endpoints; `None` if there are no Endpoints.
fn endpoints(api: &Api) -> Option<Vec<String>> {
    let endpoints = api.store().get(Resource::Endpoints, "default/kubernetes")?;
    let endpoints = portolan_schema::json::Value::Object(endpoints.decode());
    let subset = |subset: &portolan_schema::json::Value| {
        let addresses = subset["addresses"].as_array().unwrap().iter().map(|it| it["ip"].as_str().unwrap());
        format!("{} {}", subset["ports"][0]["port"], addresses.collect::<Vec<_>>().join(","))
    };
    Some(endpoints["subsets"].as_array().unwrap().iter().map(subset).collect())
}

fn names(api: &Api, resource: Resource) -> Vec<String> {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_endpoint_of_a_server_that_is_gone_is_taken_away_by_another() {
    let api = Api::new(&ApiConfig::default());
    let (one, other) = (server(&api, "192.0.2.1"), server(&api, "192.0.2.2"));
    let (mut seen_by_one, mut seen_by_other) = (Presence::default(), Presence::default());
    let foreign = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "foreign", "namespace": "default", "labels": {"kubernetes.io/service-name": NAME}},
        "endpoints": []});
    ensure(&api, foreign).await.unwrap();
    let both = ["foreign", "kubernetes-192-0-2-1-6443", "kubernetes-192-0-2-2-6443"];
    for _ in 0..5 {
        one.sync(&api, &mut seen_by_one).await;
        other.sync(&api, &mut seen_by_other).await;
        tokio::time::advance(RECHECK_INTERVAL).await;
        assert_eq!(names(&api, Resource::EndpointSlice), both);
        assert_eq!(names(&api, Resource::Lease), both[1..]);
        assert_eq!(endpoints(&api).unwrap(), ["6443 192.0.2.1,192.0.2.2"]);
    }
    // One server is killed.
    for _ in 0..2 {
        other.sync(&api, &mut seen_by_other).await;
        assert_eq!(names(&api, Resource::EndpointSlice), both);
        tokio::time::advance(RECHECK_INTERVAL).await;
    }
    tokio::time::advance(Duration::from_secs(10)).await;
    other.sync(&api, &mut seen_by_other).await;
    assert_eq!(names(&api, Resource::EndpointSlice), ["foreign", both[2]]);
    assert_eq!(names(&api, Resource::Lease), [both[2]]);
    assert_eq!(endpoints(&api).unwrap(), ["6443 192.0.2.2"]);
    // The server comes back, then stops in order.
    one.sync(&api, &mut seen_by_one).await;
    assert_eq!(names(&api, Resource::EndpointSlice), both);
    one.leave(&api).await;
    assert_eq!(endpoints(&api).unwrap(), ["6443 192.0.2.2"]);
    assert_eq!(names(&api, Resource::EndpointSlice), ["foreign", both[2]]);
    assert_eq!(names(&api, Resource::Lease), [both[2]]);
}

#[tokio::test(start_paused = true)]
async fn a_server_on_loopback_has_no_endpoint_but_removes_stale_ones() {
    let api = Api::new(&ApiConfig::default());
    server(&api, "192.0.2.1").sync(&api, &mut Presence::default()).await;
    let local = server(&api, "127.0.0.1");
    let mut presence = Presence::default();
    local.sync(&api, &mut presence).await;
    assert_eq!(names(&api, Resource::EndpointSlice).len(), 1);
    assert!(endpoints(&api).is_some());
    tokio::time::advance(crate::presence::DURATION).await;
    local.sync(&api, &mut presence).await;
    assert_eq!(names(&api, Resource::EndpointSlice), Vec::<String>::new());
    assert_eq!(names(&api, Resource::Lease), Vec::<String>::new());
    assert_eq!(endpoints(&api), None);
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_written_once_and_those_of_others_are_kept() {
    let api = Api::new(&ApiConfig::default());
    let (one, mut presence) = (server(&api, "192.0.2.1"), Presence::default());
    one.sync(&api, &mut presence).await;
    let stored = || api.store().get(Resource::Endpoints, "default/kubernetes").unwrap();
    let first = stored();
    assert_eq!(first.labels().get("endpointslice.kubernetes.io/skip-mirror"), Some("true"));
    one.sync(&api, &mut presence).await;
    assert_eq!(stored().revision(), first.revision());
    // A client changes the addresses.
    let patch = json!({"subsets": null}).as_object().unwrap().clone();
    let target =
        portolan_api::Target { resource: Resource::Endpoints, namespace: "default", name: "kubernetes" };
    let part = portolan_api::Part::Main;
    api.merge_patch(target, part, patch, WriteOptions::default()).await.unwrap();
    one.sync(&api, &mut presence).await;
    assert_eq!(endpoints(&api).unwrap(), ["6443 192.0.2.1"]);
    // Another client's own Endpoints have no such label, though they may not be mirrored, as those of upstream.
    let foreign = json!({"metadata": {"labels": {MANAGED_BY: null}}, "subsets": [{"addresses": [{"ip": "192.0.2.9"}], "ports": [{"port": 1}]}]});
    let foreign = foreign.as_object().unwrap().clone();
    api.merge_patch(target, part, foreign, WriteOptions::default()).await.unwrap();
    one.sync(&api, &mut presence).await;
    one.leave(&api).await;
    assert_eq!(endpoints(&api).unwrap(), ["1 192.0.2.9"]);
}
