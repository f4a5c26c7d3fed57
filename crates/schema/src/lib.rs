//! The kinds that the API server has, and what their objects look like.
//!
//! Owns the table of resources, the table of every kind's fields, and all that follows from these two: checking the
//! shape of an object, patching it by its shape, its other encodings, and the documents that describe it to clients.
//! Decoded JSON and bytes flow in and out. It must not know of I/O, clocks, stores, HTTP, or which values make sense.

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
