//! Many threads create, change and delete Services in a range that is too small. Nothing is held twice, and nothing
//! is lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use portolan_store::{DurableStore, History, MemoryStore, Store};

use super::*;

const THREADS: u64 = 8;

fn spec(random: &mut fastrand::Rng) -> Value {
    let mut spec = json!({});
    match random.u8(..5) {
        0 => spec["clusterIP"] = format!("10.0.0.{}", random.u8(1..40)).into(),
        1 => spec["ipFamilyPolicy"] = "PreferDualStack".into(),
        2 => {
            spec["type"] = "NodePort".into();
            spec["ports"] = json!([{"port": 80, "nodePort": random.u16(30_000..30_040)}]);
        }
        3 => {
            spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
            if random.bool() {
                spec["loadBalancerIP"] = format!("192.0.2.{}", random.u8(0..16)).into();
            }
        }
        _ => {}
    }
    spec
}

/// Makes a change at random. Returns true if its object lists an address of a load balancer.
fn change(api: &Api, random: &mut fastrand::Rng) -> bool {
    let name = format!("s{}", random.u8(..60));
    let target = target(Resource::Service, &name);
    let result = match random.u8(..6) {
        0 | 1 => api.blocking().apply(service(&name, &spec(random))),
        2 => {
            let patch = json!({"spec": spec(random)}).as_object().unwrap().clone();
            api.blocking().merge_patch(target, Part::Main, patch, WriteOptions::default())
        }
        3 => {
            let address = format!("192.0.2.{}", random.u8(0..16));
            let patch = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
            let patch = patch.as_object().unwrap().clone();
            api.blocking().merge_patch(target, Part::Status, patch, WriteOptions::default())
        }
        _ => api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()),
    };
    match result {
        Ok(done) => {
            let object: Value = serde_json::from_slice(&done.object).unwrap();
            object["status"]["loadBalancer"]["ingress"][0]["ip"].is_string()
        }
        Err(error) => {
            assert!([404, 409, 422, 500].contains(&error.code()), "{error}");
            false
        }
    }
}

/// Returns each address and port that a Service lists, with the Service.
fn held(api: &Api) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let (mut addresses, mut ports) = (BTreeMap::new(), BTreeMap::new());
    for key in keys(api, Resource::Service) {
        let service = stored(api, Resource::Service, &key);
        let spec = &service["spec"];
        let ingress = service["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
        let balancers = ingress.map(|entry| &entry["ip"]);
        for address in spec["clusterIPs"].as_array().into_iter().flatten().chain(balancers) {
            let address = address.as_str().unwrap().to_owned();
            assert_eq!(addresses.insert(address, key.clone()), None, "{key}: {spec}");
        }
        let numbers: BTreeSet<String> = spec["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| &port["nodePort"])
            .chain([&spec["healthCheckNodePort"]])
            .filter(|port| !port.is_null())
            .map(ToString::to_string)
            .collect();
        for port in numbers {
            assert_eq!(ports.insert(port, key.clone()), None, "{key}: {spec}");
        }
    }
    (addresses, ports)
}

fn recorded(api: &Api, resource: Resource) -> BTreeMap<String, String> {
    let owner = |key: &String| {
        let parent = stored(api, resource, key)["spec"]["parentRef"].clone();
        format!("{}/{}", parent["namespace"].as_str().unwrap(), parent["name"].as_str().unwrap())
    };
    keys(api, resource).into_iter().map(|key| (key.clone(), owner(&key))).collect()
}

#[test]
fn nothing_is_held_twice_and_nothing_is_lost_in_memory() {
    run(Arc::new(MemoryStore::new(History::default())), 300);
}

/// In this store a write is accepted before it is published.
#[test]
fn nothing_is_held_twice_and_nothing_is_lost_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    run(Arc::new(DurableStore::open(folder.path(), History::default()).unwrap()), 60);
}

fn run(store: Arc<dyn Store>, rounds: usize) {
    let config = ApiConfig {
        service_ranges: "10.0.0.0/27,fd00::/123".parse().unwrap(),
        node_ports: "30000-30030".parse().unwrap(),
        load_balancer_ranges: "192.0.2.0/28".parse().unwrap(),
        ..ApiConfig::default()
    };
    // Two servers on one store, as on etcd. One may be slower than the other.
    let first = Arc::new(block_on(Api::open(Arc::clone(&store), &config)).unwrap());
    let second = Arc::new(block_on(Api::open(Arc::clone(&store), &config)).unwrap());
    let listings = AtomicUsize::new(0);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (api, listings) = (if seed % 2 == 0 { &first } else { &second }, &listings);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..rounds {
                    listings.fetch_add(change(api, &mut random).into(), Relaxed);
                }
            });
        }
    });
    // Whether there is one in the end depends on the order of the changes.
    assert!(listings.into_inner() > 0, "no Service had an address of a load balancer");
    let (addresses, ports) = held(&first);
    assert!(!addresses.is_empty() && !ports.is_empty());
    assert_eq!(recorded(&first, Resource::IpAddress), addresses);
    assert_eq!(recorded(&first, Resource::NodePort), ports);
    let third = Arc::new(block_on(Api::open(store, &config)).unwrap());
    let balancers = addresses.keys().filter(|address| address.starts_with("192.0.2.")).count();
    for api in [first, second, third] {
        let metrics = api.allocator_metrics();
        let allocated: u64 = metrics.addresses.values().map(|(allocated, _)| allocated).sum();
        let cluster_ips = addresses.len() - balancers;
        assert_eq!((allocated, metrics.ports.0), (cluster_ips as u64, ports.len() as u64));
        let balanced: u64 = api.write_lock().balancers.usage().map(|usage| usage.allocated).sum();
        assert_eq!(balanced, balancers as u64);
    }
}
