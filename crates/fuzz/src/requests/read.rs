//! Requests that read, and those that delete several objects.

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;

use super::with_body;
use crate::script::Script;

const PATHS: [&str; 26] = [
    "/api/v1/namespaces/default/services",
    "/api/v1/services",
    "/api/v1/namespaces/default/services/svc-1",
    "/api/v1/namespaces/default/services/svc-2/status",
    "/api/v1/namespaces/default",
    "/api/v1/nodes",
    "/api/v1/namespaces/default/events",
    "/api/v1/namespaces/default/endpoints",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/ipaddresses",
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/coordination.k8s.io/v1/leases",
    "/api",
    "/apis",
    "/api/v1",
    "/apis/networking.k8s.io",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/version",
    "/readyz",
    "/api/v1/watch/services",
    "/api/v1/watch/namespaces/default/services/svc-1",
    "/api/v1/namespaces/default/services/svc%2D1/status/x",
    "/api//v1/nodes",
    "/apis/%ff",
    "/openapi/v3/apis/discovery.k8s.io/v1",
];
const OPTIONS: [&str; 28] = [
    "limit=1",
    "limit=2",
    "watch=1",
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    "timeoutSeconds=1",
    "allowWatchBookmarks=true",
    "resourceVersion=0",
    "resourceVersion=3",
    "resourceVersion=999",
    "resourceVersionMatch=Exact",
    "resourceVersionMatch=NotOlderThan",
    "labelSelector=a%3Db,c+in+(d,e),!f",
    "fieldSelector=metadata.name%3Dsvc-1",
    "fieldSelector=spec.type%21%3DClusterIP",
    "pretty=true",
    "includeObject=None",
    "continue=x",
    "verbose",
    "watch=0",
    "sendInitialEvents=true",
    "sendInitialEvents=false",
    "includeObject=Object",
    "includeObject=x",
    "timeout=1m30s",
    "timeout=-.5h%2B1",
    "resourceVersionMatch=x",
    "propagationPolicy=Orphan",
    "gracePeriodSeconds=0&orphanDependents=false",
];
const ACCEPTS: [&str; 8] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.5",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,*/*",
    "text/html",
];
const DELETE_OPTIONS: [&str; 10] = [
    "",
    r#"{"propagationPolicy":"Foreground"}"#,
    r#"{"preconditions":{"resourceVersion":"3"}}"#,
    r#"{"dryRun":["All"],"gracePeriodSeconds":0}"#,
    r#"{"kind":"DeleteOptions","apiVersion":"v1","orphanDependents":true}"#,
    r#"{"propagationPolicy":"Background","orphanDependents":false}"#,
    r#"{"propagationPolicy":"x","dryRun":"All"}"#,
    r#"{"gracePeriodSeconds":"0"}"#,
    r#"{"preconditions":[],"dryRun":[null]}"#,
    r#"{"preconditions":{"uid":1},"dryRun":["None"]}"#,
];
/// Parts of selectors, with the signs of URLs.
const SELECTOR_WORDS: [&str; 22] = [
    "a",
    "b",
    "kubernetes.io/service-name",
    "metadata.name",
    "svc-1",
    "%3D",
    "%3D%3D",
    "%21%3D",
    ",",
    "+in+",
    "+notin+",
    "(",
    ")",
    "%21",
    "spec.type",
    "ClusterIP",
    "+",
    "metadata.namespace",
    "%3E",
    "%3C",
    "%5C",
    "1",
];
/// The most words of a selector.
const WORDS: usize = 10;
/// Bytes of the longest value of an option whose bytes are all chosen.
const LONGEST: usize = 24;
/// The most options of a request.
const MOST: usize = 3;

/// Returns a request that reads objects, or deletes those of a list. `token` asks for the next page of a list.
pub(super) fn request(script: &mut Script<'_>, token: Option<&str>) -> Option<Request<Full<Bytes>>> {
    let path = script.pick(&PATHS);
    let mut options: Vec<String> =
        (0..script.below(MOST + 1)).map(|_| script.pick(&OPTIONS).to_owned()).collect();
    match (script.below(8), token) {
        (0, Some(token)) => options.push(format!("limit=1&continue={token}")),
        (1, _) => {
            let name =
                script.pick(&["labelSelector", "fieldSelector", "resourceVersion", "limit", "continue"]);
            let digit = |byte: u8| char::from_digit(byte.into(), 16).expect("it is less than 16");
            let value =
                script.bytes(LONGEST).iter().flat_map(|byte| ['%', digit(byte >> 4), digit(byte & 15)]);
            options.push(format!("{name}={}", value.collect::<String>()));
        }
        (2, _) => {
            let name = script.pick(&["labelSelector", "fieldSelector"]);
            let words = (0..script.below(WORDS)).map(|_| script.pick(&SELECTOR_WORDS)).collect::<String>();
            options.push(format!("{name}={words}"));
        }
        _ => {}
    }
    let uri = format!("{path}?{}", options.join("&"));
    let deletes = script.below(8) == 1 && (path.ends_with("services") || path.contains("/services/"));
    let (method, body) =
        if deletes { (Method::DELETE, script.pick(&DELETE_OPTIONS)) } else { (Method::GET, "") };
    let mut request = with_body(&method, &uri, "application/json", Bytes::from(body))?;
    request.headers_mut().insert(header::ACCEPT, script.pick(&ACCEPTS).parse().ok()?);
    Some(request)
}
