//! Endpoint selection.
