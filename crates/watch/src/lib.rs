//! API server in, events out.
