//! Writes and reads of single objects over HTTP.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use common::*;
use portolan_serve::{Config, Error, Server};
use serde_json::json;

#[test]
fn create_get_update_patch_delete() {
    let server = start(Config::default());
    let address = server.local_addr();
    let created = send_json(address, "POST", SERVICES, &service("web")).expect(201);
    assert_eq!(created["metadata"]["namespace"], "default");
    assert!(created["metadata"]["uid"].is_string() && created["metadata"]["creationTimestamp"].is_string());
    let path = format!("{SERVICES}/web");
    assert_eq!(get(address, &path).expect(200), created);

    let mut changed = created.clone();
    changed["spec"]["selector"] = json!({"app": "web"});
    let updated = send_json(address, "PUT", &path, &changed).expect(200);
    assert!(revision(&updated) > revision(&created));
    assert_eq!(updated["metadata"]["uid"], created["metadata"]["uid"]);
    let stale = send_json(address, "PUT", &path, &changed).refused(409, "Conflict");
    assert!(stale.contains("resourceVersion"), "{stale}");

    let patched =
        send_json(address, "PATCH", &path, &json!({"spec": {"selector": {"app": null, "tier": "x"}}}));
    assert_eq!(patched.expect(200)["spec"]["selector"], json!({"tier": "x"}));
    let old = json!({"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}});
    send_json(address, "PATCH", &path, &old).refused(409, "Conflict");

    let gone = delete(address, &path).expect(200);
    assert_eq!(gone["metadata"]["uid"], created["metadata"]["uid"]);
    get(address, &path).refused(404, "NotFound");
    delete(address, &path).refused(404, "NotFound");
    let again = send_json(address, "POST", SERVICES, &service("web")).expect(201);
    assert_ne!(again["metadata"]["uid"], created["metadata"]["uid"]);
    send_json(address, "POST", SERVICES, &service("web")).refused(409, "AlreadyExists");
}

#[test]
fn every_kind_is_served() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SLICES, &slice("web", 2)).expect(201);
    let gone = delete(address, &format!("{SLICES}/web")).expect(200);
    assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.1.0.0/24"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let node = send_json(address, "POST", "/api/v1/nodes", &node).expect(201);
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.1.0.0/24"]));
    assert_eq!(node["status"]["addresses"][0]["address"], "192.0.2.1");
    let cidr = get(address, "/apis/networking.k8s.io/v1/servicecidrs/kubernetes").expect(200);
    assert_eq!(cidr["spec"]["cidrs"], json!(["10.96.0.0/12"]));
    assert_eq!(cidr["status"]["conditions"][0]["type"], "Ready");
    let names: Vec<_> = get(address, "/api/v1/namespaces").expect(200)["items"].as_array().unwrap().clone();
    assert_eq!(names.len(), 4);
    send_json(address, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "x"}})).expect(201);
    let elsewhere = "/api/v1/namespaces/x/services";
    send_json(address, "POST", elsewhere, &service("a")).expect(201);
}

#[test]
fn status_changes_only_through_its_subresource() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut balanced = service("web");
    balanced["spec"]["type"] = "LoadBalancer".into();
    balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    let created = send_json(address, "POST", SERVICES, &balanced).expect(201);
    assert_eq!(created["status"], json!({"loadBalancer": {}}), "a create does not take status");
    let path = format!("{SERVICES}/web/status");
    let mut with_status = created.clone();
    with_status["status"] = balanced["status"].clone();
    with_status["spec"]["ports"][0]["port"] = 81.into();
    let updated = send_json(address, "PUT", &path, &with_status).expect(200);
    assert_eq!(updated["spec"], created["spec"], "a status write does not take the rest");
    assert_eq!(updated["status"]["loadBalancer"]["ingress"][0]["ipMode"], "VIP");
    let main = json!({"status": {"loadBalancer": null}});
    let kept = send_json(address, "PATCH", &format!("{SERVICES}/web"), &main).expect(200);
    assert_eq!(kept["status"], updated["status"]);
    assert_eq!(get(address, &path).expect(200)["status"], updated["status"]);
    let mut plain = kept.clone();
    plain["spec"]["type"] = "ClusterIP".into();
    let plain = send_json(address, "PUT", &format!("{SERVICES}/web"), &plain).expect(200);
    assert_eq!(plain["status"]["loadBalancer"], json!({}));
}

#[test]
fn bad_requests_get_one_clear_status() {
    let server = start(Config::default());
    let address = server.local_addr();
    let post = |body: &str| {
        request(address, "POST", SERVICES, &[("content-type", "application/json")], body.as_bytes())
    };
    let with_port =
        |port: &str| format!(r#"{{"metadata":{{"name":"a"}},"spec":{{"ports":[{{"port":{port}}}]}}}}"#);
    for (body, field) in [
        (with_port("\"80\""), "spec.ports[0].port"),
        (with_port("80.5"), "spec.ports[0].port"),
        (with_port("80.0"), "spec.ports[0].port"),
    ] {
        assert!(post(&body).refused(400, "BadRequest").contains(field));
    }
    let invalid = post(&with_port("0"));
    assert!(invalid.refused(422, "Invalid").contains("spec.ports[0].port: Invalid value: 0"));
    let cause = &invalid.json()["details"]["causes"][0];
    assert_eq!(
        (&cause["field"], &cause["reason"]),
        (&json!("spec.ports[0].port"), &json!("FieldValueInvalid"))
    );
    for body in [
        "",
        "{",
        "[]",
        "null",
        "5",
        "\u{7f}",
        &"[".repeat(10_000),
        r#"{"metadata":[]}"#,
        r#"{"kind":"Node"}"#,
    ] {
        post(body).refused(400, "BadRequest");
    }
    post(r#"{"metadata":{"name":"a","namespace":"other"}}"#).refused(400, "BadRequest");
    post("{}").refused(422, "Invalid");
    let typed = |media_type| request(address, "POST", SERVICES, &[("content-type", media_type)], b"{}");
    typed("application/x-www-form-urlencoded").refused(415, "UnsupportedMediaType");
    typed("application/vnd.kubernetes.protobuf").refused(400, "BadRequest");
    for unknown in ["application/patch", "application/apply-patch+json", "application/apply-patch+cbor"] {
        let path = format!("{SERVICES}/a?fieldManager=me&force=true");
        let refused = request(address, "PATCH", &path, &[("content-type", unknown)], b"{}");
        let why = refused.refused(415, "UnsupportedMediaType");
        assert!(why.contains(unknown) && why.contains("application/apply-patch+yaml"), "{why}");
    }
    let accept = |value| request(address, "GET", SERVICES, &[("accept", value)], b"");
    accept("text/html").refused(406, "NotAcceptable");
    accept("application/json;as=Table;v=v9;g=meta.k8s.io").refused(406, "NotAcceptable");
    accept("text/html, */*;q=0.1").expect(200);
    post(&"x".repeat((3 << 20) + 1)).refused(413, "RequestEntityTooLarge");
    post(&"x".repeat(3 << 20)).refused(400, "BadRequest");
    for path in ["/api/v1/secrets", "/apis/none", "/x", "/api/v1/namespaces/default/services/a/proxy"] {
        get(address, path).refused(404, "NotFound");
    }
    request(address, "POST", "/api/v1/services", &[], b"{}").refused(405, "MethodNotAllowed");
    get(address, &format!("{SERVICES}?labelSelector=a%20b")).refused(400, "BadRequest");
    get(address, &format!("{SERVICES}?resourceVersion=new")).refused(400, "BadRequest");
    assert_eq!(get(address, SERVICES).expect(200)["items"], json!([]));
}

#[test]
fn a_chunked_body_that_grows_too_large_is_refused() {
    use std::io::Write;
    let server = start(Config::default());
    let headers = [("transfer-encoding", "chunked"), ("content-type", "application/json")];
    let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = headers.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
    write!(stream, "POST {SERVICES} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n").unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..64 {
        if stream.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let (code, _) = read_head(&mut std::io::BufReader::new(stream));
    assert_eq!(code, 413);
}

/// A client that sends the whole request before it reads the response.
#[test]
fn a_client_that_sends_all_first_gets_an_early_refusal_and_keeps_its_connection() {
    use std::io::{BufReader, Read, Write};
    let server = start(Config::default());
    let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let body = vec![b'x'; 6 << 20];
    for (path, expected) in [(SERVICES, 413), ("/api/v1/secrets", 404), (SERVICES, 413)] {
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        let (code, headers) = read_head(&mut reader);
        assert_eq!(code, expected);
        let length = headers.iter().find(|(name, _)| name == "content-length").unwrap();
        let mut answer = vec![0; length.1.parse().unwrap()];
        reader.read_exact(&mut answer).unwrap();
    }
}

/// A client that waits for `100 Continue` gets the refusal without sending its body.
#[test]
fn a_client_that_expects_100_continue_is_refused_before_its_body() {
    use std::io::{BufReader, Write};
    let server = start(Config::default());
    let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = "host: localhost\r\nexpect: 100-continue\r\ncontent-length: 6000000\r\n";
    write!(stream, "POST {SERVICES} HTTP/1.1\r\n{head}\r\n").unwrap();
    let (code, _) = read_head(&mut BufReader::new(stream));
    assert_eq!(code, 413, "and not 100");
}

#[test]
fn unknown_fields_and_dry_runs() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut typo = service("web");
    typo["spec"]["prots"] = json!([]);
    let strict = format!("{SERVICES}?fieldValidation=Strict");
    assert!(send_json(address, "POST", &strict, &typo).refused(400, "BadRequest").contains("spec.prots"));
    let dry = send_json(address, "POST", &format!("{SERVICES}?dryRun=All"), &typo);
    assert_eq!(dry.header("warning"), Some(r#"299 - "unknown field \"spec.prots\"""#));
    assert_eq!(dry.expect(201)["spec"].get("prots"), None);
    get(address, &format!("{SERVICES}/web")).refused(404, "NotFound");
    send_json(address, "POST", &format!("{SERVICES}?dryRun=Some"), &typo).refused(422, "Invalid");
}

#[test]
fn delete_preconditions_and_collections() {
    let server = start(Config::default());
    let address = server.local_addr();
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        send_json(address, "POST", SERVICES, &labelled(name, label)).expect(201);
    }
    let path = format!("{SERVICES}/a");
    let options =
        |value: serde_json::Value| send_json(address, "DELETE", &path, &json!({"preconditions": value}));
    options(json!({"uid": "other"})).refused(409, "Conflict");
    options(json!({"resourceVersion": "1"})).refused(409, "Conflict");
    send_json(address, "DELETE", &path, &json!({"dryRun": ["All"]})).expect(200);
    get(address, &path).expect(200);
    let gone = delete(address, &format!("{SERVICES}?labelSelector=app%3Dx")).expect(200);
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    let left = get(address, SERVICES).expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[test]
fn yaml_bodies_and_put_to_a_new_name() {
    let server = start(Config::default());
    let address = server.local_addr();
    let yaml = b"metadata:\n  name: web\nspec:\n  clusterIP: None\n  ports:\n  - port: 80\n";
    let headers = [("content-type", "application/yaml")];
    let created = request(address, "POST", SERVICES, &headers, yaml).expect(201);
    assert_eq!(created["spec"]["clusterIPs"], json!(["None"]));
    request(address, "POST", SERVICES, &headers, b"a: [").refused(400, "BadRequest");
    send_json(address, "PUT", &format!("{SERVICES}/new"), &service("new")).expect(201);
    send_json(address, "PUT", &format!("{SLICES}/new"), &slice("new", 1)).refused(404, "NotFound");
}

#[test]
fn discovery_and_health() {
    let server = start(Config::default());
    let address = server.local_addr();
    for path in ["/healthz", "/livez", "/readyz"] {
        let answer = get(address, path);
        assert_eq!((answer.code, answer.text().as_str()), (200, "ok"));
    }
    assert!(get(address, "/version").expect(200)["gitVersion"].as_str().unwrap().starts_with("v1.36."));
    let groups = get(address, "/apis").expect(200);
    for group in groups["groups"].as_array().unwrap() {
        let version = group["preferredVersion"]["groupVersion"].as_str().unwrap();
        let resources = get(address, &format!("/apis/{version}")).expect(200);
        for resource in resources["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let is_listed = resource["verbs"].as_array().unwrap().iter().any(|verb| verb == "list");
            if is_listed && !name.contains('/') {
                get(address, &format!("/apis/{version}/{name}")).expect(200);
            }
        }
    }
    let core = get(address, "/api/v1").expect(200);
    let names: Vec<&str> =
        core["resources"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    for name in ["services", "services/status", "nodes", "nodes/status", "namespaces", "endpoints"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
}

#[test]
fn plain_http_is_refused_off_loopback_unless_allowed() {
    let listen = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let refused = Server::start(Config { listen, ..Config::default() }).unwrap_err();
    assert!(matches!(refused, Error::NonLoopback(_)), "{refused}");
    let server = start(Config { listen, insecure_allow_non_loopback: true, ..Config::default() });
    server.stop().unwrap();
}

#[test]
fn a_stopped_server_can_be_started_again_on_its_port_with_its_objects() {
    // An address of its own: no other test gets its port when it is free.
    let server = start(Config { listen: ([127, 9, 9, 4], 0).into(), ..Config::default() });
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let api = server.stop().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
    let listener = std::net::TcpListener::bind(address).unwrap();
    let _again = Server::start_with(api, Config { listen: address, ..Config::default() }, listener).unwrap();
    get(address, &format!("{SERVICES}/web")).expect(200);
}

#[test]
fn an_object_too_large_for_the_store_loses_its_managed_fields() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut large = service("large");
    large["metadata"]["finalizers"] = (0..50_000).map(|number| format!("a/b{number:06}")).collect();
    let stored = send_json(address, "POST", SERVICES, &large).expect(201);
    assert_eq!(stored["metadata"]["finalizers"], large["metadata"]["finalizers"]);
    assert_eq!(stored["metadata"].get("managedFields"), None);
    // While the object is being deleted, each finalizer must be one of the stored ones.
    delete(address, &format!("{SERVICES}/large")).expect(200);
    let patch = json!({"metadata": {"finalizers": large["metadata"]["finalizers"], "labels": {"a": "b"}}});
    send_json(address, "PATCH", &format!("{SERVICES}/large"), &patch).expect(200);

    let events = "/api/v1/namespaces/default/events";
    let mut event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}});
    event["message"] = "x".repeat(1_600_000).into();
    let why = send_json(address, "POST", events, &event).refused(413, "RequestEntityTooLarge");
    assert!(why.contains("bytes"), "{why}");
    event["message"] = "x".repeat(1_400_000).into();
    send_json(address, "POST", events, &event).expect(201);
}

#[test]
fn creating_an_object_with_a_resource_version_is_refused() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut object = service("web");
    object["metadata"]["resourceVersion"] = "7".into();
    let why = send_json(address, "POST", SERVICES, &object).refused(400, "BadRequest");
    assert!(why.contains("metadata.resourceVersion"), "{why}");
    // A PUT that creates an object comes from a client that did not know of its deletion.
    send_json(address, "PUT", &format!("{SERVICES}/web"), &object).expect(201);
    let set = json!({"metadata": {"deletionTimestamp": "2026-11-21T21:03:57Z"}});
    let why = send_json(address, "PATCH", &format!("{SERVICES}/web"), &set).refused(422, "Invalid");
    assert!(why.contains("metadata.deletionTimestamp"), "{why}");
}

#[test]
fn a_duplicate_field_is_reported() {
    let server = start(Config::default());
    let address = server.local_addr();
    let body = br#"{"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": [{"port": 80}], "type": "ClusterIP"}}"#;
    let one = &format!("{SERVICES}/web");
    let ask = |method, path: &str, validation: &str| {
        request(address, method, &format!("{path}?fieldValidation={validation}"), &[], body)
    };
    for (method, path, code) in [("POST", SERVICES, 201), ("PUT", one, 200)] {
        let why = ask(method, path, "Strict").refused(400, "BadRequest");
        assert!(why.contains(r#"duplicate field "spec.type""#), "{why}");
        let warned = ask(method, path, "Warn");
        assert_eq!(warned.expect(code)["spec"]["type"], "ClusterIP");
        assert_eq!(warned.header("warning"), Some(r#"299 - "duplicate field \"spec.type\"""#));
    }
    assert_eq!(ask("PUT", one, "Ignore").header("warning"), None);
}

#[test]
fn a_duplicate_field_in_yaml_is_reported() {
    let server = start(Config::default());
    let address = server.local_addr();
    let body = b"apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  type: NodePort\n  ports:\n  - port: 80\n    port: 81\n  type: ClusterIP\n";
    let one = format!("{SERVICES}/web");
    let repeats = [r#"duplicate field "spec.ports[0].port""#, r#"duplicate field "spec.type""#];
    // A PUT and an apply create the object, too.
    for (method, path, media_type) in [
        ("POST", SERVICES, "application/yaml"),
        ("PUT", one.as_str(), "application/yaml"),
        ("PATCH", one.as_str(), "application/apply-patch+yaml"),
    ] {
        let ask = |validation: &str| {
            let path = format!("{path}?fieldManager=me&dryRun=All&fieldValidation={validation}");
            request(address, method, &path, &[("content-type", media_type)], body)
        };
        let why = ask("Strict").refused(400, "BadRequest");
        assert!(why.contains(&repeats.join(", ")), "{method}: {why}");
        let warnings = repeats.map(|text| format!("299 - \"{}\"", text.replace('"', "\\\"")));
        for (validation, warnings) in [("Warn", &warnings[..]), ("Ignore", &[])] {
            let answer = ask(validation);
            let spec = &answer.expect(201)["spec"];
            assert_eq!((&spec["type"], &spec["ports"][0]["port"]), (&json!("ClusterIP"), &json!(81)));
            let given: Vec<&String> =
                answer.headers.iter().filter(|(name, _)| name == "warning").map(|(_, value)| value).collect();
            assert_eq!(given, warnings.iter().collect::<Vec<_>>(), "{method} {validation}");
        }
    }
}

#[test]
fn a_duplicate_field_in_a_patch_is_reported() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let merge = r#"{"metadata": {"labels": {"a": "1", "a": "2"}}}"#;
    let json = r#"[{"op": "add", "path": "/metadata/labels", "value": {"a": "1", "a": "2"}}]"#;
    let apply = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"labels": {"a": "1", "a": "2"}}}"#;
    for (media_type, body, field) in [
        ("application/merge-patch+json", merge, "metadata.labels.a"),
        ("application/strategic-merge-patch+json", merge, "metadata.labels.a"),
        ("application/json-patch+json", json, "[0].value.a"),
        ("application/apply-patch+yaml", apply, "metadata.labels.a"),
    ] {
        let ask = |validation: &str| {
            let path =
                format!("{SERVICES}/web?fieldManager=me&force=true&dryRun=All&fieldValidation={validation}");
            let path = if media_type.contains("apply") { path } else { path.replace("&force=true", "") };
            request(address, "PATCH", &path, &[("content-type", media_type)], body.as_bytes())
        };
        let why = ask("Strict").refused(400, "BadRequest");
        assert!(why.contains(&format!("duplicate field \"{field}\"")), "{media_type}: {why}");
        let warned = ask("Warn");
        assert_eq!(warned.expect(200)["metadata"]["labels"]["a"], "2", "{media_type}");
        let expected = format!("299 - \"duplicate field \\\"{field}\\\"\"");
        assert_eq!(warned.header("warning"), Some(expected.as_str()));
        assert_eq!(ask("Ignore").header("warning"), None);
    }
}
