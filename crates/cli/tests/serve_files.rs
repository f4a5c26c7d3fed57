//! `portolan serve` and the files that it depends on, through the binary: what stands in the manifests folder, and a disk
//! that is full.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "serve_files/folder.rs"]
mod folder;
#[path = "serve_files/full_disk.rs"]
mod full_disk;
#[path = "serve_files/site.rs"]
mod site;
