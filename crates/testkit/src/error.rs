//! The errors of building or using a world.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use portolan_model::Protocol;

/// An error of the test world itself, never the result of a probe.
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
        /// Name of the namespace that could not be created.
        namespace: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A namespace could not be created or entered, for a reason other than permissions.
    #[error("network namespace {namespace}: {action}: {source}")]
    Namespace {
        /// Name of the namespace.
        namespace: String,
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("{program} could not be started in {namespace}: {source}; is it installed?")]
    Start {
        /// The program.
        program: String,
        /// Name of the namespace.
        namespace: String,
        /// The kernel's error.
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
        /// Its standard error.
        stderr: String,
    },
    /// A kernel setting could not be written.
    #[error("sysctl {key} in {namespace}: {source}")]
    Sysctl {
        /// The setting, as a path under /proc/sys.
        key: String,
        /// Name of the namespace.
        namespace: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A responder could not be opened.
    #[error("cannot answer {protocol} at {address} in {namespace}: {source}")]
    Listen {
        /// The protocol.
        protocol: Protocol,
        /// The address of the responder.
        address: SocketAddr,
        /// Name of the namespace.
        namespace: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A socket or thread of the testkit itself failed.
    #[error("{action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A condition was not met before the deadline.
    #[error("{what} did not happen within {waited:?}")]
    Deadline {
        /// The condition.
        what: String,
        /// The time that was waited.
        waited: Duration,
    },
    /// The process under test ended before a condition was met.
    #[error("the process under test ended ({status}) before {what}; its standard error:\n{stderr}")]
    ProcessEnded {
        /// The condition.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// Background traffic did not start, so that its later losses would mean nothing.
    #[error("background traffic: {ready} of {wanted} {kind} got an answer within {waited:?}")]
    TrafficNotReady {
        /// What was started: streams, connections, flows or threads.
        kind: &'static str,
        /// Number of those that were answered.
        ready: usize,
        /// Number of those that were started.
        wanted: usize,
        /// The time that was waited.
        waited: Duration,
    },
    /// There is no usable kube-proxy.
    #[error("kube-proxy {path:?} {why}; name a release binary with KUBE_PROXY=/path/to/kube-proxy")]
    KubeProxy {
        /// The path that was given; empty if none was.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no usable kube-apiserver.
    #[error("kube-apiserver {path:?} {why}; name a binary with KUBE_APISERVER=/path/to/kube-apiserver")]
    KubeApiserver {
        /// The path that was given; empty if none was.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// More pods or addresses were requested than the address plan holds.
    #[error("{asked} {what} asked for, the address plan holds {limit}")]
    TooMany {
        /// What was requested.
        what: &'static str,
        /// The number that was requested.
        asked: usize,
        /// The maximum number.
        limit: usize,
    },
}

impl TestkitError {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { action, source: errno.into() }
    }
}
