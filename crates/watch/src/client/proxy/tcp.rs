//! Connections by TCP, to the API server or to a proxy before it.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tower::{BoxError, Service};

use super::stream::Stream;
use crate::client::peers::{Resolver, Route};

/// A connection must be made within this time.
const CONNECT: Duration = Duration::from_secs(10);

/// A peer that is silent for this long is probed, at this interval, and given up after three probes: a dead
/// API server or a lost flow in a middlebox is noticed in about 30 s even where no timeout is due.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Makes connections, and notes where they go.
#[derive(Clone)]
pub(in crate::client) struct Tcp {
    connector: HttpConnector<Resolver>,
    route: Arc<Route>,
    /// At the other end is a proxy that forwards single requests.
    forwarding: bool,
}

impl Tcp {
    /// Our own settings for three reasons: no delay by Nagle's algorithm, dead peers noticed by keep-alive probes, and
    /// a limit for the time that a connection may take.
    pub(super) fn new(route: Arc<Route>, forwarding: bool) -> Self {
        let mut connector = HttpConnector::new_with_resolver(Resolver::new(Arc::clone(&route)));
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_keepalive(Some(KEEPALIVE_IDLE));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
        Self { connector, route, forwarding }
    }
}

impl Service<Uri> for Tcp {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // The resolver is asked for names only.
        let literal = super::host(&uri).parse::<IpAddr>();
        if let Ok(address) = literal {
            self.route.found(std::iter::once(address));
        }
        let (connecting, route, forwarding) =
            (self.connector.call(uri), Arc::clone(&self.route), self.forwarding);
        Box::pin(async move {
            let tcp = connecting.await?;
            let peer = tcp.inner().peer_addr().ok().map(|peer| route.hold(peer));
            Ok(Stream::new(tcp, forwarding, peer))
        })
    }
}
