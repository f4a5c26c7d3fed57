//! The IPVS data plane: every frontend is a virtual server of the kernel, and its endpoints are real servers.
//!
//! Owns what virtual servers, addresses, ipsets and rules the forwarding table asks for (`desired` and below it, all
//! pure), how that is compared with the kernel (`difference`), and the sockets and programs that read and write it
//! ([`Ipvs`]). See `ARCHITECTURE.md` for the layout and the order of writes. It must not know where changes come from,
//! nor when a commit is due.

mod comparison;
mod dataplane;
mod desired;
mod difference;
mod draining;
mod error;
mod frontend;
mod kernel;
mod meter;
mod options;
mod probe;
mod refusal;
mod retire;
mod rules;
mod set;
mod settings;

pub use dataplane::Ipvs;
pub use error::Error;
pub use kernel::DEVICE;
pub(crate) use kernel::{Kernel, device};
pub use meter::Meter;
pub use options::Options;
pub use portolan_wire::ipvs::Timeouts;
pub use probe::available;
pub use retire::{has_virtual_servers, is_left};
pub(crate) use rules::{Jump, own_jumps, uses};
pub use settings::{KernelVersion, kernel_default, kernel_settings};
