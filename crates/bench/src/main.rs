//! The table that `make bench` prints.
fn main() {}
