//! x
pub mod bitmap; pub mod check; pub mod family; pub mod node_port; pub mod pool; pub mod pools; pub mod random; pub mod range;
