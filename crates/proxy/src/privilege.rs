//! Raises or gives up `CAP_NET_ADMIN`, the only capability that the proxy needs.
//!
//! Users other than root get capabilities from the file of the binary (`capabilities(7)`). In the image, the file has
//! `CAP_NET_ADMIN` as permitted, not as effective. It therefore starts even if the capability is not allowed, for
//! `--help`, `--version` and `serve`, and the proxy's own check reports what is missing. Other subcommands do not
//! need the capability and give it up permanently.
//!
//! Capabilities belong to threads, and new threads inherit them. Call these functions before the first thread starts.

use rustix::io;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const WANTED: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Makes `CAP_NET_ADMIN` effective if it is permitted.
pub fn raise() {
    let Ok(mut sets) = capabilities(None) else { return };
    if !sets.permitted.contains(WANTED) || sets.effective.contains(WANTED) {
        return;
    }
    sets.effective |= WANTED;
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

/// Gives up `CAP_NET_ADMIN`, for root too. For subcommands that talk to the network and need no privilege.
pub fn give_up() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    if !(sets.permitted | sets.effective | sets.inheritable).contains(WANTED) {
        return Ok(());
    }
    sets.permitted.remove(WANTED);
    sets.effective.remove(WANTED);
    // If the capability is not inheritable, the kernel removes it from the ambient set too.
    sets.inheritable.remove(WANTED);
    set_capabilities(None, sets)
}

/// Gives up `CAP_NET_ADMIN` unless it is effective. Root creates the networks of the demo and keeps it. For other
/// users, the file of the binary only makes it permitted.
pub fn give_up_unless_effective() -> io::Result<()> {
    if capabilities(None)?.effective.contains(WANTED) { Ok(()) } else { give_up() }
}
