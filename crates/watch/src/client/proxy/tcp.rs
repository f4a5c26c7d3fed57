//! TCP connections to the API server or to a proxy before it.

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

/// Maximum time to make a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// A peer that is silent for `KEEPALIVE_IDLE` is probed every `KEEPALIVE_INTERVAL`, and given up after
/// `KEEPALIVE_PROBES` probes. A dead API server or a flow lost in a middlebox is noticed in about 30 s even where no
/// timeout applies.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Makes connections and records their addresses.
#[derive(Clone)]
pub(in crate::client) struct Tcp {
    connector: HttpConnector<Resolver>,
    route: Arc<Route>,
    /// True if the peer is a proxy that forwards single requests.
    forwarding: bool,
}

impl Tcp {
    /// Creates a connector that differs from kube's in three settings: Nagle's algorithm is off, keep-alive probes
    /// detect dead peers, and the time for a connection is limited.
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
        // The resolver is called for names only, so addresses are recorded here.
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
