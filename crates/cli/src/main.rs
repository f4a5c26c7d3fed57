//! The `portolan` binary.
fn main() {}
