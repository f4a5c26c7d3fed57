//! Stale UDP flows.
