//! Raises or gives up the capabilities of the proxy: `CAP_NET_ADMIN`, and for the userspace mode `CAP_NET_BIND_SERVICE`.
//!
//! Users other than root get capabilities from the file of the binary (`capabilities(7)`). In the image, the file has
//! them as permitted, not as effective. It therefore starts even if they are not allowed, for `--help`, `--version` and
//! `serve`, and the proxy's own check reports what is missing. Other subcommands do not need them and give them up
//! permanently.
//!
//! Capabilities belong to threads, and new threads inherit them. Call these functions before the first thread starts.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// The capability that every mode needs.
const WANTED: CapabilitySet = CapabilitySet::NET_ADMIN;
/// The capability to answer from UDP ports of system services in the userspace mode.
const LOW_PORTS: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;

/// True if [`raise`] has made `CAP_NET_BIND_SERVICE` effective.
static RAISED_LOW_PORTS: AtomicBool = AtomicBool::new(false);

/// Makes the capabilities of the proxy effective as far as they are permitted.
pub fn raise() {
    let Ok(mut sets) = capabilities(None) else { return };
    let permitted = sets.permitted & (WANTED | LOW_PORTS);
    if sets.effective.contains(permitted) {
        return;
    }
    RAISED_LOW_PORTS.store((permitted - sets.effective).contains(LOW_PORTS), Ordering::Relaxed);
    sets.effective |= permitted;
    // If this fails, the checks at the start of the proxy report the missing capability.
    if set_capabilities(None, sets).is_ok() {
        let _ = own_its_files();
    }
}

/// Returns true if this thread has `CAP_NET_ADMIN`, or if the kernel does not tell.
pub fn is_effective() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(WANTED))
}

/// Makes the process dumpable: otherwise `/proc/self` of a process whose file has capabilities belongs to root, and
/// the process cannot count its own files. Disables core dumps first, because a dump would contain tokens.
fn own_its_files() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::Dumpable)
}

/// Gives up `CAP_NET_ADMIN`, for root too. `CAP_NET_BIND_SERVICE` stays if it was effective from the start: a server may
/// listen at a port that needs it. For subcommands that talk to the network.
pub fn give_up() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    let mut unneeded = WANTED;
    let is_of_file = RAISED_LOW_PORTS.load(Ordering::Relaxed) || !sets.effective.contains(LOW_PORTS);
    unneeded.set(LOW_PORTS, is_of_file);
    if !(sets.permitted | sets.effective | sets.inheritable).intersects(unneeded) {
        return Ok(());
    }
    sets.permitted.remove(unneeded);
    sets.effective.remove(unneeded);
    // If a capability is not inheritable, the kernel removes it from the ambient set too.
    sets.inheritable.remove(unneeded);
    set_capabilities(None, sets)
}

/// Gives up the capabilities of the proxy unless `CAP_NET_ADMIN` is effective. Root creates the networks of the demo and
/// keeps it. For other users, the file of the binary only makes it permitted.
pub fn give_up_unless_effective() -> io::Result<()> {
    if capabilities(None)?.effective.contains(WANTED) { Ok(()) } else { give_up() }
}
