//! A small Kubernetes-style API server for Services, which needs no Kubernetes.
//!
//! Owns: the objects (Services, EndpointSlices, Nodes, ServiceCIDRs, Events and others), the rules for writing them,
//! the HTTP API for ordinary Kubernetes clients, TLS, authentication and authorization, the controllers, and the
//! folder of manifests that it can follow.
//!
//! In: HTTP requests, manifest files, calls of [`Api`] from the same process. Out: HTTP responses and watch streams,
//! which are sent straight from the stored bytes.
//!
//! Must not know: the proxy, rules, netlink. It never reads the host's network state.
//!
//! The path of a request: `server` (connections, TLS, limits) -> `security` (authentication, authorization) ->
//! [`http`](self) (routes, content types).
//!
//! The path of a write:
//! - [`http`](self) or `manifests` decode the object, within a memory budget ([`json::bounded`]).
//! - [`Api`] applies the patch, sets defaults, validates the object, and plans cluster IPs and node ports. Which
//!   address a Service gets is decided by `portolan-ipam`.
//! - The plan becomes one transaction: the object, and the objects that record its addresses and ports.
//! - [`Store`] applies the whole transaction or nothing. It gives each object its revision, keeps the history, and
//!   publishes the objects once they are durable.
//! - The watches of the resource send what is published.
//!
//! The path of a read: a snapshot of [`Store`] -> bytes on the wire.
//!
//! [`Sources`] and [`Checks`] hold the metrics and readiness checks that other crates add.

mod config;
mod security;
mod server;

pub use config::{Config, Transport};
pub use portolan_api::{
    AllocationScope, AllocatorMetrics, Api, ApiConfig, ApiError, Blocking, CauseReason, ConfigError,
    DeleteOptions, Effect, FieldError, FieldManager, NodePortRange, NodePortRangeError, Outcome, Part,
    Preconditions, Propagation, ServiceRanges, Target, WriteOptions, audit,
};
pub use portolan_controllers::{ControllersConfig, RepairCounters, RepairMetrics, repair_once};
pub use portolan_schema::{Info, Object, Resource, json, shape::FieldValidation};
pub use portolan_store::{
    Change, Changes, CommitError, Committed, Draft, Expired, History, MemoryStore, Pairs, Scope, Snapshot,
    Step, Store, StoredObject, Transaction,
};
pub use portolan_web::metrics::{Collect, MetricKind, Page, Sources};
pub use security::{ClientFiles, Kubeconfig, Pki, Role, SecurityError, TlsSettings, server_names};
pub use server::{
    Check, Checks, Error, Limits, ReleaseMemory, RunningServer, Server, check_address, serve, serve_with,
};
