//! Requests that read, and those that delete several objects.

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;

use super::with_body;
use crate::script::Script;

const PATHS: [&str; 20] = [
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
];
const OPTIONS: [&str; 18] = [
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
const DELETE_OPTIONS: [&str; 5] = [
    "",
    r#"{"propagationPolicy":"Foreground"}"#,
    r#"{"preconditions":{"resourceVersion":"3"}}"#,
    r#"{"dryRun":["All"],"gracePeriodSeconds":0}"#,
    r#"{"kind":"DeleteOptions","apiVersion":"v1","orphanDependents":true}"#,
];
/// The most options of a request.
const MOST: usize = 4;

/// Returns a request that reads objects, or deletes those of a list.
pub(super) fn request(script: &mut Script<'_>) -> Option<Request<Full<Bytes>>> {
    let path = script.pick(&PATHS);
    let options: Vec<&str> = (0..script.below(MOST)).map(|_| script.pick(&OPTIONS)).collect();
    let uri = format!("{path}?{}", options.join("&"));
    let deletes = script.below(8) == 1 && (path.ends_with("services") || path.contains("/services/"));
    let (method, body) =
        if deletes { (Method::DELETE, script.pick(&DELETE_OPTIONS)) } else { (Method::GET, "") };
    let mut request = with_body(&method, &uri, "application/json", Bytes::from(body))?;
    request.headers_mut().insert(header::ACCEPT, script.pick(&ACCEPTS).parse().ok()?);
    Some(request)
}
