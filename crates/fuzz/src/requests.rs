//! Requests to the API server, one after the other, and what each leaves in its store. No request fails inside the server; no
//! address and no node port has two Services; each of them has its record, and no record is of anything else.
//!
//! The input is a list of requests, separated by bytes 0. Each has four bytes for method, resource, path and options, and the body.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use portolan_api::{Api, ApiConfig};
use portolan_http::{Attributes, Handler, Rule, Subject, arriving};
use portolan_schema::{Resource, json::Value};
use portolan_store::Scope;

/// Fewer addresses than a long input can ask for.
const RANGES: &str = "10.0.0.0/28,fd00::/124";
const METHODS: [Method; 5] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::GET];
const NAMES: [&str; 4] = ["a", "b", "kubernetes", "10.0.0.1"];
const TYPES: [&str; 8] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
    "text/plain",
];
const QUERIES: [&str; 8] = [
    "",
    "dryRun=All",
    "fieldManager=f&force=true",
    "limit=1",
    "watch=1",
    "labelSelector=a%3Db",
    "propagationPolicy=Foreground",
    "fieldValidation=Strict",
];
/// Bodies are sent in parts of this many bytes at most.
const BUFFER: usize = 64 << 10;

/// A client that may do everything.
struct Admin;

impl Subject for Admin {
    fn user(&self) -> &'static str {
        "admin"
    }

    fn groups(&self) -> Vec<&str> {
        Vec::new()
    }

    fn may(&self, _: &Attributes) -> bool {
        true
    }

    fn rules(&self) -> Vec<Rule> {
        Vec::new()
    }
}

/// Sends the requests to an API with an empty store.
pub(crate) fn run(bytes: &[u8]) {
    let ranges = RANGES.parse().unwrap();
    let api = Arc::new(Api::new(&ApiConfig { service_ranges: ranges, ..ApiConfig::default() }));
    let (_stop, stopping) = tokio::sync::watch::channel(false);
    let handler = Handler::new(Arc::clone(&api), stopping, 64 << 20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for request in bytes.split(|&byte| byte == 0).filter_map(request) {
            let sent = format!("{} {}", request.method(), request.uri());
            send(&handler, request).await;
            check(&api, &sent);
        }
    });
}

fn request(bytes: &[u8]) -> Option<Request<Full<Bytes>>> {
    let [method, resource, path, options, body @ ..] = bytes else { return None };
    let resources: Vec<Resource> = Resource::served().collect();
    let resource = *resources.get(usize::from(*resource) % resources.len())?;
    let info = resource.info();
    let method = METHODS.get(usize::from(*method) % METHODS.len())?;
    // The allocator writes IPAddresses, and administrators add ranges as ServiceCIDRs. Any such write could contradict the
    // Services, so these resources are only read.
    let method = match resource {
        Resource::IpAddress | Resource::ServiceCidr => &Method::GET,
        _ => method,
    };
    let mut uri = if info.group.is_empty() { "/api/".to_owned() } else { format!("/apis/{}/", info.group) };
    uri.push_str(info.version);
    if info.namespaced && path & 1 << 7 == 0 {
        uri.push_str("/namespaces/default");
    }
    uri.push('/');
    uri.push_str(info.plural);
    if path & 1 != 0 {
        uri.push('/');
        uri.push_str(NAMES[usize::from(path >> 2) % NAMES.len()]);
        if path & 2 != 0 {
            uri.push_str("/status");
        }
    }
    uri.push('?');
    uri.push_str(QUERIES[usize::from(*options) % QUERIES.len()]);
    let kind = TYPES[usize::from(options >> 4) % TYPES.len()];
    let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, kind);
    let request = request.header(header::HOST, "localhost").header(header::USER_AGENT, "fuzz/1");
    request.body(Full::new(Bytes::copy_from_slice(body))).ok()
}

/// Sends a request over a connection in memory, and reads the answer; of a watch, the head.
async fn send(handler: &Handler, request: Request<Full<Bytes>>) {
    let text = format!("{} {}", request.method(), request.uri());
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch"));
    let (client, server) = tokio::io::duplex(BUFFER);
    let service = hyper::service::service_fn(async |request| {
        let (request, leftover, _) = arriving(request);
        let answer = handler.answer(request, &Admin).await;
        if let Some(leftover) = leftover {
            leftover.drain();
        }
        Ok::<_, Infallible>(answer)
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
    let asked = async {
        let (mut sender, to_server) =
            hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
        let answer = async {
            let answer = sender.send_request(request).await.expect("an answer");
            let status = answer.status();
            assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{text}");
            if !is_watch {
                answer.into_body().collect().await.expect("a whole answer");
            }
        };
        tokio::select! {
            () = answer => {}
            end = to_server => panic!("{text}: the connection ended: {end:?}"),
        }
    };
    tokio::select! {
        () = asked => {}
        end = connection => panic!("{text}: the server ended: {end:?}"),
    }
}

/// Checks what a request has left. `sent` names the request.
///
/// A Service and the records of its addresses and node ports (IPAddress and the server's own NodePort) are written in one
/// transaction, so they agree after each request. In a cluster, a client may create and delete IPAddresses as in Kubernetes;
/// then they disagree until the server's audit repairs that. Clients of this target only read IPAddresses (see [`request`]).
/// Addresses of load balancers have records, too, and here is no range of them.
fn check(api: &Api, sent: &str) {
    let objects = |resource| -> Vec<Value> {
        let snapshot = api.store().snapshot(resource, &Scope::default(), None).expect("the newest revision");
        snapshot.objects.iter().map(|object| object.decode().into()).collect()
    };
    let records = |resource| -> BTreeMap<String, String> {
        let records = objects(resource);
        let holder = |record: &Value| key(&record["spec"]["parentRef"]);
        records.iter().map(|record| (text(&record["metadata"]["name"]), holder(record))).collect()
    };
    let (mut addresses, mut numbers, mut ports) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for service in objects(Resource::Service) {
        let (spec, name) = (&service["spec"], key(&service["metadata"]));
        for address in list(&spec["clusterIPs"]).iter().map(text).filter(|address| address != "None") {
            // A record has the canonical form of its address as its name, and a Service the form that its client wrote.
            let address: IpAddr = address.parse().expect("an address");
            let other = addresses.insert(address.to_string(), name.clone());
            assert!(other.is_none(), "{address} has two Services after {sent}: {other:?}, {name}");
        }
        let node_ports =
            list(&spec["ports"]).iter().map(|port| (text(&port["protocol"]), port["nodePort"].as_u64()));
        let health_check = ("TCP".to_owned(), spec["healthCheckNodePort"].as_u64());
        for (protocol, number) in node_ports.chain([health_check]) {
            let Some(number) = number.filter(|number| *number > 0) else { continue };
            let place = (protocol, number);
            assert!(ports.insert(place.clone()), "{place:?} has two uses after {sent}: {service}");
            // Ports of one Service may share a number if their protocols differ, and those of two Services may not.
            let other = numbers.insert(number.to_string(), name.clone());
            let is_own = other.as_ref().is_none_or(|other| *other == name);
            assert!(is_own, "{number} has two Services after {sent}: {other:?}, {name}");
        }
    }
    assert_eq!(records(Resource::IpAddress), addresses, "IPAddresses and cluster IPs after {sent}");
    assert_eq!(records(Resource::NodePort), numbers, "recorded and used node ports after {sent}");
}

/// Returns the namespace and name in the metadata of a Service, or in a reference to one.
fn key(of: &Value) -> String {
    format!("{}/{}", text(&of["namespace"]), text(&of["name"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(|list| &**list).unwrap_or_default()
}
