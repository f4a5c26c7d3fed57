//! `portolan serve` and its files, through the binary: special files in the manifests folder, and a full disk.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "serve_files/backup.rs"]
mod backup;
#[path = "serve_files/folder.rs"]
mod folder;
#[path = "serve_files/full_disk.rs"]
mod full_disk;
#[path = "serve_files/site.rs"]
mod site;
