//! A small Kubernetes-style API server for Services, which needs no Kubernetes: its process.
//!
//! Owns: listeners and connections with their limits, TLS and certificates, authentication and authorization, health
//! checks and metrics, start and stop, and the settings of all of it ([`Config`]).
//!
//! In: connections, files of certificates and tokens, settings. Out: answers, and the [`Api`] for callers in the same
//! process.
//!
//! Must not know: what is read and written, the proxy, rules, netlink. It never reads the host's network state.
//!
//! The layers below, each of which knows only those after it: `portolan-http` (requests and answers),
//! `portolan-addons` (the optional parts) and `portolan-controllers` (the server's own writers), `portolan-api` (the
//! meaning of reads and writes), `portolan-store`. The first does not know the next two, nor they it. What callers in the
//! same process need of them is exported here, too.
//!
//! The path of a request: `server` (connections, TLS, limits) -> `security` (authentication, authorization) ->
//! [`Handler`](portolan_http::Handler).
//!
//! [`Sources`] and [`Checks`] hold the metrics and readiness checks that other crates add.

mod security;
mod server;

pub use portolan_addons::health::health_checked;
pub use portolan_addons::{AddonError, AddonsConfig, Forward, HealthChecks, NamesConfig};
pub use portolan_api::{
    AllocationScope, AllocatorMetrics, Api, ApiConfig, ApiError, Blocking, CauseReason, ConfigError,
    DeleteOptions, Effect, FieldError, FieldManager, LoadBalancerRanges, NodePortRange, NodePortRangeError,
    Part, Preconditions, Propagation, ServiceRanges, Target, WriteOptions, WriteResult, audit,
};
pub use portolan_controllers::manifests;
pub use portolan_controllers::{ControllersConfig, OwnNode, RepairCounters, RepairMetrics, repair_once};
pub use portolan_schema::{Info, Object, Resource, SERVICE_NAME, json, shape::FieldValidation};
pub use portolan_store::{
    Change, Changes, CommitError, Committed, Draft, Expired, History, MemoryStore, Pairs, Scope, Snapshot,
    Step, Store, StoredObject, Transaction,
};
pub use portolan_web::metrics::{Collect, MetricKind, Page, Sources};
pub use security::{
    ClientFiles, Kubeconfig, Pki, ProcessToken, Role, SecurityError, TlsSettings, server_names,
};
pub use server::{
    Check, Checks, Config, Error, Limits, ReleaseMemory, RunningServer, Server, Transport, check_address,
    runtime, serve, serve_with,
};
