//! The data planes: forwarding table in, kernel state out.
