use std::time::Duration;

use portolan_api::ApiConfig;
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
    // The server comes back, then stops in order.
    one.sync(&api, &mut seen_by_one).await;
    assert_eq!(names(&api, Resource::EndpointSlice), both);
    one.leave(&api).await;
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
    tokio::time::advance(presence::DURATION).await;
    local.sync(&api, &mut presence).await;
    assert_eq!(names(&api, Resource::EndpointSlice), Vec::<String>::new());
    assert_eq!(names(&api, Resource::Lease), Vec::<String>::new());
}
