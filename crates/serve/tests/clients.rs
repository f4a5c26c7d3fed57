//! What clients such as kubectl ask besides objects: Pods, questions about themselves, warnings, paths, enumerations.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::{collections::BTreeSet, net::SocketAddr};

use common::*;
use portolan_schema::protobuf;
use portolan_serve::{Config, ControllersConfig};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const DEPRECATED: &str =
    "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"";

fn warnings(response: &Response) -> Vec<&str> {
    let warnings = response.headers.iter().filter(|(name, _)| name == "warning");
    warnings.map(|(_, value)| value.as_str()).collect()
}

#[test]
fn there_are_no_pods() {
    let server = start(Config::default());
    let address = server.local_addr();
    let of_a_node = "fieldSelector=spec.nodeName%3Dn1,status.phase!%3DSucceeded,status.phase!%3DFailed";
    for path in [PODS.to_owned(), "/api/v1/pods".to_owned(), format!("/api/v1/pods?{of_a_node}&limit=500")] {
        let list = get(address, &path).expect(200);
        assert_eq!((&list["kind"], &list["items"]), (&json!("PodList"), &json!([])), "{path}");
        assert!(revision(&list) > 0);
    }
    get(address, "/api/v1/pods?fieldSelector=spec.containers%3Dx").refused(400, "BadRequest");
    let missing = get(address, &format!("{PODS}/web")).refused(404, "NotFound");
    assert_eq!(missing, "pods \"web\" not found");
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = Watch::start(address, &format!("{PODS}?{query}"));
    assert_eq!(watch.expect().kind(), "BOOKMARK");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
    send_json(address, "POST", PODS, &pod).refused(405, "MethodNotAllowed");
    send_json(address, "PUT", &format!("{PODS}/web"), &pod).refused(405, "MethodNotAllowed");
    delete(address, &format!("{PODS}/web")).refused(405, "MethodNotAllowed");
    delete(address, PODS).refused(405, "MethodNotAllowed");
    assert!(server.api().blocking().apply(pod).is_err(), "nor from a folder of manifests");
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    let list = request(address, "GET", PODS, &accept, b"");
    let list = protobuf::decode(&list.body, ("", ""), protobuf::Limits::default()).unwrap();
    assert_eq!(list["kind"], "PodList");
}

#[test]
fn an_object_with_a_pod_as_its_owner_stays() {
    let server = start(Config::default());
    let address = server.local_addr();
    let owned_by = |name: &str, kind: &str| {
        let mut object = service(name);
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": kind, "name": "gone", "uid": format!("uid-of-{name}")}]);
        send_json(address, "POST", SERVICES, &object).expect(201);
    };
    owned_by("of-a-pod", "Pod");
    owned_by("of-a-service", "Service");
    until("the other one is collected", || get(address, &format!("{SERVICES}/of-a-service")).code == 404);
    get(address, &format!("{SERVICES}/of-a-pod")).expect(200);
}

#[test]
fn clients_learn_what_they_may_do_and_who_they_are() {
    let server = start(Config::default());
    let address = server.local_addr();
    let before = revision(&get(address, SERVICES).json());
    let asked = json!({"resourceAttributes": {"verb": "delete", "resource": "nodes"}});
    let access =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": asked});
    let answer = send_json(address, "POST", ACCESS, &access).expect(201);
    assert_eq!((&answer["spec"], &answer["status"]), (&asked, &json!({"allowed": true})));
    assert_eq!((&answer["kind"], &answer["apiVersion"]), (&access["kind"], &access["apiVersion"]));
    let rules = send_json(address, "POST", RULES, &json!({"spec": {"namespace": "default"}})).expect(201);
    let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    assert_eq!(rules["status"]["resourceRules"][0], everything);
    assert_eq!(rules["status"]["incomplete"], false);
    let user = send_json(address, "POST", SELF, &json!({})).expect(201);
    let groups = json!(["system:masters", "system:authenticated"]);
    assert_eq!(user["status"]["userInfo"], json!({"username": "system:unsecured", "groups": groups}));

    let mut typo = access.clone();
    typo["spec"]["resourceAttributes"]["verbs"] = "get".into();
    let warned = send_json(address, "POST", ACCESS, &typo);
    assert_eq!(
        (warned.code, warnings(&warned)),
        (201, vec!["299 - \"unknown field \\\"spec.resourceAttributes.verbs\\\"\""])
    );
    send_json(address, "POST", &format!("{ACCESS}?fieldValidation=Strict"), &typo).refused(400, "BadRequest");
    send_json(address, "POST", ACCESS, &json!({"kind": "Service"})).refused(400, "BadRequest");
    send_json(address, "POST", ACCESS, &json!({"spec": {}})).refused(422, "Invalid");
    send_json(address, "POST", RULES, &json!({})).refused(400, "BadRequest");
    for path in [ACCESS, RULES, SELF] {
        get(address, path).refused(405, "MethodNotAllowed");
        get(address, &format!("{path}?watch=1")).refused(405, "MethodNotAllowed");
        get(address, &format!("{path}/x")).refused(405, "MethodNotAllowed");
    }
    assert_eq!(revision(&get(address, SERVICES).json()), before, "nothing is stored");

    // kubectl sends these as protobuf, from some version on.
    let media_type = "application/vnd.kubernetes.protobuf";
    let headers = [("content-type", media_type), ("accept", media_type)];
    let object: portolan_serve::Object = serde_json::from_value(access).unwrap();
    let answer = request(address, "POST", ACCESS, &headers, &protobuf::encode(&object).unwrap());
    let answer = protobuf::decode(&answer.body, ("", ""), protobuf::Limits::default()).unwrap();
    assert_eq!(answer["status"]["allowed"], true);
}

#[test]
fn every_verb_of_endpoints_warns_that_they_are_deprecated() {
    let server = start(Config::default());
    let address = server.local_addr();
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web"}});
    let one = format!("{ENDPOINTS}/web");
    let check = |response: &Response, code: u16, what: &str| {
        assert_eq!(
            (response.code, warnings(response)),
            (code, vec![DEPRECATED]),
            "{what}: {}",
            response.text()
        );
    };
    check(&get(address, &one), 404, "a get of nothing");
    check(&send_json(address, "POST", ENDPOINTS, &endpoints), 201, "create");
    check(&send_json(address, "POST", ENDPOINTS, &endpoints), 409, "create again");
    check(&get(address, &one), 200, "get");
    check(&get(address, ENDPOINTS), 200, "list");
    check(&get(address, "/api/v1/endpoints"), 200, "list everywhere");
    check(&send_json(address, "PUT", &one, &endpoints), 200, "update");
    check(&send_json(address, "PATCH", &one, &json!({"metadata": {"labels": {"a": "b"}}})), 200, "patch");
    let watch = Watch::start(address, &format!("{ENDPOINTS}?watch=1"));
    assert_eq!(watch.header("warning"), Some(DEPRECATED));
    check(&delete(address, &one), 200, "delete");
    check(&delete(address, ENDPOINTS), 200, "deletecollection");
    assert_eq!(warnings(&get(address, SERVICES)), [""; 0]);
}

#[test]
fn a_refusal_has_the_warnings_about_the_request() {
    let server = start(Config::default());
    let address = server.local_addr();
    let unknown = "299 - \"unknown field \\\"spec.prots\\\"\"";
    let mut bad = service("web");
    bad["spec"]["prots"] = json!([]);
    bad["spec"]["type"] = "Other".into();
    let refused = send_json(address, "POST", SERVICES, &bad);
    assert_eq!((refused.code, warnings(&refused)), (422, vec![unknown]));
    let elsewhere = send_json(address, "POST", "/api/v1/namespaces/none/services", &bad);
    assert_eq!((elsewhere.code, warnings(&elsewhere)), (404, vec![unknown]));
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let one = format!("{SERVICES}/web");
    for method in ["PUT", "PATCH"] {
        let refused = send_json(address, method, &one, &bad);
        assert_eq!((refused.code, warnings(&refused)), (422, vec![unknown]), "{method}");
        let mut stale = bad.clone();
        stale["metadata"]["resourceVersion"] = "1".into();
        let refused = send_json(address, method, &one, &stale);
        assert_eq!((refused.code, warnings(&refused)), (409, vec![unknown]), "{method}");
    }
    // So has one because the name exists: the object was checked before.
    let mut again = service("web");
    again["spec"]["prots"] = json!([]);
    again["spec"]["externalIPs"] = json!(["192.0.2.1"]);
    for query in ["", "?dryRun=All"] {
        let refused = send_json(address, "POST", &format!("{SERVICES}{query}"), &again);
        assert_eq!(refused.refused(409, "AlreadyExists"), "services \"web\" already exists");
        let warned = warnings(&refused);
        assert_eq!((warned.len(), warned[0]), (2, unknown), "{warned:?}");
        assert!(warned[1].contains("spec.externalIPs"), "{warned:?}");
    }
    let refused = send_json(address, "POST", SERVICES, &bad);
    assert_eq!((refused.code, warnings(&refused)), (422, vec![unknown]));
    let twice = r#"{"spec":{"type":"Other","type":"Other"},"metadata":{"name":"web"}}"#;
    let refused = request(address, "PUT", &one, &[("content-type", "application/json")], twice.as_bytes());
    assert_eq!(
        (refused.code, warnings(&refused)),
        (422, vec!["299 - \"duplicate field \\\"spec.type\\\"\""])
    );
    // So has one because the patch itself is malformed.
    for (media_type, patch, field) in [
        (
            "application/apply-patch+yaml",
            r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","name":"web","managedFields":[]}}"#,
            "metadata.name",
        ),
        ("application/json-patch+json", r#"[{"op":"remove","op":"remove"}]"#, "[0].op"),
        ("application/merge-patch+json", r#"[{"a":1,"a":1}]"#, "[0].a"),
    ] {
        let path = format!("{one}?fieldManager=me");
        let refused = request(address, "PATCH", &path, &[("content-type", media_type)], patch.as_bytes());
        let duplicate = format!("299 - \"duplicate field \\\"{field}\\\"\"");
        assert_eq!((refused.code, warnings(&refused)), (400, vec![&*duplicate]), "{media_type}");
    }
}

#[test]
fn a_write_of_the_status_does_not_warn_about_the_spec() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut web = service("web");
    web["spec"]["externalIPs"] = json!(["192.0.2.1"]);
    let created = send_json(address, "POST", SERVICES, &web);
    assert_eq!((created.code, warnings(&created).len()), (201, 1));
    let one = format!("{SERVICES}/web");
    let condition = json!({"type": "Ready", "status": "True", "reason": "Tested", "message": "",
        "lastTransitionTime": "2026-11-21T21:03:57Z"});
    let status = json!({"status": {"conditions": [condition]}});
    let patched = send_json(address, "PATCH", &format!("{one}/status"), &status);
    assert_eq!((patched.code, warnings(&patched)), (200, vec![]), "{}", patched.text());
    let put = send_json(address, "PUT", &format!("{one}/status"), &patched.json());
    assert_eq!((put.code, warnings(&put)), (200, vec![]), "{}", put.text());
    let unknown = send_json(address, "PATCH", &format!("{one}/status"), &json!({"status": {"x": 1}}));
    assert_eq!(warnings(&unknown), ["299 - \"unknown field \\\"status.x\\\"\""]);
}

#[test]
fn a_write_of_the_status_warns_about_the_form_of_its_addresses() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut web = service("web");
    web["spec"]["type"] = "LoadBalancer".into();
    send_json(address, "POST", SERVICES, &web).expect(201);
    let one = format!("{SERVICES}/web");
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"ip": "FD00::1"}]}}});
    let expected = "299 - \"status.loadBalancer.ingress[1].ip: \\\"FD00::1\\\" is not in canonical form; write \\\"fd00::1\\\"\"";
    let patched = send_json(address, "PATCH", &format!("{one}/status"), &status);
    assert_eq!((patched.code, warnings(&patched)), (200, vec![expected]), "{}", patched.text());
    let put = send_json(address, "PUT", &format!("{one}/status"), &patched.json());
    assert_eq!((put.code, warnings(&put)), (200, vec![expected]), "{}", put.text());
    // The main endpoint does not write the status.
    let labelled = send_json(address, "PATCH", &one, &json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!((labelled.code, warnings(&labelled)), (200, vec![]), "{}", labelled.text());
}

#[test]
fn the_root_lists_the_paths_that_are_answered() {
    let server = start(Config::default());
    let address = server.local_addr();
    let root = get(address, "/").expect(200);
    let paths: BTreeSet<&str> =
        root["paths"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    for path in
        ["/api", "/api/v1", "/apis/networking.k8s.io", "/apis/networking.k8s.io/v1", "/metrics", "/readyz"]
    {
        assert!(paths.contains(path), "{path} in {paths:?}");
    }
    for path in &paths {
        assert_eq!(get(address, path).code, 200, "{path}");
    }
    send_json(address, "POST", "/", &json!({})).refused(405, "MethodNotAllowed");
    get(address, "//").refused(400, "BadRequest");
}

/// Returns the schema of a field in the OpenAPI 3 document of `v1`.
fn schema(address: SocketAddr, structure: &str, field: &str) -> Value {
    let document = get(address, "/openapi/v3/api/v1").expect(200);
    document["components"]["schemas"][structure]["properties"][field].clone()
}

#[test]
fn openapi_lists_values_and_defaults() {
    let server = start(Config::default());
    let address = server.local_addr();
    let kind = schema(address, "io.k8s.api.core.v1.ServiceSpec", "type");
    assert_eq!(kind["enum"], json!(["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]));
    assert_eq!(kind["default"], "ClusterIP");
    let families = schema(address, "io.k8s.api.core.v1.ServiceSpec", "ipFamilies");
    assert_eq!(families["items"]["enum"], json!(["IPv4", "IPv6"]));
    let timeout = schema(address, "io.k8s.api.core.v1.ClientIPConfig", "timeoutSeconds");
    assert_eq!(timeout["default"], 10800);
    let v2 = get(address, "/openapi/v2").expect(200);
    assert_eq!(v2["definitions"]["io.k8s.api.core.v1.ServiceSpec"]["properties"]["type"], kind);
}

/// The revision belonged to another history, such as that of a store before it was restored. So the client lists again.
#[test]
fn a_watch_from_a_future_revision_waits_until_the_store_passes_it() {
    let server = start(Config::default());
    let address = server.local_addr();
    let now = revision(&get(address, SERVICES).json());
    // Each creation of a headless Service is one revision.
    let path = format!("{SERVICES}?watch=1&allowWatchBookmarks=true&resourceVersion={}", now + 2);
    let mut watch = Watch::start(address, &path);
    for name in ["a", "b", "c", "d"] {
        let mut headless = service(name);
        headless["spec"]["clusterIP"] = "None".into();
        let created = server.api().blocking().apply(headless).unwrap();
        assert!(created.revision > now);
    }
    let end = watch.expect();
    assert_eq!((end.kind(), &end.0["object"]["code"]), ("ERROR", &410.into()));
    assert!(watch.next().is_none());
}

#[test]
fn the_service_of_the_server_has_endpoints() {
    let server = start(Config {
        controllers: ControllersConfig {
            kubernetes_service: true,
            advertise_address: Some("192.0.2.1".parse().unwrap()),
            ..ControllersConfig::default()
        },
        ..Config::default()
    });
    let address = server.local_addr();
    let path = format!("{ENDPOINTS}/kubernetes");
    until("the Endpoints exist", || get(address, &path).code == 200);
    let endpoints = get(address, &path).expect(200);
    let port = json!({"name": "https", "port": address.port(), "protocol": "TCP"});
    assert_eq!(endpoints["subsets"], json!([{"addresses": [{"ip": "192.0.2.1"}], "ports": [port]}]));
    let slices = get(address, SLICES).expect(200);
    assert_eq!(slices["items"].as_array().unwrap().len(), 1, "the Endpoints are not mirrored");
}
