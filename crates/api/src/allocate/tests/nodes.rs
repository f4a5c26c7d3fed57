//! The index of Nodes says after any writes what a fresh reading says.

use std::sync::Arc;

use portolan_ipam::Nodes;
use portolan_store::{DurableStore, History, MemoryStore, Store};

use super::*;
use crate::kinds::node::networks;

/// A reader that is further behind has to read all Nodes again.
const SHORT: History = History { max_changes: 4, max_superseded_bytes: 8 << 20 };

fn open(store: Arc<dyn Store>) -> Api {
    block_on(Api::open(store, &ApiConfig::default())).unwrap()
}

/// Reads all Nodes, one by one.
fn fresh(api: &Api) -> Nodes {
    let mut nodes = Nodes::default();
    for name in keys(api, Resource::Node) {
        nodes.set(&name, networks(stored(api, Resource::Node, &name).as_object().unwrap()));
    }
    nodes
}

/// Creates, changes or deletes a Node. Some writes change what the index does not keep.
fn change(api: &Api, random: &mut fastrand::Rng) {
    let name = format!("n{}", random.u8(..6));
    if random.u8(..4) == 0 {
        let target = target(Resource::Node, &name);
        let deleted = api.blocking().delete(target, &Preconditions::default(), WriteOptions::default());
        assert!(deleted.is_ok() || matches!(deleted, Err(ApiError::NotFound { .. })));
        return;
    }
    let addresses = (0..random.u8(..4)).map(|index| {
        let address = if random.u8(..5) == 0 { name.clone() } else { format!("192.0.2.{}", random.u8(..4)) };
        json!({"type": format!("t{index}"), "address": address})
    });
    let addresses: Vec<Value> = addresses.collect();
    let pods: Vec<Value> =
        (0..random.u8(..2)).map(|_| format!("10.{}.0.0/24", random.u8(..9)).into()).collect();
    let labels = json!({"number": random.u8(..9).to_string()});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDRs": pods}, "status": {"addresses": addresses}});
    // The ranges of pods may be set once.
    assert!(matches!(api.blocking().apply(node), Ok(_) | Err(ApiError::Invalid { .. })));
}

fn run(store: Arc<dyn Store>, rounds: usize) {
    // Two servers on one store, as on etcd. The second one writes nothing, so it reads many changes at once.
    let (first, second) = (open(Arc::clone(&store)), open(store));
    let mut random = fastrand::Rng::with_seed(7);
    let mut seen = 0;
    for _ in 0..rounds {
        change(&first, &mut random);
        let wanted = fresh(&first);
        assert_eq!(*first.nodes(), wanted);
        if random.u8(..5) == 0 {
            assert_eq!(*second.nodes(), wanted);
            seen += wanted.iter().count();
        }
    }
    assert!(seen > rounds / 5, "there were hardly any Nodes: {seen}");
}

#[test]
fn the_index_is_a_fresh_reading_in_memory() {
    run(Arc::new(MemoryStore::new(History::default())), 300);
    run(Arc::new(MemoryStore::new(SHORT)), 300);
}

#[test]
fn the_index_is_a_fresh_reading_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    run(Arc::new(DurableStore::open(folder.path(), SHORT).unwrap()), 60);
}

/// A reader of the index keeps what it got. Reports of a Node's state make no new index.
#[test]
fn the_index_is_replaced_only_if_a_network_changes() {
    let api = api("10.0.0.0/24");
    let write = |address: &str, image: &str| {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"addresses": [{"type": "InternalIP", "address": address}], "images": [{"names": [image]}]}});
        api.blocking().apply(node).unwrap();
        api.nodes()
    };
    let first = write("192.0.2.1", "a");
    assert!(Arc::ptr_eq(&first, &write("192.0.2.1", "b")));
    let second = write("192.0.2.2", "b");
    let has = |nodes: &Nodes, address: &str| nodes.has_address(address.parse().unwrap());
    assert!(has(&first, "192.0.2.1") && !has(&first, "192.0.2.2"));
    assert!(has(&second, "192.0.2.2") && !has(&second, "192.0.2.1"));
}
