//! Calls to the servers of one etcd cluster: one server is used until it fails, then the next.

use std::{
    error::Error,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{
    Code, ConnectError, Request, Status, Streaming,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    messages::{
        AuthenticateRequest, AuthenticateResponse, CompactionRequest, CompactionResponse, RangeRequest,
        RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
    },
    options::{Credentials, EtcdOptions, causes, chain},
};
use crate::OpenError;

/// Pause before the servers are tried once more.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The part of the time-out that one attempt may take.
const PATIENCE: u32 = 4;

/// The cluster.
#[derive(Debug)]
pub(super) struct Client {
    servers: Vec<Channel>,
    names: String,
    current: AtomicUsize,
    credentials: Option<Credentials>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    timeout: Duration,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// What etcd, or what is in between, says.
    pub(super) status: Status,
    /// Whether etcd may have seen the request.
    pub(super) sent: bool,
}

impl Client {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, OpenError> {
        Ok(Self {
            servers: options.checked_endpoints()?.iter().map(Endpoint::connect_lazy).collect(),
            names: options.endpoints.join(", "),
            current: AtomicUsize::new(0),
            credentials: options.credentials.clone(),
            token: Mutex::new(None),
            timeout: options.timeout,
        })
    }

    /// The servers, for messages.
    pub(super) fn names(&self) -> &str {
        &self.names
    }

    /// When a request that begins now is given up.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout).unwrap_or(now)
    }

    /// Reads keys; what it shows is at least as new as the call.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.read("/etcdserverpb.KV/Range", request).await
    }

    /// Lets etcd forget what was before a revision.
    pub(super) async fn compact(&self, revision: i64) -> Result<CompactionResponse, Failure> {
        let request = CompactionRequest { revision };
        self.once("/etcdserverpb.KV/Compact", &request, self.deadline()).await
    }

    /// One transaction. It is not sent again unless etcd certainly has not seen it.
    pub(super) async fn transact(
        &self,
        request: TxnRequest,
        deadline: Instant,
    ) -> Result<TxnResponse, Failure> {
        self.once("/etcdserverpb.KV/Txn", &request, deadline).await
    }

    /// One transaction that does no harm if etcd sees it twice.
    pub(super) async fn transact_again(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        self.read("/etcdserverpb.KV/Txn", request).await
    }

    /// Follows keys.
    pub(super) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        let deadline = self.deadline();
        let token = self.token(deadline).await?;
        // The other half stays open: its end would be the end of the watch.
        let requests = stream::iter([WatchRequest { create: Some(create) }]).chain(stream::pending());
        let server = self.current.load(Relaxed);
        let open = async {
            let mut grpc = self.ready(server).await?;
            let request = headed(requests, token.as_ref());
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            grpc.streaming(request, path, codec).await.map_err(Failure::of)
        };
        let opened = timeout_at(deadline, open).await.unwrap_or_else(|_| Err(Failure::late(true)));
        opened.map(tonic::Response::into_inner).inspect_err(|failure| {
            self.forget_token(failure);
            self.leave(server);
        })
    }

    /// The server in use has failed: the next one is tried from now on.
    pub(super) fn leave_current(&self) {
        self.leave(self.current.load(Relaxed));
    }

    fn leave(&self, server: usize) {
        let next = server.wrapping_add(1).checked_rem(self.servers.len()).unwrap_or(0);
        // Many calls fail together; only the first of them moves on.
        let _ = self.current.compare_exchange(server, next, Relaxed, Relaxed);
    }

    /// A call that may be made as often as needed.
    async fn read<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let deadline = self.deadline();
        loop {
            // A server that hangs shall not use up the time that the others have.
            let patience = Instant::now().checked_add(self.timeout / PATIENCE).unwrap_or(deadline);
            let failure = match self.once(path, &request, patience.min(deadline)).await {
                Err(failure) if failure.is_passing() => failure,
                done => return done,
            };
            if Instant::now().checked_add(RETRY_PAUSE).is_none_or(|next| next >= deadline) {
                return Err(failure);
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// A call that etcd sees at most once: other servers, and later attempts, only if it was certainly not sent or
    /// certainly refused.
    async fn once<Q, A>(&self, path: &'static str, request: &Q, deadline: Instant) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut attempts = self.servers.len();
        loop {
            let server = self.current.load(Relaxed);
            let failure = match self.attempt(server, path, request, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let refused = self.forget_token(&failure);
            if failure.is_passing() {
                self.leave(server);
            }
            attempts = attempts.saturating_sub(1);
            let again = refused || (!failure.sent && attempts > 0);
            if !again || Instant::now() >= deadline {
                return Err(failure);
            }
        }
    }

    async fn attempt<Q, A>(
        &self,
        server: usize,
        path: &'static str,
        request: &Q,
        deadline: Instant,
    ) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token(deadline).await?;
        let mut grpc =
            timeout_at(deadline, self.ready(server)).await.unwrap_or_else(|_| Err(Failure::late(false)))?;
        let request = headed(request.clone(), token.as_ref());
        let call = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        let answer = timeout_at(deadline, call).await;
        answer.unwrap_or_else(|_| Err(late())).map(tonic::Response::into_inner).map_err(Failure::of)
    }

    async fn ready(&self, server: usize) -> Result<Grpc<Channel>, Failure> {
        let Some(channel) = self.servers.get(server) else {
            return Err(Failure { status: Status::unavailable("there is no server"), sent: false });
        };
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let unsent = |error| Failure { status: Status::unavailable(chain(&error)), sent: false };
        grpc.ready().await.map_err(unsent)?;
        Ok(grpc)
    }

    /// The token to show to etcd, if it wants one.
    async fn token(&self, deadline: Instant) -> Result<Option<MetadataValue<Ascii>>, Failure> {
        let Some(credentials) = &self.credentials else { return Ok(None) };
        if let Some(token) = self.lock_token().clone() {
            return Ok(Some(token));
        }
        let Credentials { name, password } = credentials.clone();
        let request = headed(AuthenticateRequest { name, password }, None);
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
        let login = async {
            let mut grpc = self.ready(self.current.load(Relaxed)).await?;
            let codec = ProstCodec::<AuthenticateRequest, AuthenticateResponse>::default();
            grpc.unary(request, path, codec).await.map_err(Failure::of)
        };
        let answer = timeout_at(deadline, login).await.unwrap_or_else(|_| Err(Failure::late(false)));
        // Whatever became of this, the request itself was not sent.
        let answer = answer.map_err(|failure| Failure { sent: false, ..failure })?.into_inner();
        let token: MetadataValue<Ascii> = answer
            .token
            .parse()
            .map_err(|_| Failure { status: Status::internal("etcd's token is not text"), sent: false })?;
        *self.lock_token() = Some(token.clone());
        Ok(Some(token))
    }

    /// Whether etcd refused the token, which has then been dropped.
    fn forget_token(&self, failure: &Failure) -> bool {
        let refused = failure.status.code() == Code::Unauthenticated;
        refused && self.lock_token().take().is_some()
    }

    fn lock_token(&self) -> std::sync::MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failure {
    fn of(status: Status) -> Self {
        let unconnected = causes(&status).any(<dyn Error>::is::<ConnectError>);
        Self { sent: !unconnected, status }
    }

    fn late(sent: bool) -> Self {
        Self { status: late(), sent }
    }

    /// Whether another server, or a later attempt, may have a better answer.
    fn is_passing(&self) -> bool {
        // etcd answers a lost leader and its own time-outs with Unavailable; broken connections come as Unknown or
        // Internal; a wrong token as Unauthenticated.
        matches!(
            self.status.code(),
            Code::Unavailable
                | Code::Unknown
                | Code::Internal
                | Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unauthenticated
        )
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let texts = causes(&self.status).map(ToString::to_string).filter(|cause| cause != "transport error");
        texts.fold(self.status.message().to_owned(), |text, cause| {
            if text.contains(&cause) { text } else { format!("{text}: {cause}") }
        })
    }
}

fn late() -> Status {
    Status::deadline_exceeded("no answer in time")
}

/// A request with what goes in its head.
fn headed<T>(message: T, token: Option<&MetadataValue<Ascii>>) -> Request<T> {
    let mut request = Request::new(message);
    // A server that is cut off from the others shall refuse instead of waiting.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}
