//! Requests to the API server, one after the other, and what each leaves in its store. No request fails inside the server; no
//! address and no node port has two Services; each of them has its record, and no record is of anything else.
//!
//! The input is a list of choices. Most requests are those of a client that manages a few Services, some read them, and the others
//! have any method, resource and body. Other clients follow some objects by a watch. The clock is paused and jumps to the next
//! timer, so a watch that is waited for ends at once.

mod check;
mod follow;
pub(crate) mod other;
mod read;
pub(crate) mod service;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use portolan_api::{Api, ApiConfig};
use portolan_http::{Answer, Attributes, Handler, Rule, Subject, arriving};
use portolan_schema::Resource;
use portolan_store::History;

use crate::script::Script;
use check::check;
use follow::Follower;

/// Fewer addresses and ports than a long input can ask for.
const RANGES: &str = "10.0.0.0/28,fd00::/124";
const LOAD_BALANCER_RANGES: &str = "192.0.2.0/30,2001:db8:1::/126";
const NODE_PORTS: &str = "30000-30015";
/// The most requests of one input.
const MOST: usize = 48;
/// Bytes of the longest body whose bytes are all chosen.
const LONGEST: usize = 4096;
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
/// So many changes of each kind are remembered. A client that was away for longer lists again.
const CHANGES: usize = 16;
/// How many clients follow objects.
const FOLLOWERS: usize = 2;
/// Bodies are sent in parts of this many bytes at most.
const BUFFER: usize = 64 << 10;

/// What answers of the status 500 say. As in Kubernetes, a range that is full or not ready is such an error, and so is a
/// health-check node port that is not free.
const EXHAUSTED: [&str; 3] =
    ["occurred: spec.healthCheckNodePort: provided ", " is full: ", " cluster IPs is ready"];

const ALL: &[&str] = &["*"];
const RULES: [Rule; 2] =
    [Rule::Resources { verbs: ALL, groups: ALL, resources: ALL }, Rule::Paths { verbs: ALL, paths: ALL }];

/// A client that may do everything.
struct Admin;

impl Subject for Admin {
    fn user(&self) -> &'static str {
        "admin"
    }

    fn groups(&self) -> Vec<&str> {
        Vec::new()
    }

    fn may(&self, attributes: &Attributes) -> bool {
        RULES.iter().any(|rule| rule.allows(attributes))
    }

    fn rules(&self) -> Vec<Rule> {
        RULES.to_vec()
    }
}

/// Sends the requests to an API with an empty store.
pub(crate) fn run(bytes: &[u8]) {
    requests(bytes);
}

/// Returns the server after the last request, and the numbers of requests that succeeded, by method.
fn requests(bytes: &[u8]) -> (Arc<Api>, BTreeMap<&'static str, usize>) {
    let api = Arc::new(Api::new(&config()));
    let done = serve(&api, &mut Script::new(bytes), FOLLOWERS, |sent| check(&api, sent));
    (api, done)
}

pub(crate) fn config() -> ApiConfig {
    ApiConfig {
        service_ranges: RANGES.parse().unwrap(),
        load_balancer_ranges: LOAD_BALANCER_RANGES.parse().unwrap(),
        node_ports: NODE_PORTS.parse().unwrap(),
        history: History { max_changes: CHANGES, ..History::default() },
        ..ApiConfig::default()
    }
}

/// Sends the requests, and calls `after` with the name of each. Meanwhile `followers` clients follow objects. Returns the numbers
/// of requests that succeeded, by method, and those of events, by type.
pub(crate) fn serve(
    api: &Arc<Api>,
    script: &mut Script<'_>,
    followers: usize,
    after: impl Fn(&str),
) -> BTreeMap<&'static str, usize> {
    let (_stop, stopping) = tokio::sync::watch::channel(false);
    let handler = Rc::new(Handler::new(Arc::clone(api), stopping, 64 << 20));
    let (mut done, mut token) = (BTreeMap::new(), None);
    // The server ends watches at random times.
    fastrand::seed(0);
    let length = script.length();
    // They are chosen by the number of bytes that are left, which uses up none of them.
    let mut followers: Vec<Follower> =
        (0..followers).map(|number| Follower::new(&handler, length + number * 13)).collect();
    in_paused_time(async {
        for number in 0..MOST {
            if script.is_over() {
                break;
            }
            // Some read only at the end, when many events have waited for them.
            let reads = number == length % 8 || length.is_multiple_of(2) && number > length % 8;
            if reads {
                catch_up(&mut followers).await;
            }
            let request = match script.below(16) {
                0 => any(script.bytes(LONGEST)),
                1 | 2 => read::request(script, token.as_deref()),
                3..=5 => other::request(script),
                _ => service::request(script),
            };
            let Some(request) = request else { continue };
            let sent = format!("{} {}", request.method(), request.uri());
            let method = METHODS.iter().find(|method| *method == request.method());
            let (status, body) = send(&handler, request).await;
            after(&sent);
            if status.is_success() {
                *done.entry(method.map_or("", Method::as_str)).or_default() += 1;
                token = continued(&body).or(token);
            }
        }
        catch_up(&mut followers).await;
        for follower in &mut followers {
            follower.check().await;
            for (what, count) in &follower.taken {
                *done.entry(what).or_default() += count;
            }
        }
    });
    done
}

fn in_paused_time(task: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    tokio::task::LocalSet::new().block_on(&runtime.unwrap(), task);
}

async fn catch_up(followers: &mut [Follower]) {
    for follower in followers {
        follower.catch_up().await;
    }
}

/// Returns the token in a page of a list with which the next page is asked for.
fn continued(body: &str) -> Option<String> {
    let (_, token) = body.split_once("\"continue\":\"")?;
    token.split('"').next().filter(|token| !token.is_empty()).map(str::to_owned)
}

/// Returns a request with four bytes for method, resource, path and options, and the body.
fn any(bytes: &[u8]) -> Option<Request<Full<Bytes>>> {
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
    with_body(method, &uri, kind, Bytes::copy_from_slice(body))
}

fn with_body(method: &Method, uri: &str, kind: &str, body: Bytes) -> Option<Request<Full<Bytes>>> {
    let request = Request::builder().method(method).uri(uri).header(header::CONTENT_TYPE, kind);
    let request = request.header(header::HOST, "localhost").header(header::USER_AGENT, "fuzz/1");
    request.body(Full::new(body)).ok()
}

async fn answer(handler: &Handler, request: Request<Incoming>) -> Result<Answer, Infallible> {
    // A client that may do everything may send any request.
    let attributes = Attributes::of(request.method(), request.uri());
    assert!(Admin.may(&attributes), "{attributes:?}");
    let (request, leftover, _) = arriving(request);
    let answer = handler.answer(request, &Admin).await;
    if let Some(leftover) = leftover {
        leftover.drain();
    }
    Ok(answer)
}

/// Returns a connection in memory. The server sends at most `buffer` bytes that are not read yet.
async fn connect(handler: &Rc<Handler>, buffer: usize) -> SendRequest<Full<Bytes>> {
    let (client, server) = tokio::io::duplex(buffer);
    let handler = Rc::clone(handler);
    let service = hyper::service::service_fn(move |request| {
        let handler = Rc::clone(&handler);
        async move { answer(&handler, request).await }
    });
    let server = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(server), service);
    tokio::task::spawn_local(server);
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client)).await.unwrap();
    tokio::task::spawn_local(connection);
    sender
}

/// Sends a request, and returns the status and the body of the answer.
async fn send(handler: &Rc<Handler>, request: Request<Full<Bytes>>) -> (StatusCode, String) {
    let text = format!("{} {}", request.method(), request.uri());
    let mut sender = connect(handler, BUFFER).await;
    let answer = sender.send_request(request).await.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a whole answer").to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    let is_expected = EXHAUSTED.iter().any(|part| body.contains(part));
    assert!(status != StatusCode::INTERNAL_SERVER_ERROR || is_expected, "{text}: {body}");
    (status, body)
}

#[cfg(test)]
mod tests {
    use portolan_store::Scope;

    use super::*;

    #[test]
    fn requests_create_change_and_delete_services_with_addresses_and_ports() {
        let (mut services, mut ports, mut balanced) = (0, 0, 0);
        let mut done: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 0..96 {
            let (api, more) = requests(&crate::script::random(seed, 2400 + usize::try_from(seed).unwrap()));
            let count = |resource| {
                let snapshot = api.store().snapshot(resource, &Scope::default(), None);
                snapshot.expect("the newest revision").objects.len()
            };
            services += count(Resource::Service);
            ports += count(Resource::NodePort);
            balanced += check::load_balancer_records(&api).len();
            for (what, count) in more {
                *done.entry(what).or_default() += count;
            }
        }
        assert!(services > 64 && ports > 32 && balanced > 8, "{services} {ports} {balanced}");
        let events = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", follow::ENDED];
        let wanted = METHODS.iter().map(Method::as_str).chain(events);
        for what in wanted {
            assert!(done.get(what) > Some(&4), "{what} of {done:?}");
        }
    }
}
