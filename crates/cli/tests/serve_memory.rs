//! The memory of `portolan serve`, as the kernel counts it for the real process: for one request, for a connection
//! whose client has not shown credentials, and for the documents about the API.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "a test stops at the first surprise"
)]

#[path = "serve_memory/connections.rs"]
mod connections;
#[path = "serve_memory/documents.rs"]
mod documents;
#[path = "serve_memory/requests.rs"]
mod requests;
#[path = "serve_files/site.rs"]
#[allow(dead_code, reason = "each test program uses its part")]
mod site;
