//! A small Kubernetes-style API server for Services without Kubernetes.
//!
//! Owns: the objects (Services, EndpointSlices, Nodes, ServiceCIDRs, Events), their versions and history, the HTTP
//! face that ordinary Kubernetes clients speak, TLS and who may do what, and the folder of manifests that it can follow.
//!
//! Flows in: HTTP requests, manifest files, calls on [`Api`] from the same process. Flows out: HTTP answers and
//! watch streams, taken straight from the stored bytes.
//!
//! Must not know: the proxy, rules, netlink. It never reads the host's network state.
//!
//! The path of a request: `server` (connections, TLS, limits) -> `security` (who, and whether that one may) ->
//! [`http`](self). The path of a write: [`http`](self) or manifests -> [`Api`] (decode, default, validate, plan)
//! -> [`Store`] (versions, history) -> every watch of that resource. The path of a read: [`Store`] snapshot -> bytes
//! on the wire. Who holds which address is in objects of the store; `portolan-ipam` decides who gets which.
//! [`Metrics`] and [`Checks`] hold what other rooms show and what makes them ready.

mod allocate;
mod api;
pub mod audit;
mod config;
mod controllers;
mod error;
mod events;
mod http;
mod kinds;
mod manifests;
mod metadata;
mod names;
mod security;
mod selector;
mod server;

use portolan_schema::{resource, shape as schema};
use portolan_store as store;

pub use allocate::{AllocationScope, AllocatorMetrics};
pub use api::{
    Api, Blocking, DeleteOptions, Effect, FieldManager, Outcome, Part, Preconditions, Propagation, Target,
    WriteOptions,
};
pub use config::{Config, ConfigError, ServiceRanges, Transport};
pub use controllers::repair::RepairMetrics;
pub use error::{ApiError, CauseReason, FieldError};
pub use portolan_ipam::{NodePortRange, node_port::NodePortRangeError};
pub use portolan_schema::{Info, Object, Resource, json, shape::FieldValidation};
pub use portolan_store::{
    Change, Changes, CommitError, Committed, Draft, Expired, History, MemoryStore, Pairs, Scope, Snapshot,
    Step, Store, StoredObject, Transaction,
};
pub use security::{ClientFiles, Kubeconfig, Pki, Role, SecurityError, TlsSettings, server_names};
pub use server::{
    Check, Checks, Collect, Error, Histogram, Limits, MetricKind, Metrics, Page, ReleaseMemory,
    RunningServer, Server, check_address, serve, serve_with,
};
