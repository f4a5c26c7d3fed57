//! What is in `deploy/` and `docs/` fits the program: manifests, chart, units, dashboard, alerts, links. The
//! permissions are compared with what the real binary asks an API server for, which needs root.
//!
//! Where their own tools are installed (kubectl from 1.21 on, helm, promtool, systemd-analyze), these have a look
//! too; Debian 12 has no helm, and no kubectl that is new enough.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "deploy/book.rs"]
mod book;
#[path = "deploy/chart.rs"]
mod chart;
#[path = "deploy/files.rs"]
mod files;
#[path = "deploy/image.rs"]
mod image;
#[path = "deploy/manifests.rs"]
mod manifests;
#[path = "deploy/monitoring.rs"]
mod monitoring;
#[path = "deploy/permissions.rs"]
mod permissions;
#[path = "deploy/recorder.rs"]
mod recorder;
#[path = "deploy/units.rs"]
mod units;
#[path = "deploy/unprivileged.rs"]
mod unprivileged;
