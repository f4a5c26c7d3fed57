//! PATCH in all its media types, and the ownership of fields, over HTTP.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::SocketAddr;

use common::*;
use portolan_serve::Config;
use serde_json::{Value, json};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn patch(address: SocketAddr, path: &str, media_type: &str, body: &Value) -> Response {
    patch_text(address, path, media_type, &body.to_string())
}

fn patch_text(address: SocketAddr, path: &str, media_type: &str, body: &str) -> Response {
    let headers = [("content-type", media_type), ("user-agent", "tester/1.0 (linux)")];
    request(address, "PATCH", path, &headers, body.as_bytes())
}

fn web() -> String {
    format!("{SERVICES}/web")
}

/// Returns `manager operation[/subresource]` of each entry in `managedFields`.
fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let line = |entry: &Value| {
        let subresource = text(entry, "subresource");
        let subresource = if subresource.is_empty() { subresource } else { format!("/{subresource}") };
        format!("{} {}{subresource}", text(entry, "manager"), text(entry, "operation"))
    };
    entries.iter().map(line).collect()
}

#[test]
fn every_media_type_patches_as_it_should() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut object = service("web");
    object["metadata"]["labels"] = json!({"a/b": "1"});
    object["metadata"]["finalizers"] = json!(["example.com/x"]);
    send_json(address, "POST", SERVICES, &object).expect(201);

    let operations = json!([
        {"op": "test", "path": "/metadata/labels/a~1b", "value": "1"},
        {"op": "add", "path": "/spec/ports/-", "value": {"name": "b", "port": 81}},
        {"op": "add", "path": "/spec/ports/0/name", "value": "a"},
        {"op": "replace", "path": "/spec/type", "value": "NodePort"},
    ]);
    let patched = patch(address, &web(), JSON, &operations).expect(200);
    assert_eq!(patched["spec"]["ports"][1]["targetPort"], 81, "defaults are filled in");
    let node_port = patched["spec"]["ports"][0]["nodePort"].clone();
    assert!(node_port.is_number());

    let strategic = json!({"spec": {"ports": [{"port": 80, "targetPort": "http"}, {"port": 81, "$patch": "delete"}]},
        "metadata": {"finalizers": ["example.com/y"]}});
    let patched = patch(address, &web(), STRATEGIC, &strategic).expect(200);
    assert_eq!(
        patched["spec"]["ports"],
        json!([{"name": "a", "nodePort": node_port, "port": 80, "protocol": "TCP", "targetPort": "http"}])
    );
    assert_eq!(patched["metadata"]["finalizers"], json!(["example.com/y", "example.com/x"]));

    let merge =
        json!({"metadata": {"finalizers": null, "labels": {"a/b": null}}, "spec": {"type": "ClusterIP"}});
    let patched = patch(address, &web(), MERGE, &merge).expect(200);
    assert!(patched["metadata"]["finalizers"].is_null() && patched["spec"]["ports"][0]["nodePort"].is_null());

    let unchanged = patch(address, &web(), MERGE, &merge).expect(200);
    assert_eq!(unchanged, patched, "nothing is written");
}

#[test]
fn patches_that_cannot_be_done_are_refused() {
    let server = start(Config::default());
    let address = server.local_addr();
    let created = send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let refused = |media_type: &str, body: &Value, code: u16, reason: &str| {
        patch(address, &web(), media_type, body).refused(code, reason)
    };
    let test = json!([{"op": "test", "path": "/spec/type", "value": "NodePort"}]);
    let failed = patch(address, &web(), JSON, &test);
    failed.refused(422, "Invalid");
    let cause = &failed.json()["details"]["causes"][0];
    assert_eq!(cause["message"], "JSON patch operation 0 (test /spec/type): the value is another one");
    refused(JSON, &json!([{"op": "remove", "path": "/spec/nothing"}]), 422, "Invalid");
    refused(JSON, &json!({"spec": {}}), 400, "BadRequest");
    refused(JSON, &json!([{"op": "what", "path": "/spec"}]), 400, "BadRequest");
    refused(JSON, &vec![test[0].clone(); 10_001].into(), 413, "RequestEntityTooLarge");
    refused(JSON, &json!([{"op": "replace", "path": "", "value": 1}]), 422, "Invalid");
    refused(STRATEGIC, &json!({"spec": {"ports": [{"name": "x"}]}}), 422, "Invalid");
    refused(STRATEGIC, &json!({"spec": {"$patch": "x"}}), 400, "BadRequest");
    let message = refused(MERGE, &json!({"spec": {"ports": "x"}}), 422, "Invalid");
    assert!(message.contains("patch") && message.contains("spec.ports"), "{message}");
    refused(MERGE, &json!({"spec": {"type": "Bogus"}}), 422, "Invalid");
    refused(MERGE, &json!({"metadata": {"resourceVersion": "1"}}), 409, "Conflict");
    refused(MERGE, &json!({"metadata": {"uid": "other"}}), 409, "Conflict");
    refused(MERGE, &json!({"metadata": {"managedFields": [{"operation": "Have"}]}}), 422, "Invalid");
    refused("application/json", &json!({}), 415, "UnsupportedMediaType");
    let absent = format!("{SERVICES}/absent");
    for media_type in [MERGE, STRATEGIC] {
        patch(address, &absent, media_type, &json!({})).refused(404, "NotFound");
    }
    patch(address, &absent, MERGE, &json!({"metadata": {"uid": "u"}})).refused(409, "Conflict");
    let forced = format!("{}?force=true", web());
    patch(address, &forced, MERGE, &json!({})).refused(422, "Invalid");
    let long = format!("{}?fieldManager={}", web(), "x".repeat(129));
    patch(address, &long, MERGE, &json!({})).refused(422, "Invalid");
    assert_eq!(get(address, &web()).expect(200), created);
}

#[test]
fn strict_field_validation_counts_for_patches() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let typo = json!({"spec": {"clusterIp": "10.0.0.1"}});
    patch(address, &format!("{}?fieldValidation=Strict", web()), STRATEGIC, &typo).refused(400, "BadRequest");
    let warned = patch(address, &web(), STRATEGIC, &typo);
    assert_eq!(warned.header("warning"), Some("299 - \"unknown field \\\"spec.clusterIp\\\"\""));
}

#[test]
fn deep_and_huge_patches_are_refused() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let applied = format!("{}?fieldManager=m", web());
    for depth in [200, 2_000, 100_000, 1_400_000] {
        let nested = |open: &str, close: &str| open.repeat(depth) + "1" + &close.repeat(depth);
        for (path, media_type, body) in [
            (&web(), MERGE, nested("{\"a\":", "}")),
            (&web(), STRATEGIC, nested("{\"spec\":", "}")),
            (&web(), JSON, format!("[{{\"op\":\"add\",\"path\":\"/a\",\"value\":{}}}]", nested("[", "]"))),
            (&web(), JSON, nested("[", "]")),
            (&applied, APPLY, nested("[", "]")),
            (&applied, APPLY, nested("- ", "")),
            (&applied, APPLY, format!("apiVersion: v1\nkind: Service\nspec: {}", nested("{a: ", "}"))),
        ] {
            let code = patch_text(address, path, media_type, &body).code;
            assert!([400, 413].contains(&code), "{depth} {media_type}: {code}");
        }
    }
    let aliases = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, number| {
        let before = number - 1;
        format!("{text}a{number}: &a{number} [*a{before}, *a{before}]\n")
    });
    patch_text(address, &applied, APPLY, &aliases).refused(413, "RequestEntityTooLarge");
    get(address, &web()).expect(200);
}

#[test]
fn server_side_apply_creates_changes_and_takes_back() {
    let server = start(Config::default());
    let address = server.local_addr();
    let path = |parameters: &str| format!("{}?{parameters}", web());
    let yaml = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  labels:\n    app: web\nspec:\n  type: NodePort\n  ports:\n  - port: 80\n";
    patch_text(address, &web(), APPLY, yaml).refused(422, "Invalid");
    let created = patch_text(address, &path("fieldManager=one"), APPLY, yaml).expect(201);
    assert_eq!(managers(&created), ["one Apply"]);
    assert!(created["spec"]["clusterIP"].is_string() && created["spec"]["ports"][0]["nodePort"].is_number());
    let again = patch_text(address, &path("fieldManager=one"), APPLY, yaml).expect(200);
    assert_eq!(again, created, "nothing is written");

    let mut other = service("web");
    other["spec"] = json!({"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]});
    let refused = patch(address, &path("fieldManager=two"), APPLY, &other);
    let message = refused.refused(409, "Conflict");
    assert!(message.contains("conflict with \"one\": .spec.type"), "{message}");
    let causes = refused.json()["details"]["causes"].clone();
    assert_eq!(
        causes,
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".spec.type"}])
    );
    let dry = path("fieldManager=two&force=true&dryRun=All");
    assert_eq!(patch(address, &dry, APPLY, &other).expect(200)["spec"]["type"], "LoadBalancer");
    assert_eq!(get(address, &web()).expect(200), created);
    let forced = patch(address, &path("fieldManager=two&force=true"), APPLY, &other).expect(200);
    assert_eq!(managers(&forced), ["one Apply", "two Apply"]);
    assert_eq!(forced["spec"]["clusterIP"], created["spec"]["clusterIP"]);

    let less = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
    let taken_back = patch(address, &path("fieldManager=one"), APPLY, &less).expect(200);
    assert!(taken_back["metadata"]["labels"].is_null());
    assert_eq!(taken_back["spec"]["ports"][0]["port"], 80, "the other manager wants it");
    assert_eq!(taken_back["spec"]["ports"][0]["nodePort"], created["spec"]["ports"][0]["nodePort"]);

    let mut wrong = less.clone();
    wrong["metadata"]["name"] = "other".into();
    patch(address, &path("fieldManager=one"), APPLY, &wrong).refused(400, "BadRequest");
    let mut known = less.clone();
    known["metadata"]["uid"] = "u".into();
    patch(
        address,
        &format!("{SERVICES}/new?fieldManager=one"),
        APPLY,
        &json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"uid": "u"}}),
    )
    .refused(409, "Conflict");
    patch(address, &path("fieldManager=one"), APPLY, &known).refused(409, "Conflict");
    patch(address, &path("fieldManager=one"), APPLY, &json!({"spec": {}})).refused(400, "BadRequest");
}

#[test]
fn ordinary_writes_record_their_writers() {
    let server = start(Config::default());
    let address = server.local_addr();
    let headers = [("content-type", "application/json"), ("user-agent", "maker/2.1 (x)")];
    let body = service("web").to_string();
    let created = request(address, "POST", SERVICES, &headers, body.as_bytes()).expect(201);
    assert_eq!(managers(&created), ["maker Update"]);
    let fields = &created["metadata"]["managedFields"][0]["fieldsV1"];
    assert!(fields["f:spec"]["f:sessionAffinity"].is_object(), "defaults are the creator's: {fields}");
    assert!(fields["f:spec"]["f:clusterIP"].is_null(), "what is allocated has no manager: {fields}");
    assert!(fields["f:metadata"].is_null(), "identity has no manager: {fields}");

    let patched = patch(address, &web(), MERGE, &json!({"spec": {"type": "NodePort"}})).expect(200);
    assert_eq!(managers(&patched), ["maker Update", "tester Update"]);
    let fields = json!({"f:spec": {"f:externalTrafficPolicy": {}, "f:type": {}}});
    assert_eq!(
        patched["metadata"]["managedFields"][1]["fieldsV1"], fields,
        "the default is the writer's, the node port has no manager"
    );

    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": "2030-01-01T00:00:00Z", "reason": "R", "message": ""});
    let status =
        json!({"status": {"conditions": [condition("C", "True")]}, "metadata": {"labels": {"a": "b"}}});
    let path = format!("{}/status?fieldManager=cloud", web());
    let patched = patch(address, &path, MERGE, &status).expect(200);
    assert_eq!(managers(&patched), ["cloud Update/status", "maker Update", "tester Update"]);
    let applied = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "ClusterIP"},
        "status": {"conditions": [condition("A", "True")]}});
    let path = format!("{}/status?fieldManager=ssa", web());
    let patched = patch(address, &path, APPLY, &applied).expect(200);
    assert_eq!(managers(&patched)[0], "ssa Apply/status");
    assert_eq!(
        (&patched["spec"]["type"], &patched["status"]["conditions"][1]["type"]),
        (&json!("NodePort"), &json!("A"))
    );

    let mut silent = patched.clone();
    silent["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(
        send_json(address, "PUT", &web(), &silent).expect(200),
        patched,
        "not lost by who doesn't know of it"
    );
    let reset = patch(
        address,
        &web(),
        JSON,
        &json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]),
    );
    assert!(managers(&reset.expect(200)).is_empty());
    let first = patch(address, &format!("{}?fieldManager=late", web()), APPLY, &service("web")).expect(200);
    assert_eq!(managers(&first), ["late Apply", "before-first-apply Update"]);
}

#[test]
fn concurrent_patches_all_succeed() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    std::thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let label = json!({"metadata": {"labels": {format!("l{number}"): format!("{round}")}}});
                    patch(address, &web(), MERGE, &label).expect(200);
                }
            });
        }
    });
    let labels = get(address, &web()).expect(200)["metadata"]["labels"].clone();
    let expected: serde_json::Map<String, Value> =
        (0..8).map(|number| (format!("l{number}"), json!("9"))).collect();
    assert_eq!(labels, Value::Object(expected));
}
