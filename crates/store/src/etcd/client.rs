//! Calls to the servers of one etcd cluster. One server is used until it fails, then the next.

use std::{
    error::Error,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
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

/// Pause before a failed read is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// One attempt may take this fraction of the timeout: a quarter.
const PATIENCE: u32 = 4;

/// How often one call logs in again because etcd refused the token.
const LOGINS: u32 = 2;

/// What etcd says of a token, or of a call without one, with the code `InvalidArgument` (`api/v3rpc/rpctypes`).
const TOKEN_REFUSALS: [&str; 2] =
    ["etcdserver: revision of auth store is old", "etcdserver: user name is empty"];

/// What etcd says of a login while its authentication is off, with the code `FailedPrecondition` (`api/v3rpc/rpctypes`).
const NOT_ENABLED: &str = "etcdserver: authentication is not enabled";

/// What a login returned. It holds until etcd refuses a call that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Login {
    /// A token of etcd's authentication.
    Token(MetadataValue<Ascii>),
    /// etcd's authentication is off. etcd refuses calls without a token once it is on.
    Off,
}

/// A client of the cluster.
#[derive(Debug)]
pub(super) struct Client {
    /// How to reach each server.
    access: Mutex<Access>,
    count: usize,
    names: String,
    current: AtomicUsize,
    login: Mutex<Option<Login>>,
    /// Held during a login, so that calls that are refused together log in once. etcd takes long for a login.
    logging_in: tokio::sync::Mutex<()>,
    timeout: Duration,
}

/// What depends on the certificates and the credentials, which may be replaced.
#[derive(Debug)]
struct Access {
    servers: Vec<Channel>,
    credentials: Option<Credentials>,
}

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The error from etcd or from the connection to it.
    pub(super) status: Status,
    /// True if etcd may have started to process the request.
    pub(super) sent: bool,
}

impl Client {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, OpenError> {
        let access = Access::new(options)?;
        Ok(Self {
            count: access.servers.len(),
            access: Mutex::new(access),
            names: options.endpoints.join(", "),
            current: AtomicUsize::new(0),
            login: Mutex::new(None),
            logging_in: tokio::sync::Mutex::default(),
            timeout: options.timeout,
        })
    }

    /// Uses other certificates and credentials, for the same endpoints, from the next call on. Calls in progress and open
    /// watches keep their connections.
    pub(super) fn renew(&self, options: &EtcdOptions) -> Result<(), OpenError> {
        let access = Access::new(options)?;
        let before = mem::replace(&mut *self.lock_access(), access);
        // A token stays valid with other certificates. etcd takes long for a login.
        if before.credentials != options.credentials {
            self.lock_login().take();
        }
        Ok(())
    }

    /// Returns the endpoints as a text for messages.
    pub(super) fn names(&self) -> &str {
        &self.names
    }

    /// Returns the deadline of a request that starts at the call.
    pub(super) fn deadline(&self) -> Instant {
        let now = Instant::now();
        now.checked_add(self.timeout).unwrap_or(now)
    }

    /// Returns the deadline of one attempt that starts at the call.
    fn patience(&self, deadline: Instant) -> Instant {
        Instant::now()
            .checked_add(self.timeout / PATIENCE)
            .map_or(deadline, |patience| patience.min(deadline))
    }

    /// Reads keys. The result is at least as new as the call.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.read("/etcdserverpb.KV/Range", request).await
    }

    /// Compacts etcd: it drops its history before a revision.
    pub(super) async fn compact(&self, revision: i64) -> Result<CompactionResponse, Failure> {
        let request = CompactionRequest { revision };
        self.once("/etcdserverpb.KV/Compact", &request, self.deadline()).await
    }

    /// Carries out one transaction. Sends it again only if etcd certainly did not process it.
    pub(super) async fn transact(
        &self,
        request: TxnRequest,
        deadline: Instant,
    ) -> Result<TxnResponse, Failure> {
        self.once("/etcdserverpb.KV/Txn", &request, deadline).await
    }

    /// Carries out one transaction that may be carried out twice without harm. Retries it until the deadline.
    pub(super) async fn transact_again(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        self.read("/etcdserverpb.KV/Txn", request).await
    }

    /// Opens a watch at a server.
    pub(super) async fn watch(
        &self,
        server: usize,
        create: WatchCreateRequest,
    ) -> Result<Streaming<WatchResponse>, Failure> {
        let deadline = self.deadline();
        let login = self.login(deadline).await?;
        // The request stream must stay open: when it ends, etcd ends the watch.
        let requests = stream::iter([WatchRequest { create: Some(create) }]).chain(stream::pending());
        let open = async {
            let mut grpc = self.ready(server).await?;
            let request = headed(requests, login.as_ref());
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            grpc.streaming(request, path, codec).await.map_err(Failure::of)
        };
        let opened = timeout_at(deadline, open).await.unwrap_or_else(|_| Err(Failure::late(true)));
        opened.map(tonic::Response::into_inner).inspect_err(|failure| {
            self.forget_login(failure, login.as_ref());
            self.leave(server);
        })
    }

    /// Returns the server that the next call uses.
    pub(super) fn current(&self) -> usize {
        self.current.load(Relaxed)
    }

    /// Switches to the server after this one, which has failed, if this one is still the current one.
    pub(super) fn leave(&self, server: usize) {
        let next = server.wrapping_add(1).checked_rem(self.count).unwrap_or(0);
        // Many calls may fail together. Only the first of them switches.
        let _ = self.current.compare_exchange(server, next, Relaxed, Relaxed);
    }

    /// Makes a call that may be repeated. Retries it until the deadline.
    async fn read<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let deadline = self.deadline();
        let mut reason: Option<Failure> = None;
        loop {
            // A server that hangs must not use up the time for trying the other servers.
            let failure = match self.once(path, &request, self.patience(deadline)).await {
                Err(failure) if failure.is_passing() => failure,
                done => return done,
            };
            // An earlier error says more than that the time ran out.
            let reason = match reason.take() {
                Some(before) if failure.status.code() == Code::DeadlineExceeded => reason.insert(before),
                _ => reason.insert(failure),
            };
            if Instant::now().checked_add(RETRY_PAUSE).is_none_or(|next| next >= deadline) {
                return Err(Failure { status: reason.status.clone(), sent: reason.sent });
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    /// Makes a call that etcd processes at most once. Tries another server, or the same one again, only if the
    /// request was certainly not sent or certainly refused.
    async fn once<Q, A>(&self, path: &'static str, request: &Q, deadline: Instant) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let (mut attempts, mut logins) = (self.count, LOGINS);
        loop {
            let server = self.current();
            let (outcome, login) = match self.login(deadline).await {
                Ok(login) => (self.attempt(server, path, request, login.as_ref(), deadline).await, login),
                Err(failure) => (Err(failure), None),
            };
            let failure = match outcome {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let refused = self.forget_login(&failure, login.as_ref()) && logins > 0;
            logins = logins.saturating_sub(u32::from(refused));
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
        login: Option<&Login>,
        deadline: Instant,
    ) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc =
            timeout_at(deadline, self.ready(server)).await.unwrap_or_else(|_| Err(Failure::late(false)))?;
        let request = headed(request.clone(), login);
        let call = grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default());
        let answer = timeout_at(deadline, call).await;
        answer.unwrap_or_else(|_| Err(late())).map(tonic::Response::into_inner).map_err(Failure::of)
    }

    async fn ready(&self, server: usize) -> Result<Grpc<Channel>, Failure> {
        let Some(channel) = self.lock_access().servers.get(server).cloned() else {
            return Err(Failure { status: Status::unavailable("there is no server"), sent: false });
        };
        let mut grpc = Grpc::new(channel).max_decoding_message_size(usize::MAX);
        let unsent = |error| Failure { status: Status::unavailable(chain(&error)), sent: false };
        grpc.ready().await.map_err(unsent)?;
        Ok(grpc)
    }

    /// Returns what the last login returned, or `None` if no credentials are configured. Logs in if that is not known.
    async fn login(&self, deadline: Instant) -> Result<Option<Login>, Failure> {
        let Some(credentials) = self.lock_access().credentials.clone() else { return Ok(None) };
        if let Some(login) = self.lock_login().clone() {
            return Ok(Some(login));
        }
        let late = |_| Failure::late(false);
        let _turn = timeout_at(deadline, self.logging_in.lock()).await.map_err(late)?;
        if let Some(login) = self.lock_login().clone() {
            return Ok(Some(login));
        }
        // A server that hangs must not use up the time of the calls that wait.
        let login = self.log_in(credentials, self.patience(deadline)).await?;
        *self.lock_login() = Some(login.clone());
        Ok(Some(login))
    }

    async fn log_in(&self, credentials: Credentials, deadline: Instant) -> Result<Login, Failure> {
        let Credentials { name, password } = credentials;
        let request = headed(AuthenticateRequest { name, password }, None);
        let path = PathAndQuery::from_static("/etcdserverpb.Auth/Authenticate");
        let call = async {
            let mut grpc = self.ready(self.current()).await?;
            let codec = ProstCodec::<AuthenticateRequest, AuthenticateResponse>::default();
            grpc.unary(request, path, codec).await.map_err(Failure::of)
        };
        let answer = timeout_at(deadline, call).await.unwrap_or_else(|_| Err(Failure::late(false)));
        let answer = match answer {
            Err(failure) if failure.is_of_no_authentication() => return Ok(Login::Off),
            // Only the login was sent, not the request itself.
            answer => answer.map_err(|failure| Failure { sent: false, ..failure })?.into_inner(),
        };
        let not_text = |_| Failure { status: Status::internal("etcd's token is not text"), sent: false };
        answer.token.parse().map(Login::Token).map_err(not_text)
    }

    /// Returns true if etcd refused a call because of the login that it used. The next call then logs in again, unless
    /// another call has done so already.
    fn forget_login(&self, failure: &Failure, used: Option<&Login>) -> bool {
        let refused = used.is_some() && failure.is_of_login();
        if refused {
            self.lock_login().take_if(|login| Some(&*login) == used);
        }
        refused
    }

    fn lock_access(&self) -> MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_login(&self) -> MutexGuard<'_, Option<Login>> {
        self.login.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Access {
    fn new(options: &EtcdOptions) -> Result<Self, OpenError> {
        let servers = options.checked_endpoints()?.iter().map(Endpoint::connect_lazy).collect();
        Ok(Self { servers, credentials: options.credentials.clone() })
    }
}

impl Failure {
    fn of(status: Status) -> Self {
        let unconnected = causes(&status).any(<dyn Error>::is::<ConnectError>);
        // A server without a connection to the cluster's leader returns this before it processes the request: see
        // `headed`.
        let refused = status.message() == "etcdserver: no leader";
        Self { sent: !unconnected && !refused, status }
    }

    fn late(sent: bool) -> Self {
        Self { status: late(), sent }
    }

    /// Returns true if etcd refused the token, or its absence, before it processed the request. A token that etcd signs itself (JWT) is of
    /// no use after any change of etcd's users or roles. etcd's own client logs in again for the same errors
    /// (`client/v3`, `shouldRefreshToken`).
    fn is_of_login(&self) -> bool {
        match self.status.code() {
            Code::Unauthenticated => true,
            Code::InvalidArgument => TOKEN_REFUSALS.contains(&self.status.message()),
            _ => false,
        }
    }

    /// Returns true if a login failed because etcd's authentication is off.
    fn is_of_no_authentication(&self) -> bool {
        self.status.code() == Code::FailedPrecondition && self.status.message() == NOT_ENABLED
    }

    /// Returns true if another server or a later attempt may succeed.
    fn is_passing(&self) -> bool {
        // etcd returns Unavailable for a lost leader and for its own timeouts, and Unauthenticated for a wrong token.
        // Broken connections appear as Unknown or Internal.
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

    /// Returns the error and its causes as a text for people.
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

/// Adds the metadata to a request.
fn headed<T>(message: T, login: Option<&Login>) -> Request<T> {
    let mut request = Request::new(message);
    // A server without a connection to the cluster's leader must refuse the request instead of waiting.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(Login::Token(token)) = login {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn other_certificates_keep_the_token_and_other_credentials_do_not() {
        let with = |password: &str| EtcdOptions {
            credentials: Some(Credentials { name: "root".into(), password: password.into() }),
            ..EtcdOptions::default()
        };
        let client = Client::new(&with("a")).unwrap();
        let login = Some(Login::Token(MetadataValue::from_static("token")));
        client.lock_login().clone_from(&login);
        client.renew(&with("a")).unwrap();
        assert_eq!(*client.lock_login(), login);
        client.renew(&with("b")).unwrap();
        assert_eq!(*client.lock_login(), None);
    }
}
