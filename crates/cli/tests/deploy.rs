//! The files of `deploy/` and `docs/` fit the program: manifests, chart, units, dashboard, alerts, links. The
//! permissions are compared with the requests of the real binary to an API server, which needs root.
//!
//! Their own tools check them too. `make test` provides promtool, systemd-analyze, kubectl and helm. A test that does
//! not find a provided tool fails.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

#[path = "deploy/book.rs"]
mod book;
#[path = "deploy/chart.rs"]
mod chart;
#[path = "deploy/cleaning.rs"]
mod cleaning;
#[path = "deploy/files.rs"]
mod files;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/kustomize.rs"]
mod kustomize;
#[path = "deploy/makefile.rs"]
mod makefile;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/monitoring.rs"]
mod monitoring;
#[path = "deploy/permissions.rs"]
mod permissions;
#[path = "deploy/recorder.rs"]
mod recorder;
#[path = "deploy/swapped.rs"]
mod swapped;
#[path = "deploy/units.rs"]
mod units;
#[path = "deploy/unprivileged.rs"]
mod unprivileged;
