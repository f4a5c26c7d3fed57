//! The representations of objects: Table, metadata only, YAML, protobuf; for lists, single objects and watches.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::io::Read;

use common::*;
use portolan_schema::protobuf;
use portolan_serve::{Config, Object};
use serde_json::{Value, json};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

fn accept(address: std::net::SocketAddr, path: &str, accept: &str) -> Response {
    request(address, "GET", path, &[("accept", accept)], b"")
}

/// Returns the names of the columns, and the cells of each row without the age.
fn shown(table: &Value) -> (Vec<String>, Vec<String>) {
    let columns = table["columnDefinitions"].as_array();
    let columns = columns.into_iter().flatten().map(|it| it["name"].as_str().unwrap().to_owned());
    let rows = table["rows"].as_array().unwrap().iter().map(|row| {
        let cells = row["cells"].as_array().unwrap();
        cells[..5].iter().map(|cell| cell.as_str().unwrap()).collect::<Vec<_>>().join(" ")
    });
    (columns.collect(), rows.collect())
}

#[test]
fn tables_of_lists_and_objects() {
    let server = start(Config::default());
    let address = server.local_addr();
    for name in ["a", "b", "c"] {
        let mut service = service(name);
        service["spec"]["clusterIP"] = "None".into();
        send_json(address, "POST", SERVICES, &service).expect(201);
    }
    let list = accept(address, &format!("{SERVICES}?limit=2"), TABLE);
    assert_eq!(list.header("content-type"), Some("application/json"));
    assert_eq!(list.header("vary"), Some("Accept"));
    let list = list.expect(200);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(list["metadata"]["remainingItemCount"], 1);
    let (columns, rows) = shown(&list);
    assert_eq!(columns, ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"]);
    assert_eq!(rows, ["a ClusterIP None <none> 80/TCP", "b ClusterIP None <none> 80/TCP"]);
    let object = &list["rows"][0]["object"];
    assert_eq!(
        (&object["kind"], &object["metadata"]["name"]),
        (&json!("PartialObjectMetadata"), &json!("a"))
    );
    let token = list["metadata"]["continue"].as_str().unwrap();
    let rest = accept(address, &format!("{SERVICES}?limit=2&continue={token}"), TABLE).expect(200);
    assert_eq!(shown(&rest).1, ["c ClusterIP None <none> 80/TCP"]);

    let one = accept(address, &format!("{SERVICES}/a?includeObject=None"), TABLE).expect(200);
    assert_eq!(
        one["metadata"]["resourceVersion"],
        get(address, &format!("{SERVICES}/a")).json()["metadata"]["resourceVersion"]
    );
    assert_eq!((shown(&one).1.len(), one["rows"][0].get("object")), (1, None));
    let whole = accept(address, &format!("{SERVICES}/a?includeObject=Object"), TABLE).expect(200);
    assert_eq!(whole["rows"][0]["object"]["spec"]["clusterIP"], "None");
    accept(address, &format!("{SERVICES}?includeObject=Some"), TABLE).refused(422, "Invalid");
    // An error is a Status, whatever the client accepts.
    accept(address, &format!("{SERVICES}/none"), TABLE).refused(404, "NotFound");
}

#[test]
fn tables_in_watches_define_their_columns_once() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(service("a")).unwrap();
    let path = format!("{SERVICES}?watch=1&allowWatchBookmarks=1");
    let mut watch = Watch::start_with(address, &path, &[("accept", TABLE)]);
    let first = watch.expect().0;
    assert_eq!((&first["type"], &first["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert_eq!(shown(&first["object"]).0.len(), 7);
    let bookmark = watch.expect().0;
    assert_eq!(bookmark["type"], "BOOKMARK");
    let annotations = &bookmark["object"]["rows"][0]["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    server.api().blocking().apply(labelled("a", "x")).unwrap();
    let next = watch.expect().0;
    assert_eq!((&next["type"], &next["object"]["columnDefinitions"]), (&json!("MODIFIED"), &Value::Null));
    assert_eq!(next["object"]["rows"][0]["object"]["metadata"]["labels"]["app"], "x");
}

#[test]
fn metadata_alone() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(labelled("a", "x")).unwrap();
    let list = accept(address, SERVICES, METADATA_LIST).expect(200);
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(list["items"][0]["metadata"]["labels"]["app"], "x");
    assert_eq!(
        (list["items"][0].get("spec"), &list["items"][0]["kind"]),
        (None, &json!("PartialObjectMetadata"))
    );
    let one = accept(address, &format!("{SERVICES}/a"), METADATA).expect(200);
    assert_eq!((&one["kind"], one.get("spec")), (&json!("PartialObjectMetadata"), None));
    // The type for one object cannot be used for a list, nor the reverse.
    accept(address, SERVICES, METADATA).refused(406, "NotAcceptable");
    accept(address, &format!("{SERVICES}/a"), METADATA_LIST).refused(406, "NotAcceptable");
    let mut watch = Watch::start_with(address, &format!("{SERVICES}?watch=1"), &[("accept", METADATA)]);
    let event = watch.expect().0;
    assert_eq!(
        (&event["object"]["kind"], event["object"].get("spec")),
        (&json!("PartialObjectMetadata"), None)
    );
}

#[test]
fn yaml_and_indented_json() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(service("a")).unwrap();
    for path in [SERVICES.to_owned(), format!("{SERVICES}/a"), "/apis".to_owned(), format!("{SERVICES}/none")]
    {
        let plain = get(address, &path);
        let yaml = accept(address, &path, "application/yaml");
        assert_eq!((yaml.code, yaml.header("content-type")), (plain.code, Some("application/yaml")));
        let decoded: Value = serde_saphyr::from_str(&yaml.text()).unwrap();
        assert_eq!(decoded, plain.json(), "{path}");
    }
    assert_eq!(accept(address, &format!("{SERVICES}?watch=1"), "application/yaml").code, 406);
    for path in [SERVICES.to_owned(), format!("{SERVICES}/a"), "/api/v1".to_owned()] {
        let pretty = get(address, &format!("{path}?pretty=true"));
        assert!(pretty.text().lines().count() > 5, "{path}");
        assert_eq!(pretty.json(), get(address, &path).json());
    }
}

#[test]
fn large_answers_are_packed_for_those_who_ask() {
    let server = start(Config::default());
    let address = server.local_addr();
    for number in 0..300 {
        server.api().blocking().apply(service(&format!("service-with-a-long-name-{number:03}"))).unwrap();
    }
    let packed = [("accept-encoding", "gzip")];
    let small = request(address, "GET", &format!("{SERVICES}?limit=5"), &packed, b"");
    assert_eq!((small.header("content-encoding"), small.code), (None, 200));
    let plain = get(address, SERVICES);
    assert!(plain.body.len() > 128 << 10 && plain.header("content-encoding").is_none());
    let large = request(address, "GET", SERVICES, &packed, b"");
    assert_eq!(large.header("content-encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(large.body.as_slice()).read_to_string(&mut text).unwrap();
    assert!(large.body.len() < text.len() / 5);
    assert_eq!(text, plain.text());
}

#[test]
fn a_read_can_ask_how_new_it_is() {
    let server = start(Config::default());
    let address = server.local_addr();
    let created = server.api().blocking().apply(service("a")).unwrap();
    let path = format!("{SERVICES}/a");
    for revision in [0, created.revision] {
        get(address, &format!("{path}?resourceVersion={revision}")).expect(200);
    }
    get(address, &format!("{path}?resourceVersion=new")).refused(400, "BadRequest");
    get(address, &format!("{path}?resourceVersion={}", u64::MAX)).refused(504, "Timeout");
}

#[test]
fn old_paths_of_watches() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(service("a")).unwrap();
    server.api().blocking().apply(service("b")).unwrap();
    for (path, expected) in [
        ("/api/v1/watch/services", vec!["ADDED a", "ADDED b"]),
        ("/api/v1/watch/namespaces/default/services", vec!["ADDED a", "ADDED b"]),
        ("/api/v1/watch/namespaces/default/services/b", vec!["ADDED b"]),
        ("/api/v1/watch/namespaces/kube-system", vec!["ADDED kube-system"]),
    ] {
        let mut watch = Watch::start(address, path);
        assert_eq!(watch.brief(expected.len()), expected, "{path}");
    }
    request(address, "DELETE", "/api/v1/watch/namespaces/default/services/b", &[], b"")
        .refused(405, "MethodNotAllowed");
    get(address, &format!("{SERVICES}/b")).expect(200);
}

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn decoded(bytes: &[u8]) -> Value {
    let object = protobuf::decode(bytes, ("", ""), protobuf::Limits::default()).unwrap();
    serde_json::to_value(object).unwrap()
}

fn encoded(object: &Value) -> Vec<u8> {
    let object: Object = object.as_object().unwrap().clone().into_iter().collect();
    protobuf::encode(&object).unwrap()
}

#[test]
fn protobuf_bodies_and_answers() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut web = service("web");
    web["metadata"]["labels"] = json!({"app": "x"});
    let body = encoded(&web);
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    let created = request(address, "POST", SERVICES, &headers, &body);
    assert_eq!((created.code, created.header("content-type")), (201, Some(PROTOBUF)));
    let mut created = decoded(&created.body);
    let path = format!("{SERVICES}/web");
    // A message with only zero values is decoded as absent.
    assert_eq!(created.get("status"), None);
    created["status"] = json!({"loadBalancer": {}});
    assert_eq!(created, get(address, &path).json());

    let again = request(address, "POST", SERVICES, &headers, &body);
    assert_eq!((again.code, again.header("content-type")), (409, Some(PROTOBUF)));
    assert_eq!(decoded(&again.body)["reason"], "AlreadyExists");

    let list = accept(address, SERVICES, PROTOBUF);
    let plain = get(address, SERVICES).json();
    let list = decoded(&list.body);
    assert_eq!((&list["kind"], &list["metadata"]), (&json!("ServiceList"), &plain["metadata"]));
    assert_eq!(list["items"][0]["spec"], plain["items"][0]["spec"]);
    let metadata =
        accept(address, SERVICES, &format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"));
    assert_eq!(decoded(&metadata.body)["items"][0]["metadata"], plain["items"][0]["metadata"]);

    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "other"}});
    let options = encoded(&options);
    let refused = request(address, "DELETE", &path, &headers[..1], &options);
    refused.refused(409, "Conflict");
    // Discovery documents have no protobuf form.
    assert_eq!(accept(address, "/apis", PROTOBUF).header("content-type"), Some("application/json"));
}

#[test]
fn a_kept_protobuf_form_follows_its_object() {
    let server = start(Config::default());
    let address = server.local_addr();
    for name in ["a", "b"] {
        let mut object = labelled(name, "x");
        object["metadata"]["annotations"] = json!({"note": "kept ".repeat(100)});
        send_json(address, "POST", SERVICES, &object).expect(201);
    }
    let listed = || {
        let list = decoded(&accept(address, SERVICES, PROTOBUF).body);
        let plain = get(address, SERVICES).json();
        for (item, expected) in
            list["items"].as_array().unwrap().iter().zip(plain["items"].as_array().unwrap())
        {
            assert_eq!((&item["metadata"], &item["spec"]), (&expected["metadata"], &expected["spec"]));
        }
        list["items"].as_array().unwrap().len()
    };
    for _ in 0..4 {
        assert_eq!(listed(), 2);
    }
    send_json(address, "PATCH", &format!("{SERVICES}/b"), &json!({"spec": {"ports": [{"port": 81}]}}))
        .expect(200);
    for _ in 0..4 {
        assert_eq!(listed(), 2);
    }
}

/// Returns the next frame of a watch: the event's type and its object.
fn frame(watch: &mut Watch) -> (String, Value) {
    let length = u32::from_be_bytes(watch.bytes(4).try_into().unwrap());
    let event = watch.bytes(length as usize);
    // WatchEvent{1: type, 2: RawExtension{1: raw}}. The object is at the end and starts with its magic number.
    assert_eq!(event[0], 0x0a);
    let kind = String::from_utf8(event[2..2 + usize::from(event[1])].to_vec()).unwrap();
    let start = event.windows(4).position(|window| window == protobuf::MAGIC).unwrap();
    (kind, decoded(&event[start..]))
}

#[test]
fn protobuf_in_watches() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(service("a")).unwrap();
    let path = format!("{SERVICES}?watch=1&allowWatchBookmarks=1");
    let headers = [("accept", "application/vnd.kubernetes.protobuf;stream=watch")];
    let mut watches = [0, 1].map(|_| Watch::start_with(address, &path, &headers));
    for watch in &mut watches {
        assert_eq!(watch.header("content-type"), Some("application/vnd.kubernetes.protobuf;stream=watch"));
        let (kind, object) = frame(watch);
        assert_eq!((kind.as_str(), &object["metadata"]["name"]), ("ADDED", &json!("a")));
        let (kind, object) = frame(watch);
        assert_eq!((kind.as_str(), &object["kind"]), ("BOOKMARK", &json!("Service")));
        assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    }
    let changed = server.api().blocking().apply(labelled("a", "x")).unwrap();
    delete(address, &format!("{SERVICES}/a")).expect(200);
    for watch in &mut watches {
        let (kind, object) = frame(watch);
        assert_eq!((kind.as_str(), revision(&object)), ("MODIFIED", changed.revision));
        assert_eq!(frame(watch).0, "DELETED");
    }
    let mut late = Watch::start_with(address, &format!("{SERVICES}?watch=1&resourceVersion=1"), &headers);
    let (kind, status) = frame(&mut late);
    assert_eq!((kind.as_str(), &status["reason"]), ("ERROR", &json!("Expired")));
}

#[test]
fn events_under_their_old_names() {
    let server = start(Config::default());
    let address = server.local_addr();
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "regarding": {"kind": "Service", "namespace": "default", "name": "web"}, "note": "full", "reason": "Full", "type": "Warning",
        "action": "Allocate", "reportingController": "test", "reportingInstance": "a", "eventTime": "2026-03-01T00:00:00.000000Z"});
    server.api().blocking().apply(event).unwrap();
    let events = "/api/v1/namespaces/default/events";
    let one = get(address, &format!("{events}/e")).expect(200);
    assert_eq!((&one["apiVersion"], &one["message"]), (&json!("v1"), &json!("full")));
    for (selector, count) in [("involvedObject.name=web", 1), ("involvedObject.name=x", 0)] {
        let list = get(address, &format!("{events}?fieldSelector={selector}")).expect(200);
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("EventList"), &json!("v1")));
        assert_eq!(list["items"].as_array().unwrap().len(), count);
        for item in list["items"].as_array().unwrap() {
            assert_eq!(item["involvedObject"]["name"], "web");
        }
    }
    let list = decoded(&accept(address, events, PROTOBUF).body);
    assert_eq!(list["items"][0]["message"], "full");
    let mut watch = Watch::start(address, &format!("{events}?watch=1"));
    let event = watch.expect().0;
    assert_eq!((&event["type"], &event["object"]["message"]), (&json!("ADDED"), &json!("full")));
    delete(address, &format!("{events}/e")).expect(200);
    let event = watch.expect().0;
    assert_eq!((&event["type"], &event["object"]["apiVersion"]), (&json!("DELETED"), &json!("v1")));
}
