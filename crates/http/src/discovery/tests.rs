use http::HeaderValue;

use super::*;

fn answer(document: Document, headers: &[(header::HeaderName, &str)]) -> Answer {
    let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()));
    document.answer(&headers.collect(), &Query::default()).unwrap()
}

fn body(answer: Answer) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(answer.into_body().collect()).unwrap().to_bytes().to_vec()
}

fn json_of(answer: Answer) -> Value {
    serde_json::from_slice(&body(answer)).unwrap()
}

#[test]
fn discovery_lists_only_served_resources() {
    let text = Resource::ALL.into_iter().filter(|resource| !resource.info().served);
    let hidden: Vec<&str> = text.map(|resource| resource.info().plural).collect();
    assert!(!hidden.is_empty());
    let groups = Document::Groups.plain().to_string();
    for group in group_names() {
        assert!(Document::group(group).is_some() && groups.contains(group));
    }
    assert_eq!(Document::group(""), None);
    for resource in Resource::ALL.into_iter().map(Resource::info) {
        let listed = Document::resources(resource.group, resource.version).is_some_and(|document| {
            let resources = document.plain()["resources"].as_array().unwrap().clone();
            resources.iter().any(|it| it["name"] == resource.plural)
        });
        assert_eq!(listed, resource.served, "{}", resource.plural);
    }
}

#[test]
fn subresources_and_short_names() {
    let core = Document::Resources("v1").plain();
    let entry = |name: &str| {
        let resources = core["resources"].as_array().unwrap();
        resources.iter().find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!(entry("services")["shortNames"], json!(["svc"]));
    assert_eq!(entry("services")["categories"], json!(["all"]));
    assert_eq!(entry("services/status")["verbs"], json!(["get", "patch", "update"]));
    assert_eq!(entry("namespaces/finalize")["verbs"], json!(["update"]));
    let verbs = entry("namespaces")["verbs"].clone();
    assert!(!verbs.as_array().unwrap().contains(&"deletecollection".into()), "{verbs}");
}

#[test]
fn aggregated_discovery_is_told_apart_by_its_whole_media_type() {
    for (path, version, accept) in [
        (Document::Core, "v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
        (
            Document::Groups,
            "v2beta1",
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        ),
    ] {
        let accepts = format!(
            "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,{accept},application/json"
        );
        let answer = answer(path, &[(header::ACCEPT, &accepts)]);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], accept);
        assert_eq!(answer.headers()[header::VARY], "Accept");
        let list = json_of(answer);
        assert_eq!(list["apiVersion"], format!("apidiscovery.k8s.io/{version}"));
        let names: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["metadata"]["name"].as_str().unwrap_or(""))
            .collect();
        let expected = if path == Document::Core { vec![""] } else { group_names() };
        assert_eq!(names, expected);
    }
    let plain = answer(Document::Groups, &[(header::ACCEPT, "application/json")]);
    assert_eq!(json_of(plain)["kind"], "APIGroupList");
}

#[test]
fn what_aggregated_discovery_says_of_a_resource() {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let list = json_of(answer(Document::Core, &[(header::ACCEPT, accept)]));
    let resources = list["items"][0]["versions"][0]["resources"].as_array().unwrap().clone();
    let services = resources.iter().find(|it| it["resource"] == "services").unwrap();
    let kind = json!({"group": "", "version": "v1", "kind": "Service"});
    assert_eq!(
        *services,
        json!({"resource": "services", "responseKind": kind, "scope": "Namespaced", "singularResource": "service",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["svc"], "categories": ["all"],
            "subresources": [{"subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"]}]})
    );
}

#[test]
fn a_client_that_has_the_document_gets_304() {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for (document, accept) in
        [(Document::Core, accept), (Document::OpenApiV3("v1"), "*/*"), (Document::OpenApiV2, "*/*")]
    {
        let first = answer(document, &[(header::ACCEPT, accept)]);
        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert!(tag.starts_with('"') && tag.ends_with('"'));
        let again = answer(document, &[(header::ACCEPT, accept), (header::IF_NONE_MATCH, &tag)]);
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(body(again).is_empty());
        let other = answer(document, &[(header::ACCEPT, accept), (header::IF_NONE_MATCH, "\"x\"")]);
        assert_eq!(other.status(), StatusCode::OK);
    }
}

#[test]
fn addresses_of_openapi_documents_hold_their_hash() {
    let index = json_of(answer(Document::OpenApiV3Index, &[]));
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(
        paths.len(),
        infos().map(|info| info.api_version).collect::<std::collections::BTreeSet<_>>().len()
    );
    let url = paths["api/v1"]["serverRelativeURL"].as_str().unwrap();
    let (path, query) = url.split_once('?').unwrap();
    assert_eq!(path, "/openapi/v3/api/v1");
    let of = |query: &str| {
        Document::OpenApiV3("v1").answer(&HeaderMap::new(), &Query::parse(query).unwrap()).unwrap()
    };
    let right = of(query);
    assert_eq!(right.headers()[header::CACHE_CONTROL], "public, immutable, max-age=31536000");
    assert_eq!(json_of(right)["openapi"], "3.0.0");
    let wrong = of("hash=0");
    assert_eq!(wrong.status(), StatusCode::MOVED_PERMANENTLY);
    assert_eq!(wrong.headers()[header::LOCATION], *url);
    assert!(!of("").headers().contains_key(header::CACHE_CONTROL));
}

#[test]
fn openapi_version_2_in_both_forms() {
    let json = answer(Document::OpenApiV2, &[(header::ACCEPT, "application/json")]);
    assert_eq!(json_of(json)["swagger"], "2.0");
    let protobuf = answer(
        Document::OpenApiV2,
        &[(header::ACCEPT, "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")],
    );
    // Go's `mime.ParseMediaType` refuses an `@` in an answer.
    assert_eq!(
        protobuf.headers()[header::CONTENT_TYPE],
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    assert!(body(protobuf).starts_with(b"\x0a\x032.0"));
}
