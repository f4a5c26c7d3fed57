//! Requests do what they ask for and nothing more: verbs, paths, query parameters, names.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use common::*;
use portolan_serve::{Config, ControllersConfig, RunningServer};
use serde_json::{Value, json};

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
const JSON: (&str, &str) = ("content-type", "application/json");

fn furnished() -> RunningServer {
    let server = start(Config {
        controllers: ControllersConfig { kubernetes_service: true, ..ControllersConfig::default() },
        ..Config::default()
    });
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &labelled("web", "web")).expect(201);
    send_json(address, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "services"}})).expect(201);
    server
}

/// Returns the status code of a response. For a watch, the body is not read.
fn code(address: SocketAddr, method: &str, path: &str, body: &str) -> u16 {
    read_head(&mut send(address, method, path, &[JSON], body.as_bytes())).0
}

/// Returns the names and revisions of all objects that clients see.
fn everything(address: SocketAddr) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (root, list) in versions(address) {
        for resource in list["resources"].as_array().unwrap() {
            let plural = resource["name"].as_str().unwrap();
            if !has_verb(resource, "list") || plural.contains('/') {
                continue;
            }
            for item in get(address, &format!("{root}/{plural}")).expect(200)["items"].as_array().unwrap() {
                found.insert(format!("{plural} {}", item["metadata"]));
            }
        }
    }
    found
}

/// Returns the roots of the API versions, such as `/api/v1`, with the resources that discovery lists for each.
fn versions(address: SocketAddr) -> Vec<(String, Value)> {
    let groups = get(address, "/apis").expect(200);
    let groups =
        groups["groups"].as_array().unwrap().iter().flat_map(|group| group["versions"].as_array().unwrap());
    let mut roots: Vec<String> =
        groups.map(|it| format!("/apis/{}", it["groupVersion"].as_str().unwrap())).collect();
    roots.push("/api/v1".to_owned());
    roots.into_iter().map(|root| (root.clone(), get(address, &root).expect(200))).collect()
}

fn has_verb(resource: &Value, verb: &str) -> bool {
    resource["verbs"].as_array().unwrap().iter().any(|it| it == verb)
}

fn verb(method: &str, is_named: bool) -> Option<&'static str> {
    Some(match (method, is_named) {
        ("GET", false) => "list",
        ("GET", true) => "get",
        ("POST", false) => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    })
}

/// Returns the paths of a resource, each with the verbs that it should serve.
fn paths(root: &str, resource: &Value, all: &[Value]) -> Vec<(String, bool, Vec<String>)> {
    let verbs = |entry: &Value| -> Vec<String> {
        entry["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned()).collect()
    };
    let plural = resource["name"].as_str().unwrap();
    let reading: Vec<String> =
        verbs(resource).into_iter().filter(|it| it == "list" || it == "watch").collect();
    let mut paths = Vec::new();
    let collection = if resource["namespaced"] == true {
        paths.push((format!("{root}/{plural}"), false, reading.clone()));
        paths.push((format!("{root}/watch/namespaces/default/{plural}"), false, reading.clone()));
        format!("{root}/namespaces/default/{plural}")
    } else {
        format!("{root}/{plural}")
    };
    paths.push((format!("{root}/watch/{plural}"), false, reading));
    paths.push((collection.clone(), false, verbs(resource)));
    paths.push((format!("{collection}/absent"), true, verbs(resource)));
    for subresource in ["status", "finalize"] {
        let name = format!("{plural}/{subresource}");
        if let Some(entry) = all.iter().find(|entry| entry["name"] == name) {
            paths.push((format!("{collection}/absent/{subresource}"), true, verbs(entry)));
        }
    }
    paths
}

#[test]
fn every_path_serves_the_verbs_of_discovery_and_no_other() {
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    let mut count = 0;
    for (root, list) in versions(address) {
        let document = get(address, &format!("/openapi/v3{root}")).expect(200);
        let resources = list["resources"].as_array().unwrap();
        let mut found = BTreeSet::new();
        for resource in resources.iter().filter(|it| !it["name"].as_str().unwrap().contains('/')) {
            for (path, is_named, verbs) in paths(&root, resource, resources) {
                let mut methods = BTreeSet::new();
                for method in METHODS {
                    let wanted = verb(method, is_named).is_some_and(|verb| verbs.iter().any(|it| it == verb));
                    let answered = code(address, method, &format!("{path}?dryRun=All"), "{}");
                    assert_eq!(
                        answered != 405,
                        wanted,
                        "{method} {path}: {answered}, discovery has {verbs:?}"
                    );
                    assert!(answered != 404 || is_named, "{method} {path}");
                    if answered != 405 {
                        methods.insert(method.to_lowercase());
                    }
                    count += 1;
                }
                if path.contains("/watch/") {
                    continue;
                }
                let template = path.replace("/default/", "/{namespace}/").replace("/absent", "/{name}");
                let operations: BTreeSet<String> = document["paths"]
                    .get(&template)
                    .and_then(Value::as_object)
                    .into_iter()
                    .flat_map(|operations| operations.keys().filter(|key| *key != "parameters").cloned())
                    .collect();
                assert_eq!(methods, operations, "{template}");
                if !methods.is_empty() {
                    found.insert(template);
                }
            }
        }
        let documented: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(found, documented, "{root}");
    }
    assert!(count > 200, "{count} requests");
    assert_eq!(everything(address), before, "nothing has changed");
}

/// Returns the methods of each path of an OpenAPI document.
fn operations(document: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .map(|(path, item)| {
            let keys = item.as_object().unwrap().keys();
            (path.clone(), keys.filter(|key| *key != "parameters").cloned().collect())
        })
        .collect()
}

#[test]
fn both_versions_of_openapi_have_the_same_operations() {
    let server = furnished();
    let address = server.local_addr();
    let index = get(address, "/openapi/v3").expect(200);
    let mut all = BTreeMap::new();
    for document in index["paths"].as_object().unwrap().values() {
        let document = get(address, document["serverRelativeURL"].as_str().unwrap()).expect(200);
        for (path, methods) in operations(&document) {
            assert!(all.insert(path.clone(), methods).is_none(), "{path} is in two documents");
        }
    }
    assert!(all.len() > 30, "{all:?}");
    assert_eq!(operations(&get(address, "/openapi/v2").expect(200)), all);
}

/// Returns what discovery says about a resource: its kind, its verbs, and whether its objects have a namespace.
fn described(kind: &Value, verbs: &Value, namespaced: bool) -> (String, Vec<String>, bool) {
    let verbs = verbs.as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned());
    (kind.as_str().unwrap().to_owned(), verbs.collect(), namespaced)
}

#[test]
fn aggregated_discovery_lists_what_plain_discovery_lists() {
    let server = furnished();
    let address = server.local_addr();
    let mut plain = BTreeMap::new();
    for (root, list) in versions(address) {
        for entry in list["resources"].as_array().unwrap() {
            let path = format!("{root}/{}", entry["name"].as_str().unwrap());
            plain.insert(path, described(&entry["kind"], &entry["verbs"], entry["namespaced"] == true));
        }
    }
    for form in ["v2", "v2beta1"] {
        let accept = format!("application/json;v={form};g=apidiscovery.k8s.io;as=APIGroupDiscoveryList");
        let mut aggregated = BTreeMap::new();
        for top in ["/api", "/apis"] {
            let list = request(address, "GET", top, &[("accept", &accept)], b"").expect(200);
            assert_eq!(list["apiVersion"], format!("apidiscovery.k8s.io/{form}"));
            for group in list["items"].as_array().unwrap() {
                let name =
                    group["metadata"]["name"].as_str().map_or(String::new(), |name| format!("/{name}"));
                for version in group["versions"].as_array().unwrap() {
                    let root = format!("{top}{name}/{}", version["version"].as_str().unwrap());
                    for resource in version["resources"].as_array().unwrap() {
                        let namespaced = resource["scope"] == "Namespaced";
                        let path = format!("{root}/{}", resource["resource"].as_str().unwrap());
                        let kind = &resource["responseKind"]["kind"];
                        let parts = resource["subresources"].as_array().into_iter().flatten();
                        for part in parts {
                            let path = format!("{path}/{}", part["subresource"].as_str().unwrap());
                            let kind = &part["responseKind"]["kind"];
                            aggregated.insert(path, described(kind, &part["verbs"], namespaced));
                        }
                        aggregated.insert(path, described(kind, &resource["verbs"], namespaced));
                    }
                }
            }
        }
        assert_eq!(aggregated, plain, "{form}");
    }
}

#[test]
fn a_watch_is_served_exactly_if_discovery_lists_it() {
    let server = furnished();
    let address = server.local_addr();
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    for (root, list) in versions(address) {
        let resources = list["resources"].as_array().unwrap();
        for resource in resources.iter().filter(|it| !it["name"].as_str().unwrap().contains('/')) {
            for (path, is_named, verbs) in paths(&root, resource, resources) {
                let answered = code(address, "GET", &format!("{path}?watch=1&timeoutSeconds=1"), "");
                let is_served = |verb: &str| verbs.iter().any(|it| it == verb);
                let expected = match (is_served("watch"), is_named && is_served("get")) {
                    (true, _) => 200,
                    // As in Kubernetes, this is a get of the subresource of an object that does not exist.
                    (false, true) => 404,
                    (false, false) => 405,
                };
                assert_eq!(answered, expected, "{path}: {verbs:?}");
                *counts.entry(expected).or_default() += 1;
            }
        }
    }
    assert!(counts[&200] > 30 && counts[&404] > 3 && counts[&405] > 3, "{counts:?}");
    let status = get(address, &format!("{SERVICES}/web/status?watch=1&timeoutSeconds=1")).expect(200);
    assert_eq!((&status["kind"], &status["metadata"]["name"]), (&json!("Service"), &json!("web")));
}

#[test]
fn a_subresource_that_discovery_does_not_list_is_not_found() {
    const KNOWN: [&str; 5] = ["status", "finalize", "proxy", "scale", "log"];
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    let mut count = 0;
    for (root, list) in versions(address) {
        let resources = list["resources"].as_array().unwrap();
        let names: BTreeSet<&str> = resources.iter().map(|it| it["name"].as_str().unwrap()).collect();
        for resource in resources.iter().filter(|it| !it["name"].as_str().unwrap().contains('/')) {
            let plural = resource["name"].as_str().unwrap();
            let namespace = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            for part in KNOWN.into_iter().filter(|part| !names.contains(&*format!("{plural}/{part}"))) {
                for name in ["web", "services", "default"] {
                    for method in METHODS {
                        let path = format!("{root}{namespace}/{plural}/{name}/{part}");
                        assert_eq!(code(address, method, &path, "{}"), 404, "{method} {path}");
                        count += 1;
                    }
                }
            }
        }
        let unknown: Vec<&&str> = names
            .iter()
            .filter(|name| name.split_once('/').is_some_and(|(_, part)| !KNOWN.contains(&part)))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    assert!(count > 500, "{count} requests");
    assert_eq!(everything(address), before, "nothing has changed");
}

#[test]
fn a_collection_is_deleted_in_one_namespace_only() {
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    for path in [
        "/api/v1/services",
        "/api/v1/endpoints",
        "/api/v1/events",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/events.k8s.io/v1/events",
        "/apis/coordination.k8s.io/v1/leases",
    ] {
        delete(address, path).refused(405, "MethodNotAllowed");
        delete(address, &format!("{path}?labelSelector=app%3Dweb")).refused(405, "MethodNotAllowed");
    }
    assert_eq!(everything(address), before);
    delete(address, &format!("{SERVICES}?labelSelector=app%3Dweb")).expect(200);
    get(address, &format!("{SERVICES}/web")).refused(404, "NotFound");
}

#[test]
fn an_empty_part_of_a_path_is_refused() {
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    let object = service("services").to_string();
    for path in [
        "/api/v1/namespaces//services",
        "/api/v1/namespaces//services/web",
        "/api/v1//namespaces/services",
        "//api/v1/namespaces/services",
        "/api/v1/namespaces/default/services//",
        "/api/v1/namespaces/default/services//status",
        "/apis/discovery.k8s.io//v1/endpointslices",
        "/openapi//v3",
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let said = request(address, method, path, &[JSON], object.as_bytes()).refused(400, "BadRequest");
            assert!(said.contains(path) && said.contains("empty"), "{said}");
        }
    }
    // If the name at the end is empty, the path is that of the collection, or of the object of a subresource.
    for path in [format!("{SERVICES}/"), format!("{SERVICES}/web/"), "/api/v1/nodes/".to_owned()] {
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            request(address, method, &path, &[JSON], object.as_bytes()).refused(400, "BadRequest");
        }
        get(address, &path).expect(200);
    }
    assert_eq!(everything(address), before);
}

#[test]
fn a_parameter_with_an_impossible_value_is_refused() {
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    let (web, new) = (format!("{SERVICES}/web"), service("new"));
    let mut changed = service("web");
    changed["spec"]["ports"] = json!([{"port": 81}]);
    for query in ["dryRun=", "dryRun", "dryRun=all", "dryRun=All,All"] {
        send_json(address, "POST", &format!("{SERVICES}?{query}"), &new).refused(422, "Invalid");
        send_json(address, "PUT", &format!("{web}?{query}"), &changed).refused(422, "Invalid");
        send_json(address, "PATCH", &format!("{web}?{query}"), &changed).refused(422, "Invalid");
        delete(address, &format!("{web}?{query}")).refused(422, "Invalid");
        delete(address, &format!("{SERVICES}?{query}")).refused(422, "Invalid");
    }
    for (query, status) in [
        ("dryRun=All&dryRun=", 400),
        ("fieldValidation=strict", 422),
        ("propagationPolicy=", 422),
        ("orphanDependents=", 400),
        ("gracePeriodSeconds=", 400),
        ("force=perhaps", 400),
        ("watch=perhaps", 400),
        ("limit=many", 400),
        ("timeout=soon", 400),
        ("timeoutSeconds=-1", 400),
        ("resourceVersionMatch=Newest", 422),
        ("sendInitialEvents=", 400),
        ("allowWatchBookmarks=x", 400),
        ("pretty=x", 400),
    ] {
        for (method, path) in
            [("GET", SERVICES), ("GET", &web), ("PUT", &web), ("DELETE", &web), ("DELETE", SERVICES)]
        {
            let body = if method == "PUT" { changed.to_string() } else { String::new() };
            let answer = request(address, method, &format!("{path}?{query}"), &[JSON], body.as_bytes());
            assert_eq!(answer.code, status, "{method} {path}?{query}: {}", answer.text());
        }
    }
    // Parameters that select among objects are refused in requests for one object.
    for query in
        ["labelSelector=app%3Dother", "fieldSelector=metadata.name%3Dx", "resourceVersion=1", "limit=1"]
    {
        delete(address, &format!("{web}?{query}")).refused(400, "BadRequest");
    }
    assert_eq!(everything(address), before);
}

#[test]
fn options_of_a_deletion_are_what_they_should_be_or_refused() {
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    let web = format!("{SERVICES}/web");
    for (options, status) in [
        (json!({"dryRun": "All"}), 400),
        (json!({"dryRun": [1]}), 400),
        (json!({"dryRun": [""]}), 422),
        (json!({"propagationPolicy": ""}), 422),
        (json!({"propagationPolicy": 5}), 400),
        (json!({"gracePeriodSeconds": "0"}), 400),
        (json!({"ignoreStoreReadErrorWithClusterBreakingPotential": "x"}), 400),
        (json!({"preconditions": "x"}), 400),
        (json!({"preconditions": {"uid": 5}}), 400),
        (json!({"preconditions": {"uid": ""}}), 409),
        (json!({"preconditions": {"resourceVersion": ""}}), 409),
        (json!({"kind": 5}), 400),
    ] {
        for path in [web.as_str(), SERVICES] {
            let answer = send_json(address, "DELETE", path, &options);
            assert_eq!(answer.code, status, "{options} {path}: {}", answer.text());
        }
    }
    let orphan = json!({"propagationPolicy": "Orphan"});
    send_json(address, "DELETE", &format!("{web}?propagationPolicy=Foreground"), &orphan)
        .refused(422, "Invalid");
    assert_eq!(everything(address), before);
    // An option in the query applies even if there is a body.
    let pending =
        send_json(address, "DELETE", &format!("{web}?propagationPolicy=Orphan"), &json!({})).expect(200);
    assert_eq!(pending["metadata"]["finalizers"], json!(["orphan"]));
}

#[test]
fn an_object_without_its_name_is_not_that_of_the_url() {
    let server = furnished();
    let address = server.local_addr();
    let before = everything(address);
    let web = format!("{SERVICES}/web");
    let ports = json!([{"port": 1}]);
    for body in [
        json!({}),
        json!({"metadata": {}}),
        json!({"metadata": null, "spec": {"ports": ports}}),
        json!({"metadata": {"name": ""}, "spec": {"ports": ports}}),
        json!({"metadata": {"name": null, "generateName": "web"}, "spec": {"ports": ports}}),
        json!({"metadata": {"name": 5}, "spec": {"ports": ports}}),
        json!({"metadata": {"name": "web", "namespace": 5}, "spec": {"ports": ports}}),
        json!({"kind": 5, "metadata": {"name": "web"}, "spec": {"ports": ports}}),
    ] {
        for path in [web.clone(), format!("{web}/status"), format!("{SERVICES}/absent")] {
            let said = send_json(address, "PUT", &path, &body).refused(400, "BadRequest");
            assert!(
                said.contains("metadata.name") || said.contains("expected a string") || said.contains("web"),
                "{said}"
            );
        }
    }
    send_json(address, "PUT", "/api/v1/namespaces/services/finalize", &json!({"metadata": {}}))
        .refused(400, "BadRequest");
    let json_patch = "application/json-patch+json";
    let strategic = "application/strategic-merge-patch+json";
    let merge = "application/merge-patch+json";
    for (media_type, patch) in [
        (json_patch, json!([{"op": "replace", "path": "", "value": {}}])),
        (json_patch, json!([{"op": "add", "path": "", "value": {"spec": {"ports": ports}}}])),
        (json_patch, json!([{"op": "remove", "path": "/metadata"}])),
        (json_patch, json!([{"op": "replace", "path": "/metadata/name", "value": ""}])),
        (strategic, json!({"$patch": "delete"})),
        (strategic, json!({"$patch": "replace"})),
        (strategic, json!({"$patch": "replace", "spec": {"ports": ports}})),
        (strategic, json!({"metadata": {"$patch": "delete"}})),
        (merge, json!({"metadata": null})),
        (merge, json!({"metadata": {"name": null}})),
    ] {
        for path in [web.clone(), format!("{web}/status")] {
            let body = patch.to_string();
            let answer = request(address, "PATCH", &path, &[("content-type", media_type)], body.as_bytes());
            let said = answer.refused(400, "BadRequest");
            assert!(said.contains("metadata.name"), "{media_type} {body}: {said}");
        }
    }
    assert_eq!(everything(address), before);
    // An object in a server-side apply must have a name even before the object exists.
    let apply = [("content-type", "application/apply-patch+yaml")];
    let unnamed = json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": ports}}).to_string();
    let path = format!("{SERVICES}/new?fieldManager=me");
    request(address, "PATCH", &path, &apply, unnamed.as_bytes()).refused(400, "BadRequest");
    get(address, &format!("{SERVICES}/new")).refused(404, "NotFound");
}
