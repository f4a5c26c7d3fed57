//! The GET request of a probe, on a connection of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::redirect::RequestTarget;
use super::socket::Connection;
use super::{Failure, ProbeOutcome, USER_AGENT};
use crate::annotations::HttpProbe;

/// Most redirects that are followed.
const MOST_REDIRECTS: usize = 5;
/// Most bytes of the head of an answer.
const MOST_HEAD: usize = 32 << 10;
/// Bytes of the body after which an answer is complete enough (`maxRespBodyLength` of the kubelet's `pkg/probe/http`).
const MOST_BODY: usize = 10 << 10;

/// What an answer means.
enum Answer {
    Passed,
    Failed(u16),
    Redirect(Box<RequestTarget>),
}

/// Sends the request and follows redirects to the same endpoint, until the deadline.
pub(super) async fn get(
    address: SocketAddr,
    probe: &HttpProbe,
    tls: &Arc<ClientConfig>,
    deadline: Instant,
) -> Result<(), ProbeOutcome> {
    let mut place = RequestTarget::first(address, probe);
    for _ in 0..=MOST_REDIRECTS {
        let answer = timeout_at(deadline, ask(&place, probe, tls)).await;
        let answer = answer.unwrap_or(Err(ProbeOutcome::Failed(Failure::TimedOut)));
        match answer.map_err(|outcome| at(place.address, address, outcome))? {
            Answer::Passed => return Ok(()),
            Answer::Failed(status) => {
                let outcome = ProbeOutcome::Failed(Failure::Status(status));
                return Err(at(place.address, address, outcome));
            }
            Answer::Redirect(next) => place = *next,
        }
    }
    Err(bad("too many redirects"))
}

/// Adds the address at which a probe failed, if it is not the one that is probed.
fn at(place: SocketAddr, probed: SocketAddr, outcome: ProbeOutcome) -> ProbeOutcome {
    match outcome {
        ProbeOutcome::Failed(failure) if place != probed => {
            ProbeOutcome::Failed(Failure::Redirected { to: place, failure: Box::new(failure) })
        }
        outcome => outcome,
    }
}

async fn ask(
    place: &RequestTarget,
    probe: &HttpProbe,
    tls: &Arc<ClientConfig>,
) -> Result<Answer, ProbeOutcome> {
    let connection = Connection::open(place.address).await?;
    if !place.tls {
        return exchange(connection, place, probe).await;
    }
    let name = ServerName::try_from(place.host().to_owned()).unwrap_or_else(|_| place.address.ip().into());
    let connect = Box::pin(TlsConnector::from(Arc::clone(tls)).connect(name, connection));
    let connection = connect.await.map_err(|error| ProbeOutcome::Failed(Failure::Tls(error.to_string())))?;
    Box::pin(exchange(connection, place, probe)).await
}

async fn exchange<S>(stream: S, place: &RequestTarget, probe: &HttpProbe) -> Result<Answer, ProbeOutcome>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = request(place)?;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MOST_HEAD);
    let (mut sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| bad(&error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| bad(&error))?;
        judge(response, place, probe).await
    };
    // The connection moves the bytes. When it ends, the answer has everything that will come.
    let connection = async {
        let _ = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        answer = answer => answer,
        never = connection => never,
    }
}

fn request(place: &RequestTarget) -> Result<Request<Empty<Bytes>>, ProbeOutcome> {
    let host = HeaderValue::from_str(&place.authority);
    let host = host.map_err(|_| bad("the redirect's host is no header value"))?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = place.path.clone().into();
    let headers = request.headers_mut();
    headers.insert(header::HOST, host);
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

async fn judge(
    response: Response<Incoming>,
    place: &RequestTarget,
    probe: &HttpProbe,
) -> Result<Answer, ProbeOutcome> {
    let status = response.status();
    if matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) && !probe.statuses.lists(status.as_u16()) {
        let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        if let Some(next) = location.and_then(|location| place.redirected(location)) {
            return Ok(Answer::Redirect(Box::new(next)));
        }
    }
    if !probe.statuses.contains(status.as_u16()) {
        return Ok(Answer::Failed(status.as_u16()));
    }
    let mut body = response.into_body();
    let mut left = MOST_BODY;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| bad(&error))?;
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) if rest > 0 => left = rest,
            _ => break,
        }
    }
    Ok(Answer::Passed)
}

fn bad(error: &(impl std::fmt::Display + ?Sized)) -> ProbeOutcome {
    ProbeOutcome::Failed(Failure::Answer(error.to_string()))
}
