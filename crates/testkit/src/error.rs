//! What can go wrong while a world is built or used.

use std::io;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::time::Duration;

use portolan_model::Protocol;

/// A failure of the test world itself, never the outcome of a probe.
#[derive(Debug, thiserror::Error)]
pub enum TestkitError {
    /// The kernel refused a new network namespace.
    #[error(
        "no permission to create the network namespace {namespace}: {source}. Run as root, or as a plain \
         user under `unshare -Urn`; where that is refused too, allow user namespaces \
         (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone or \
         kernel.apparmor_restrict_unprivileged_userns)"
    )]
    NotPermitted {
        /// The name of the namespace that was to be made.
        namespace: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A namespace could not be created or entered for another reason than permission.
    #[error("network namespace {namespace}: {action}: {source}")]
    Namespace {
        /// Name of the namespace.
        namespace: String,
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("{program} could not be started in {namespace}: {source}; is it installed?")]
    Start {
        /// The program.
        program: String,
        /// Name of the namespace.
        namespace: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("{program} failed in {namespace} ({status}): {stderr}")]
    Failed {
        /// The program and its arguments.
        program: String,
        /// Name of the namespace.
        namespace: String,
        /// Its exit status.
        status: ExitStatus,
        /// What it wrote to its standard error.
        stderr: String,
    },
    /// A kernel setting could not be written.
    #[error("sysctl {key} in {namespace}: {source}")]
    Sysctl {
        /// The setting, as a path under /proc/sys.
        key: String,
        /// Name of the namespace.
        namespace: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A responder could not be opened.
    #[error("cannot answer {protocol} at {address} in {namespace}: {source}")]
    Listen {
        /// The protocol.
        protocol: Protocol,
        /// The address that was to answer.
        address: SocketAddr,
        /// Name of the namespace.
        namespace: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Sockets or threads of the kit itself failed.
    #[error("{action}: {source}")]
    System {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A condition did not come true in time.
    #[error("{what} did not happen within {waited:?}")]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
    },
    /// The process under test ended while something was expected of it.
    #[error("the process under test ended ({status}) before {what}; its standard error:\n{stderr}")]
    ProcessEnded {
        /// What was waited for.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// What it wrote to its standard error.
        stderr: String,
    },
    /// Background traffic did not start, so that nothing could be said about it later.
    #[error("background traffic: {ready} of {wanted} {kind} got an answer within {waited:?}")]
    TrafficNotReady {
        /// Streams or flows.
        kind: &'static str,
        /// How many were answered.
        ready: usize,
        /// How many were asked for.
        wanted: usize,
        /// How long.
        waited: Duration,
    },
    /// More pods or addresses were asked for than the address plan holds.
    #[error("{asked} {what} asked for, the address plan holds {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        asked: usize,
        /// The most there can be.
        limit: usize,
    },
}

impl TestkitError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { action, source: errno.into() }
    }
}
