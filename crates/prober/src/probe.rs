//! Probes: connections from this node to an address and port of an endpoint, never to a Service. The kernel chooses the
//! node's source address by its routes.
//!
//! A probe has its own connection and is over after the check's timeout. Errors of this node, such as too many open
//! files, are not the endpoint's and decide nothing.

mod connect;
mod get;
mod redirect;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::time::{Instant, timeout_at};

use crate::annotations::{HealthCheck, Probe};

/// `User-Agent` of requests.
pub const USER_AGENT: &str = concat!("portolan-probe/", env!("CARGO_PKG_VERSION"));

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The endpoint passed.
    Passed,
    /// The endpoint failed.
    Failed(Failure),
    /// This node could not probe.
    Unable(String),
}

/// Why an endpoint failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There was no complete answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The port is closed.
    #[error("connection refused")]
    Refused,
    /// No route leads to the endpoint, or a router reported that it is unreachable.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(String),
    /// The status does not pass.
    #[error("HTTP status {0}")]
    Status(u16),
    /// The answer is no HTTP, too long, or incomplete.
    #[error("no valid answer: {0}")]
    Answer(String),
    /// The endpoint failed at another port, to which it redirected the request.
    #[error("redirected to {to}: {failure}")]
    Redirected {
        /// Address and port.
        to: SocketAddr,
        /// What failed there.
        failure: Box<Self>,
    },
}

/// Names of the failures in metrics, in the order of [`Failure::index`].
pub const REASONS: [&str; 6] = ["timeout", "refused", "unreachable", "tls", "status", "answer"];

impl Failure {
    /// Returns the failure's place in [`REASONS`].
    pub fn index(&self) -> usize {
        match self {
            Self::TimedOut => 0,
            Self::Refused => 1,
            Self::Unreachable(_) => 2,
            Self::Tls(_) => 3,
            Self::Status(_) => 4,
            Self::Answer(_) => 5,
            Self::Redirected { failure, .. } => failure.index(),
        }
    }
}

/// A probe that is to begin.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The caller's number of the endpoint.
    pub endpoint: u64,
    /// Address and port.
    pub address: SocketAddr,
    /// How it is probed.
    pub check: Arc<HealthCheck>,
}

/// A probe that has begun.
pub enum Begun {
    /// It has ended.
    Ended(ProbeOutcome),
    /// It goes on.
    Waits(Pin<Box<dyn Future<Output = ProbeOutcome> + Send>>),
}

/// What probes endpoints.
pub trait Probes: Send + Sync + 'static {
    /// Returns the probe of an endpoint.
    fn probe(
        &self,
        address: SocketAddr,
        check: &Arc<HealthCheck>,
    ) -> impl Future<Output = ProbeOutcome> + Send + 'static;

    /// Begins probes together, without waiting for an answer. Returns them in their order. At most `files` files are
    /// open afterwards, those of probes that go on included.
    fn begin(&mut self, probes: &[Wanted], files: usize) -> Vec<Begun> {
        let _ = files;
        probes
            .iter()
            .map(|wanted| Begun::Waits(Box::pin(self.probe(wanted.address, &wanted.check))))
            .collect()
    }
}

/// Probes over TCP, HTTP and TLS.
#[derive(Debug)]
pub struct Client {
    tls: Arc<rustls::ClientConfig>,
    sockets: connect::Sockets,
}

impl Client {
    /// Creates a client that verifies no certificates, as the kubelet's probes: an endpoint is reached at its address,
    /// which its certificate seldom names.
    pub fn new() -> Result<Self, rustls::Error> {
        Ok(Self::with_tls(Arc::new(tls::unverified()?)))
    }

    /// Creates a client with another configuration of TLS, which may verify certificates.
    pub fn with_tls(tls: Arc<rustls::ClientConfig>) -> Self {
        Self { tls, sockets: connect::Sockets::default() }
    }
}

impl Probes for Client {
    fn probe(
        &self,
        address: SocketAddr,
        check: &Arc<HealthCheck>,
    ) -> impl Future<Output = ProbeOutcome> + Send + 'static {
        let (check, tls) = (Arc::clone(check), Arc::clone(&self.tls));
        async move {
            let deadline = deadline(Instant::now(), &check);
            match &check.probe {
                Probe::Tcp => until(deadline, connect::probe(address)).await,
                // The state of a request is large. A `tcp` probe need not have room for it.
                Probe::Http(request) => outcome(Box::pin(get::get(address, request, &tls, deadline)).await),
            }
        }
    }

    fn begin(&mut self, probes: &[Wanted], files: usize) -> Vec<Begun> {
        let now = Instant::now();
        let tcp = |wanted: &Wanted| match wanted.check.probe {
            Probe::Tcp => Some(self.sockets.begin(wanted.address)),
            Probe::Http(_) => None,
        };
        let begun: Vec<Option<Result<OwnedFd, ProbeOutcome>>> = probes.iter().map(tcp).collect();
        let mut answers = connect::answers(begun.iter().flatten().flatten()).into_iter();
        let mut waiting: usize = 0;
        let mut next = |(wanted, begun): (&Wanted, Option<Result<OwnedFd, ProbeOutcome>>)| {
            let address = wanted.address;
            let rest: Pin<Box<dyn Future<Output = ProbeOutcome> + Send>> = match begun {
                None => Box::pin(self.probe(address, &wanted.check)),
                Some(Err(outcome)) => return Begun::Ended(outcome),
                Some(Ok(socket)) => match answers.next().filter(|answer| !answer.is_empty()) {
                    Some(answer) => return Begun::Ended(self.sockets.end(socket, address, answer)),
                    None => Box::pin(until(deadline(now, &wanted.check), connect::wait(socket, address))),
                },
            };
            waiting = waiting.saturating_add(1);
            Begun::Waits(rest)
        };
        let begun = probes.iter().zip(begun).map(&mut next).collect();
        self.sockets.keep(files.saturating_sub(waiting));
        begun
    }
}

/// Returns when a probe is over.
fn deadline(begun: Instant, check: &HealthCheck) -> Instant {
    begun.checked_add(check.timing.timeout).unwrap_or(begun)
}

/// Ends a probe at its deadline.
async fn until(deadline: Instant, probe: impl Future<Output = Result<(), ProbeOutcome>>) -> ProbeOutcome {
    outcome(timeout_at(deadline, probe).await.unwrap_or(Err(ProbeOutcome::Failed(Failure::TimedOut))))
}

fn outcome(result: Result<(), ProbeOutcome>) -> ProbeOutcome {
    result.map_or_else(std::convert::identity, |()| ProbeOutcome::Passed)
}

/// Returns the outcome of a call of this node, such as socket(2) or connect(2), that failed. Errors of this node are not the
/// endpoint's, among them a connection that a route or the security policy of this node prohibits.
fn of_call(error: &io::Error) -> ProbeOutcome {
    match Errno::from_io_error(error) {
        Some(
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::NOBUFS
            | Errno::ADDRNOTAVAIL
            | Errno::ADDRINUSE
            | Errno::ACCESS
            | Errno::PERM
            | Errno::AFNOSUPPORT,
        ) => ProbeOutcome::Unable(error.to_string()),
        _ => of_answer(error),
    }
}

/// Returns the outcome of a connection that has begun and failed later, with the error of the socket (`SO_ERROR`). It
/// tells what the network answered: the kernel makes `EACCES` of an `ICMPv6` message that a firewall or a router has
/// prohibited the connection (`icmpv6_err_convert` in the kernel's `net/ipv6/icmp.c`).
fn of_answer(error: &io::Error) -> ProbeOutcome {
    ProbeOutcome::Failed(match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => Failure::Refused,
        Some(Errno::TIMEDOUT) => Failure::TimedOut,
        _ => Failure::Unreachable(error.to_string()),
    })
}
