//! The server behind TLS, as clients see it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod client;
mod http2;
mod kube_client;
mod limits;
mod plain;
mod roles;
mod rotation;
mod stop;
