#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use portolan_engine::{Cause, Messages, ObjectChanges, Reason, Step};
use portolan_model::object::{decode_endpoint_slice, decode_service};
use portolan_model::{Family, Protocol, ServicePortName};
use serde_json::json;

use super::*;

fn web(annotation: &str) -> Event {
    let service = json!({
        "metadata": {
            "namespace": "shop", "name": "web", "resourceVersion": "7",
            "annotations": {"portolan.dev/ipvs-scheduler": annotation, "x": annotation},
        },
        "spec": {
            "type": "NodePort", "clusterIP": "10.96.0.80", "sessionAffinity": "ClientIP",
            "externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.7"],
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        },
    });
    Event::Service(decode_service(service.to_string().as_bytes()).unwrap())
}

fn slice_of(endpoints: usize) -> Event {
    let endpoint = |n: usize| {
        json!({
            "addresses": [format!("10.244.{}.{}", n / 200, n % 200)], "nodeName": if n == 1 { "n1" } else { "n2" },
            "conditions": {"ready": n != 2, "serving": n != 3, "terminating": n == 2},
        })
    };
    let slice = json!({
        "metadata": {
            "namespace": "shop", "name": "web-a", "resourceVersion": "8",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": (1..=endpoints).map(endpoint).collect::<Vec<_>>(),
    });
    Event::EndpointSlice(decode_endpoint_slice(slice.to_string().as_bytes()).unwrap())
}

fn apply(catalog: &mut Catalog, event: Event) -> ObjectEvent {
    let seen = Seen::of(&event).unwrap();
    let applied = catalog.apply(event);
    let Entry::Object(event) = seen.entry(&applied, catalog) else { panic!("an object") };
    event
}

#[test]
fn an_object_is_recorded_as_the_catalog_keeps_it() {
    let mut catalog = Catalog::new("n1");
    let event = apply(&mut catalog, web("PLANTED"));
    assert_eq!(
        event.kept,
        "cluster IPs 10.96.0.80; ports http=80/TCP@30080; external IPs 192.0.2.7; session affinity 10800 s; \
         external traffic policy Local"
    );
    assert_eq!((&*event.resource_version, event.changed), ("7", true));
    assert_eq!(event.faults, ["metadata.annotations[portolan.dev/ipvs-scheduler]"]);
    assert!(!format!("{event:?}").contains("PLANTED"), "{event:?}");
    let again = apply(&mut catalog, web("PLANTED"));
    assert_eq!((again.changed, &*again.kept), (false, ""));
    let event = apply(&mut catalog, slice_of(3));
    assert_eq!(
        event.kept,
        "of web; IPv4; ports http=8080/TCP; 3 endpoints: 10.244.0.1 local, 10.244.0.2 not-ready terminating, \
         10.244.0.3"
    );
    let event = apply(&mut catalog, slice_of(900));
    assert!(event.kept.len() < 1_000 && event.kept.contains("900 endpoints: "), "{}", event.kept);
    assert!(event.kept.ends_with(" more"), "{}", event.kept);
    let deleted = apply(&mut catalog, Event::ServiceDeleted(ObjectKey::new("shop", "web")));
    assert_eq!((deleted.verb, deleted.changed, &*deleted.kept), (Verb::Deleted, true, ""));
}

#[test]
fn what_a_list_does_not_change_is_counted_only() {
    let mut lists = Lists::default();
    assert!(lists.records(Kind::Service, false), "outside of a list");
    assert_eq!(lists.follow(&Event::ListStart(Kind::Service)), None);
    assert!(!lists.records(Kind::Service, false) && lists.records(Kind::Service, true));
    assert!(lists.records(Kind::Node, false), "another kind");
    let end = lists.follow(&Event::ListEnd(Kind::Service));
    assert_eq!(end, Some(note("list", "Service objects, 2 listed, 1 of them changed")));
    assert!(lists.follow(&Event::ListEnd(Kind::Service)).is_none() && lists.records(Kind::Service, false));
}

fn backends(list: &[u8]) -> Box<[Backend]> {
    list.iter().map(|n| Backend { address: [10, 0, 0, *n].into(), port: 80, may_hairpin: false }).collect()
}

fn port(name: &str) -> Arc<ServicePortName> {
    let (namespace, service, port) = ("shop".into(), "web".into(), name.into());
    Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
}

#[test]
fn a_change_says_what_differs() {
    let old = Forwarding::plain(([10, 96, 0, 1], 80).into(), Protocol::Tcp, backends(&[1, 2]));
    let new =
        Forwarding { cluster: backends(&[2, 3]), local: backends(&[3]), affinity: Some(9), ..old.clone() };
    let of = |old: Option<&Forwarding>, new: Option<&Forwarding>| {
        let [old, new] = [old, new].map(|it| it.cloned().map(Arc::new));
        let Entry::Change(change) = of_change(&Change { name: port("http"), family: Family::Ipv4, old, new })
        else {
            panic!("a change")
        };
        change
    };
    let change = of(Some(&old), Some(&new));
    assert_eq!(change.difference, "another session affinity, +10.0.0.3:80, -10.0.0.1:80, +local 10.0.0.3:80");
    assert_eq!(change.before, Some(Size { frontends: 1, cluster: 2, local: 0 }));
    assert_eq!(&*change.service_port, "shop/web:http");
    let added = of(None, Some(&old));
    assert_eq!(
        (added.before, &*added.difference),
        (None, "+cluster IP 10.96.0.1:80, +10.0.0.1:80, +10.0.0.2:80")
    );
    let removed = of(Some(&old), None);
    assert_eq!(removed.difference, "-cluster IP 10.96.0.1:80, -10.0.0.1:80, -10.0.0.2:80");
}

#[test]
fn a_commit_says_what_was_written_or_why_not() {
    let line = "delete element ip6 portolan services { fd00::1 . tcp . 80 }";
    let mut messages = Messages::default();
    messages.extend([line.to_owned(), "x".repeat(2_000)]);
    let written = portolan_engine::Commit {
        messages,
        elements: 3,
        bytes: 9,
        kernel: Duration::from_micros(5),
        ..Default::default()
    };
    let mut report = Report {
        family: Family::Ipv6,
        mode: "nftables",
        duration: Duration::from_micros(70),
        taken_before: Duration::from_micros(70),
        full: true,
        repaired: true,
        verified: false,
        step: Step::Commit,
        cause: Cause { reason: Some(Reason::Drift), changed: 1, first: vec![port("")] },
        outcome: Ok(written),
        triggers: Vec::new(),
        udp: Vec::new(),
        objects: ObjectChanges::default(),
        health_checks: Vec::new(),
        changed: Vec::new(),
    };
    let want = Commit {
        family: "IPv6".into(),
        mode: "nftables".into(),
        step: "commit".into(),
        reason: Some("drift".into()),
        full: true,
        repaired: true,
        changed: 1,
        service_ports: vec!["shop/web".into()],
        elements: 3,
        bytes: 9,
        messages: vec![line.into(), "...".into()],
        duration_us: 70,
        kernel_us: 5,
        ..Commit::default()
    };
    assert_eq!(of_report(&report), Entry::Commit(want.clone()));
    let error = portolan_engine::Error::Contended { mode: "iptables", attempts: 3, is_unchanged: false };
    let text = error.to_string();
    report.outcome = Err(error);
    let failed =
        Commit { elements: 0, bytes: 0, kernel_us: 0, messages: Vec::new(), error: Some(text), ..want };
    assert_eq!(of_report(&report), Entry::Commit(failed));
}
