//! Checks the invariants of everything that was acknowledged, was seen and exists at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::actor::{ActionResult, MARKER, Write};
use super::replay::{Change, Replay};
use super::watcher::{History, List};
use super::{ADDRESSES, After, LAST, Run, SERVICES, key, request, revision, specs};

/// Checks all invariants after a run.
pub(crate) fn judge(run: &Run, histories: &[History], lists: &[List], after: &After) {
    let writes = run.log.writes.lock().unwrap();
    let services = Replay::of(SERVICES, histories);
    let addresses = Replay::of(ADDRESSES, histories);
    for list in lists {
        services.check_list(list);
    }
    let count = |is: fn(&ActionResult) -> bool| writes.iter().filter(|write| is(&write.outcome)).count();
    println!(
        "{} writes done, {} unknown, {} refused; {} changes of Services, {} of IPAddresses; {} lists; {} watches went on \
         elsewhere; {} lists after 410",
        count(|it| matches!(it, ActionResult::Done(_))),
        count(|it| matches!(it, ActionResult::Unknown)),
        count(|it| matches!(it, ActionResult::Refused)),
        services.changes.len(),
        addresses.changes.len(),
        lists.len(),
        histories.iter().map(|history| history.moves).sum::<usize>(),
        histories.iter().map(|history| history.lists() - 1).sum::<usize>(),
    );
    every_acknowledged_write_was_seen(&writes, &services);
    every_change_was_asked_for(&writes, &services);
    nothing_is_shared_at_any_time(&services);
    addresses_and_services_agree_at_any_time(&services, &addresses);
    each_load_balancer_has_its_addresses(&services);
    the_end_is_where_the_changes_lead(&services, &addresses, after);
    let unjustified: Vec<&String> = histories.iter().flat_map(|history| &history.unjustified).collect();
    assert!(unjustified.is_empty(), "a server that had seen a revision called it too old: {unjustified:#?}");
    let stale = run.log.stale.lock().unwrap();
    assert!(stale.is_empty(), "{} reads of the past, such as {:?}", stale.len(), stale.first());
}

/// Asserts that each acknowledged write was seen at its revision, in its acknowledged form, after everything that had
/// been acknowledged before it began, and on top of the revision that it required.
fn every_acknowledged_write_was_seen(writes: &[Write], services: &Replay) {
    let mut last_of_key: HashMap<&str, u64> = HashMap::new();
    let mut before: HashMap<u64, u64> = HashMap::new();
    for (revision, change) in &services.changes {
        let last = last_of_key.insert(&change.key, *revision);
        before.insert(*revision, last.filter(|_| change.kind != "ADDED").unwrap_or_default());
    }
    for write in writes {
        let ActionResult::Done(object) = &write.outcome else { continue };
        let at = revision(object);
        if at <= services.start {
            continue;
        }
        let Some(change) = services.changes.get(&at) else {
            panic!("{} was acknowledged at {at} and never seen: {object}", write.key);
        };
        assert_eq!(&change.object, object, "{} at {at} is not what was acknowledged", write.key);
        assert_eq!(change.kind == "DELETED", write.marker.is_none(), "{} at {at}", write.key);
        assert!(at > write.floor, "{} at {at} came after {} had been acknowledged", write.key, write.floor);
        assert!(!write.is_create || change.kind == "ADDED", "{} at {at}", write.key);
        if let (Some(expected), Some(before)) = (write.expected, before.get(&at)) {
            assert!(
                expected == *before || *before == 0,
                "{} at {at}: expected {expected}, was {before}",
                write.key
            );
        }
    }
}

/// Asserts that each change comes from a write that was acknowledged with just this revision, or from one of unknown
/// outcome. Changes in `default` are the server's own.
fn every_change_was_asked_for(writes: &[Write], services: &Replay) {
    let by_marker: HashMap<&str, &Write> =
        writes.iter().filter_map(|write| Some((write.marker.as_deref()?, write))).collect();
    let deletions: HashMap<(&str, u64), &Write> = writes
        .iter()
        .filter(|write| write.marker.is_none())
        .filter_map(|write| match &write.outcome {
            ActionResult::Done(object) => Some(((write.key.as_str(), revision(object)), write)),
            _ => None,
        })
        .collect();
    let mut spent = BTreeSet::new();
    for (at, change) in services
        .changes
        .iter()
        .filter(|(_, change)| !change.key.ends_with(LAST) && !change.key.starts_with("default/"))
    {
        if change.kind == "DELETED" {
            let unknown =
                || writes.iter().any(|it| it.is_unknown() && it.marker.is_none() && it.key == change.key);
            assert!(
                deletions.contains_key(&(change.key.as_str(), *at)) || unknown(),
                "{} was deleted at {at} by no client",
                change.key
            );
            continue;
        }
        let marker = change.object["metadata"]["annotations"][MARKER].as_str().unwrap();
        let write = by_marker.get(marker).unwrap_or_else(|| panic!("{change:?} by no client"));
        match &write.outcome {
            ActionResult::Done(object) => {
                assert_eq!(revision(object), *at, "{marker} was written twice: {change:?}");
            }
            ActionResult::Unknown => assert!(spent.insert(marker), "{marker} was written twice: {change:?}"),
            ActionResult::Refused => panic!("a write that was refused was done: {change:?}"),
        }
    }
}

fn nothing_is_shared_at_any_time(services: &Replay) {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    let mut state = services.first();
    for object in state.values() {
        take(&mut owners, object, 0);
    }
    for (at, change) in &services.changes {
        if let Some(old) = state.get(change.key.as_str()) {
            for what in held(old) {
                owners.remove(&what);
            }
        }
        change.apply(&mut state);
        if change.kind != "DELETED" {
            take(&mut owners, &change.object, *at);
        }
    }
}

fn take(owners: &mut BTreeMap<String, String>, object: &Value, at: u64) {
    for what in held(object) {
        let other = owners.insert(what.clone(), key(object));
        assert!(other.is_none(), "at {at}, {what} of {} is also {other:?}'s", key(object));
    }
}

/// Returns the addresses and node ports of a Service.
fn held(object: &Value) -> BTreeSet<String> {
    let spec = &object["spec"];
    let ports = spec["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
    let ports =
        ports.chain([&spec["healthCheckNodePort"]]).filter_map(Value::as_u64).filter(|port| *port > 0);
    addresses(object).into_iter().chain(ports.map(|port| format!("node port {port}"))).collect()
}

/// Returns the cluster IPs and load-balancer addresses of a Service.
fn addresses(object: &Value) -> BTreeSet<String> {
    let list = object["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let cluster_ips = list.filter(|text| *text != "None");
    cluster_ips.chain(balancers(object)).map(str::to_owned).collect()
}

fn balancers(object: &Value) -> impl Iterator<Item = &str> {
    let ingress = object["status"]["loadBalancer"]["ingress"].as_array();
    ingress.into_iter().flatten().filter_map(|entry| entry["ip"].as_str())
}

/// Asserts that each Service of type LoadBalancer has an address of each of its families, and no other Service has one.
fn each_load_balancer_has_its_addresses(services: &Replay) {
    for (at, change) in services.changes.iter().filter(|(_, change)| change.kind != "DELETED") {
        let object = &change.object;
        let families =
            |texts: Vec<&str>| texts.iter().map(|text| text.contains(':')).collect::<BTreeSet<_>>();
        let cluster_ips = object["spec"]["clusterIPs"].as_array().into_iter().flatten();
        let wanted = match object["spec"]["type"].as_str() {
            Some("LoadBalancer") => families(cluster_ips.filter_map(Value::as_str).collect()),
            _ => BTreeSet::new(),
        };
        let found = families(balancers(object).collect());
        assert_eq!((found.len(), &found), (balancers(object).count(), &wanted), "{} at {at}", change.key);
    }
}

/// Asserts that right after every change of a Service, it has exactly its IPAddress objects.
fn addresses_and_services_agree_at_any_time(services: &Replay, addresses: &Replay) {
    let mut owned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let current = addresses.at(services.start.max(addresses.start));
    for object in current.values() {
        owned.entry(owner(object)).or_default().insert(name(object));
    }
    let mut pending = addresses.changes.range(services.start.max(addresses.start) + 1..).peekable();
    for (at, change) in services.changes.iter().filter(|(at, _)| **at > addresses.start) {
        while let Some((_, address)) = pending.next_if(|(revision, _)| *revision < at) {
            own(&mut owned, address);
        }
        let wanted = if change.kind == "DELETED" { BTreeSet::new() } else { self::addresses(&change.object) };
        let has = owned.get(&change.key).cloned().unwrap_or_default();
        assert_eq!(has, wanted, "IPAddresses of {} right after {at}", change.key);
    }
}

fn own(owned: &mut BTreeMap<String, BTreeSet<String>>, change: &Change) {
    let of_owner = owned.entry(owner(&change.object)).or_default();
    if change.kind == "DELETED" {
        of_owner.remove(&name(&change.object))
    } else {
        of_owner.insert(name(&change.object))
    };
}

fn owner(address: &Value) -> String {
    let text = |field: &str| address["spec"]["parentRef"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Asserts that every server has the same objects, that these are the result of all changes, and that nothing is left
/// over.
fn the_end_is_where_the_changes_lead(services: &Replay, addresses: &Replay, after: &After) {
    for (replay, lists) in [(services, &after.services), (addresses, &after.addresses)] {
        for list in lists {
            replay.check_objects(list["items"].as_array().unwrap(), u64::MAX);
        }
    }
    let services = services.at(u64::MAX);
    let wanted: BTreeSet<(String, String)> = services
        .iter()
        .flat_map(|(key, object)| {
            self::addresses(object).into_iter().map(|address| (address, (*key).to_owned()))
        })
        .collect();
    let addresses = addresses.at(u64::MAX);
    let found: BTreeSet<(String, String)> =
        addresses.values().map(|object| (name(object), owner(object))).collect();
    assert_eq!(found, wanted, "IPAddress objects");
}

/// Asserts that once every Service is deleted, each address and node port can be allocated again.
pub(crate) fn judge_reuse(run: &Run) {
    let server = run.site.addresses()[0];
    let (_, list) = request(run, server, "GET", SERVICES, &json!(null));
    for service in list["items"].as_array().unwrap() {
        if service["metadata"]["namespace"] == "default" {
            continue;
        }
        let (namespace, name) = (&service["metadata"]["namespace"], &service["metadata"]["name"]);
        let path =
            format!("/api/v1/namespaces/{}/services/{}", namespace.as_str().unwrap(), name.as_str().unwrap());
        let (status, answer) = request(run, server, "DELETE", &path, &json!({}));
        assert_eq!(status, 200, "{answer}");
    }
    for number in 0..specs::ASKED {
        let balancers = [false, true].map(|is_ipv6| specs::balancer(number + 1, is_ipv6)).join(",");
        let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("again-{number}"),
            "annotations": {"portolan.dev/load-balancer-ips": balancers}}, "spec": {
            "type": "LoadBalancer", "ports": [{"port": 80, "nodePort": specs::FIRST_PORT + number}],
            "ipFamilyPolicy": "RequireDualStack",
            // The first address is the API server's own.
            "clusterIP": specs::address(number + 2, false),
            "clusterIPs": [specs::address(number + 2, false), specs::address(number + 2, true)]}});
        let (status, answer) = request(run, server, "POST", "/api/v1/namespaces/one/services", &body);
        assert_eq!(status, 201, "{answer}");
    }
}

impl Write {
    fn is_unknown(&self) -> bool {
        matches!(self.outcome, ActionResult::Unknown)
    }
}

impl History {
    fn lists(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry, super::watcher::Entry::List(_))).count()
    }
}
