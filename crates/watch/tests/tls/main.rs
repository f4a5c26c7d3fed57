//! The client against a TLS server on loopback whose certificates, tokens and answers change.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod certificates;
mod home;
mod plugin;
mod proxies;
mod rotation;
mod server;
mod trouble;
