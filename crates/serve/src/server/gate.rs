//! The path of every request to the API: authentication, authorization, limits on concurrent requests, and the
//! deadline. The order is upstream's.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use portolan_http::{Answer, Arriving, Attributes, Handler, Subject as _, Target, arriving};
use portolan_web::PLAIN;
use portolan_web::metrics::{Sources, TEXT_FORMAT};
use tokio::sync::{Semaphore, TryAcquireError, watch};

use super::guarded::Guarded;
use super::health::Checks;
use super::limits::Limits;
use super::ration::Shown;
use super::refusal::{Refusal, text};
use super::release::Freed;
use super::requests::{Labels, Requests};
use crate::security::{Identity, Peer, Security, Unauthorized, bearer};

/// Values that an answer keeps alive until it is sent.
type Held = Vec<Box<dyn Any + Send>>;

/// The path to the API, shared by all connections.
pub(super) struct Gate {
    handler: Handler,
    /// `None` for plain HTTP, where clients do not authenticate.
    security: Option<Arc<Security>>,
    limits: Limits,
    room: Room,
    checks: Checks,
    metrics: Sources,
    pub(super) requests: Arc<Requests>,
    freed: Freed,
    /// Becomes true when the server begins to stop, before it ends any connection.
    stopping: watch::Receiver<bool>,
    folder: Loading,
    /// True if only this host can connect.
    loopback: bool,
}

/// The state of the manifests folder.
#[derive(Debug, Clone)]
pub(super) struct Loading {
    /// Whether the folder has been read; `None` without a folder.
    pub(super) is_read: Option<watch::Receiver<bool>>,
    /// True if the store holds the folder's objects from an earlier run, so requests need not wait for the folder.
    pub(super) is_known: bool,
}

impl Loading {
    fn is_read(&self) -> Option<bool> {
        self.is_read.as_ref().map(|is_read| *is_read.borrow())
    }

    /// Waits until the folder has been read or need not be. Otherwise a client would take objects that are not read
    /// yet for deleted.
    async fn finished(&self) -> Result<(), Refusal> {
        let Some(mut is_read) = self.is_read.clone().filter(|_| !self.is_known) else { return Ok(()) };
        // The channel is closed when the server ends before the folder was read.
        is_read.wait_for(|is_read| *is_read).await.map(|_| ()).map_err(|_| Refusal::Timeout)
    }
}

/// Semaphores that limit concurrent requests.
struct Room {
    reading: Arc<Semaphore>,
    mutating: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

/// The parts of a gate.
pub(super) struct Parts {
    pub(super) handler: Handler,
    pub(super) freed: Freed,
    pub(super) security: Option<Arc<Security>>,
    pub(super) limits: Limits,
    pub(super) checks: Checks,
    pub(super) metrics: Sources,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) folder: Loading,
    pub(super) address: SocketAddr,
}

impl Gate {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { handler, freed, security, limits, checks, metrics, stopping, folder, address } = parts;
        let requests = Arc::new(Requests::default());
        let metrics_of_server = Sources::default();
        metrics_of_server.register(Arc::clone(&requests) as Arc<_>);
        if let Some(security) = &security {
            metrics_of_server.register(Arc::clone(security) as Arc<_>);
        }
        metrics_of_server.register(Arc::new(metrics));
        let places = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        let room = Room {
            reading: places(limits.reading),
            mutating: places(limits.mutating),
            watches: places(limits.watches),
        };
        let loopback = address.ip().is_loopback();
        let metrics = metrics_of_server;
        Self { handler, security, limits, room, checks, metrics, requests, freed, stopping, folder, loopback }
    }

    /// Answers one request of a connection. Records in `shown` whether the client has authenticated, even if the request
    /// does not require it.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        shown: &Shown,
    ) -> http::Response<Guarded> {
        let begin = Instant::now();
        let identity = self.security.as_ref().map(|security| security.identify(peer, request.headers()));
        match &identity {
            Some(Ok(_)) => shown.accept(),
            // The answer may take a while. What follows is not read meanwhile, but for the frames of the connection.
            Some(Err(_)) => shown.refuse(),
            None => {}
        }
        let attributes = Attributes::of(request.method(), request.uri());
        let labels = Labels::of(&attributes);
        let is_head = request.method() == Method::HEAD;
        let mut held = Held::new();
        let (request, leftover, read) = arriving(request);
        let answer = self.pass(request, identity, &attributes, &mut held).await;
        let answer = answer.unwrap_or_else(|refusal| refusal.answer(&attributes));
        let bytes = read.bytes();
        if let Some(leftover) = leftover {
            leftover.drain();
        }
        // The factor covers what was decoded from the body. Bytes that a client only announces, and bytes that are
        // drained, take no memory.
        self.freed.add(bytes.saturating_mul(8));
        let answer = if is_head { without_body(answer) } else { answer };
        let took = (!attributes.is_long_running()).then(|| begin.elapsed());
        self.requests.answered(labels, answer.status().as_u16(), took);
        let is_long_running = attributes.is_long_running();
        answer.map(|body| {
            let body = Guarded::new(body, held);
            // Upstream's deadline includes sending the answer.
            if is_long_running { body } else { body.within(self.limits.request_time) }
        })
    }

    async fn pass(
        &self,
        request: Request<Arriving>,
        identity: Option<Result<Identity, Unauthorized>>,
        attributes: &Attributes,
        held: &mut Held,
    ) -> Result<Answer, Refusal> {
        if let Some(answer) = self.health(request.uri(), attributes) {
            return answer;
        }
        self.check_origin(request.uri(), request.headers())?;
        let client = client(request.headers(), identity, attributes)?;
        if attributes.target == Target::Path("/metrics".to_owned()) {
            only_get(attributes)?;
            return Ok(text(StatusCode::OK, TEXT_FORMAT, self.metrics.render()));
        }
        if attributes.is_long_running() {
            let place = Arc::clone(&self.room.watches).try_acquire_owned().map_err(too_many)?;
            let finished = tokio::time::timeout(self.limits.request_time, self.folder.finished()).await;
            finished.unwrap_or(Err(Refusal::Timeout))?;
            let answer = self.handler.answer(request, &client).await;
            if answer.status().is_success() {
                held.push(Box::new((place, self.requests.watching(Labels::of(attributes)))));
            }
            return Ok(answer);
        }
        let (room, kind) = if attributes.is_reading() {
            (&self.room.reading, "readOnly")
        } else {
            (&self.room.mutating, "mutating")
        };
        let place = Arc::clone(room).try_acquire_owned().map_err(too_many)?;
        let counted = self.requests.in_flight(kind);
        let answer = async {
            self.folder.finished().await?;
            Ok(self.handler.answer(request, &client).await)
        };
        let answer = tokio::time::timeout(self.limits.request_time, answer).await;
        let answer = answer.unwrap_or(Err(Refusal::Timeout))?;
        // An answer takes memory until the client has read it.
        held.push(Box::new((place, counted)));
        Ok(answer)
    }

    /// Returns the answer if the path is a health check, which needs no authentication. Returns `None` for other
    /// paths.
    fn health(&self, uri: &Uri, attributes: &Attributes) -> Option<Result<Answer, Refusal>> {
        let Target::Path(path) = &attributes.target else { return None };
        if !["/healthz", "/livez", "/readyz"].iter().any(|prefix| path.starts_with(prefix)) {
            return None;
        }
        if let Err(refusal) = only_get(attributes) {
            return Some(Err(refusal));
        }
        let said = self.checks.answer(
            path,
            uri.query().unwrap_or_default(),
            *self.stopping.borrow(),
            self.folder.is_read(),
        );
        Some(said.ok_or(Refusal::NotFound).map(|(code, said)| text(code, PLAIN, said)))
    }

    /// Refuses requests from web pages in a browser, which could use the browser's client certificate or its access to
    /// loopback. Pages send an Origin header with requests that change something. After DNS rebinding, they send their
    /// own name as the host.
    ///
    /// With TLS, a bearer token shows that the request is none of a foreign page: a browser adds no such token by itself,
    /// and a page of another origin may not send one, because this server permits no cross-origin requests (CORS).
    fn check_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let is_plain = self.security.is_none();
        let foreign_host = || is_plain && self.loopback && host(uri, headers).is_some_and(is_foreign);
        let foreign_page = headers.contains_key(header::ORIGIN) && (is_plain || bearer(headers).is_none());
        if foreign_page || foreign_host() { Err(Refusal::Browser) } else { Ok(()) }
    }
}

/// Returns the client if it may send the request. `identity` is `None` for plain HTTP, where every request is allowed.
fn client(
    headers: &HeaderMap,
    identity: Option<Result<Identity, Unauthorized>>,
    attributes: &Attributes,
) -> Result<Identity, Refusal> {
    let Some(identity) = identity else { return Ok(Identity::unsecured()) };
    // Readable without authentication, as with upstream's `system:public-info-viewer`.
    if attributes.target == Target::Path("/version".to_owned()) {
        return Ok(identity.unwrap_or_else(|_| Identity::anonymous()));
    }
    // A user who asks to act with fewer rights (`kubectl --as`) must not act with its own.
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        return Err(Refusal::Impersonation);
    }
    let identity = identity.map_err(|why| {
        tracing::debug!(why = why.0, verb = attributes.verb, "unauthorized");
        Refusal::Unauthorized
    })?;
    if identity.may(attributes) {
        return Ok(identity);
    }
    tracing::debug!(user = identity.user, verb = attributes.verb, target = ?attributes.target, "forbidden");
    Err(Refusal::Forbidden { user: identity.user })
}

/// Removes the body of an answer and keeps its length. hyper does this for HTTP/1 only. In HTTP/2 a body would break
/// the stream.
fn without_body(answer: Answer) -> Answer {
    let length = answer.body().size_hint().exact();
    let mut answer = answer.map(|_| Empty::new().boxed_unsync());
    if let Some(length) = length {
        answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    answer
}

fn too_many(_: TryAcquireError) -> Refusal {
    Refusal::TooMany
}

fn only_get(attributes: &Attributes) -> Result<(), Refusal> {
    if matches!(attributes.verb, "get" | "head") { Ok(()) } else { Err(Refusal::Method) }
}

/// Returns the host that a request names, without its port.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let named = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let host = uri.authority().map(http::uri::Authority::as_str).or(named)?;
    let end = if host.ends_with(']') { None } else { host.rfind(':') };
    Some(end.and_then(|end| host.get(..end)).unwrap_or(host))
}

fn is_foreign(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    !host.eq_ignore_ascii_case("localhost") && !host.is_empty() && address.parse::<IpAddr>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (value, foreign) in [
            ("localhost", false),
            ("LOCALHOST:8001", false),
            ("127.0.0.1:8001", false),
            ("[::1]", false),
            ("[::1]:8001", false),
            ("", false),
            ("evil.example", true),
            ("evil.example:8001", true),
            ("localhost.evil.example", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, value.parse().unwrap());
            assert_eq!(host(&Uri::from_static("/"), &headers).is_some_and(is_foreign), foreign, "{value}");
        }
        let absolute = Uri::from_static("http://evil.example/api");
        assert_eq!(host(&absolute, &HeaderMap::new()), Some("evil.example"));
    }
}
