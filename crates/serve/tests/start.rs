//! What a server writes before it serves clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::Arc;

use futures::executor::block_on;
use portolan_api::testing::{get, list};
use portolan_serve::{
    Api, ApiConfig, Config, ControllersConfig, History, Limits, Resource, Server, Store, Target,
    json::{Value, json},
};
use portolan_store::faulty::{FaultyStore, REFUSAL};

#[test]
fn a_start_fails_where_the_first_objects_cannot_be_written() {
    let store = Arc::new(FaultyStore::new(History::default()));
    let controllers = ControllersConfig { kubernetes_service: true, ..ControllersConfig::default() };
    let config = Config { controllers, ..Config::default() };
    let api = block_on(Api::open(Arc::clone(&store) as Arc<dyn Store>, &config.api)).unwrap();
    // The store opens, but the Service with the first address does not exist yet.
    store.refuse_writes(true);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start_with(Arc::new(api), config, listener).unwrap();
    // A server that serves would only end when stopped, and without an error.
    let ended = server.stop().unwrap_err().to_string();
    assert!(ended.contains("that must exist first") && ended.contains(REFUSAL), "{ended}");
}

#[test]
fn the_servers_own_service_is_there_before_clients_are() {
    let api = ApiConfig { service_ranges: "10.0.0.0/24".parse().unwrap(), ..ApiConfig::default() };
    let controllers = ControllersConfig {
        kubernetes_service: true,
        advertise_address: Some("192.0.2.7".parse().unwrap()),
        ..ControllersConfig::default()
    };
    // Longer than any delay on a busy machine.
    let patience = std::time::Duration::from_secs(120);
    let limits = Limits { shutdown_grace: patience, ..Limits::default() };
    let server = Server::start(Config { api, controllers, limits, ..Config::default() }).unwrap();
    let port = server.local_addr().port();
    let target = Target { resource: Resource::Service, namespace: "default", name: "kubernetes" };
    let deadline = std::time::Instant::now() + patience;
    while server.store().get(Resource::Service, &target.key()).is_none() {
        assert!(std::time::Instant::now() < deadline, "never made");
        std::thread::yield_now();
    }
    let service = get(server.api(), Resource::Service, "default/kubernetes").unwrap();
    assert_eq!(
        (&service["spec"]["clusterIP"], &service["spec"]["ports"][0]["targetPort"]),
        (&json!("10.0.0.1"), &json!(port))
    );
    assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    let api = server.stop().unwrap();
    assert_eq!(list(&api, Resource::EndpointSlice), Vec::<Value>::new(), "the endpoint goes with the server");
    assert!(get(&api, Resource::Service, "default/kubernetes").is_some());
}
