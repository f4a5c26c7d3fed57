//! The resources of the API server and the fields of their objects.
//!
//! Owns the table of resources and the table of every kind's fields. From these two tables follow the check of an
//! object's field types, patches, protobuf and the OpenAPI documents. Decoded JSON and bytes go in and out. This crate
//! must not know of I/O, clocks, stores or HTTP, nor which values of a field are valid.

pub mod json;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod resource;
pub mod shape;
pub mod view;

pub use json::Object;
pub use resource::{Info, Resource};
pub use shape::ShapeError;

/// Label of an EndpointSlice that names its Service (`k8s.io/api/discovery/v1`, `LabelServiceName`).
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Annotation of an EndpointSlice whose conditions `ready` and `serving` health checks have written.
pub const HEALTH_CHECKED: &str = "portolan.dev/health-checked";
