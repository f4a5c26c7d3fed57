//! Objects that another program has written to the store of the API server, and requests to that server. The server starts, or says
//! why not. If it starts, no answer is an error inside the server, and the audit of addresses and ports does not panic.

use std::sync::Arc;
use std::time::SystemTime;

use futures::executor::block_on;
use portolan_api::Api;
use portolan_api::audit::Cluster;
use portolan_schema::Resource;
use portolan_schema::json::Object;
use portolan_store::{Draft, History, MemoryStore, Scope, Store, Transaction};
use serde_json::{Value, json};

use crate::requests::{config, other, serve, service};
use crate::script::Script;
use crate::{edits, objects};

/// The most objects.
const MOST: usize = 12;
/// The most odd values in an object.
const EDITS: usize = 3;
/// Addresses and ports of records.
const ADDRESSES: [&str; 6] = ["10.0.0.2", "10.0.0.3", "fd00::2", "192.0.2.1", "10.9.9.9", "x"];
const PORTS: [&str; 4] = ["30001", "30002", "1", "x"];

/// Stores the objects, starts a server, and sends the requests.
pub(crate) fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let store = store(&mut script);
    match block_on(Api::open(store, &config())) {
        Ok(api) => {
            let api = Arc::new(api);
            serve(&api, &mut script, 0, |_| {});
            audit(&api);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn store(script: &mut Script<'_>) -> Arc<dyn Store> {
    let store = MemoryStore::new(History::default());
    for _ in 0..script.below(MOST + 1) {
        let (resource, mut object) = object(script);
        let metadata = object["metadata"].clone();
        let most = script.below(2 * EDITS + 1).saturating_sub(EDITS);
        edits::value(&mut object, script, most);
        if !object.is_object() {
            continue;
        }
        // An object whose names are not those of its key is not read from the store.
        for field in ["name", "namespace"] {
            match (object["metadata"].as_object_mut(), metadata.get(field)) {
                (Some(odd), Some(name)) => drop(odd.insert(field.to_owned(), name.clone())),
                (Some(odd), None) => drop(odd.remove(field)),
                (None, _) => object["metadata"] = metadata.clone(),
            }
        }
        let object: Object = serde_json::from_str(&object.to_string()).expect("an object");
        let put = Transaction::put(resource, Draft::new(resource, &object), None);
        // Of two objects with one name the first is stored.
        let _ = block_on(store.commit(put));
    }
    Arc::new(store)
}

fn object(script: &mut Script<'_>) -> (Resource, Value) {
    let index = script.below(service::SERVICES);
    let holder = json!({ "resource": "services", "namespace": "default", "name": format!("svc-{index}") });
    let record = |name: &str, labels: Value| json!({ "metadata": { "name": name, "labels": labels }, "spec": { "parentRef": holder } });
    match script.below(8) {
        0..=2 => (Resource::Service, service::service(index, script)),
        3 => {
            let manager = script.pick(&["ipallocator.k8s.io", "load-balancer.portolan.dev", "other"]);
            let labels = json!({ "ipaddress.kubernetes.io/managed-by": manager });
            (Resource::IpAddress, record(script.pick(&ADDRESSES), labels))
        }
        4 => (Resource::NodePort, record(script.pick(&PORTS), json!({}))),
        5 => (Resource::ServiceCidr, objects::object(Resource::ServiceCidr, script)),
        _ => {
            let resource = script.pick(&[
                Resource::EndpointSlice,
                Resource::Endpoints,
                Resource::Node,
                Resource::Lease,
                Resource::Event,
                Resource::Namespace,
            ]);
            let mut object = other::object(resource, script);
            if resource.info().namespaced {
                object["metadata"]["namespace"] = json!("default");
            }
            (resource, object)
        }
    }
}

/// Compares the addresses and ports of all objects.
fn audit(api: &Api) {
    let mut cluster = Cluster::new(api.node_port_range()).with_families(api.families());
    cluster.knows_addresses();
    let objects = |resource| {
        let snapshot = api.store().snapshot(resource, &Scope::default(), None).expect("the newest revision");
        snapshot.objects.iter().map(|object| object.decode()).collect::<Vec<Object>>()
    };
    for object in objects(Resource::Service) {
        cluster.add_service(&object);
    }
    for object in objects(Resource::IpAddress) {
        cluster.add_address(&object);
    }
    for object in objects(Resource::ServiceCidr) {
        cluster.add_service_cidr(&object);
    }
    for object in objects(Resource::Node) {
        cluster.add_node(&object);
    }
    cluster.report(SystemTime::UNIX_EPOCH, Vec::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_start_over_what_others_have_stored() {
        let (mut stored, mut started) = (0, 0);
        for seed in 0..64 {
            let bytes = crate::script::random(seed, 512);
            let store = store(&mut Script::new(&bytes));
            stored += Resource::served().map(|resource| store.count(resource)).sum::<usize>();
            started += usize::from(block_on(Api::open(store, &config())).is_ok());
        }
        assert!(stored > 128 && started > 48, "{stored} {started}");
    }
}
