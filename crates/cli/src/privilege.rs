//! The one capability that the proxy needs, where the process may have it but does not use it yet.
//!
//! A user other than root gets capabilities from the file of the binary (`capabilities(7)`). The image's file has
//! `CAP_NET_ADMIN` as permitted, not as effective: so it starts also where the capability is not allowed, for
//! `--help`, `--version` and `serve`, and the proxy's own check says what is missing. What is not the proxy has no
//! use for it and gives it up for good.
//!
//! Capabilities belong to threads, and threads that are started later inherit them: all of this is for the time
//! before the first one.

use rustix::io;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const WANTED: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Makes `CAP_NET_ADMIN` effective, if it is permitted.
pub(crate) fn raise() {
    let Ok(mut sets) = capabilities(None) else { return };
    if !sets.permitted.contains(WANTED) || sets.effective.contains(WANTED) {
        return;
    }
    sets.effective |= WANTED;
    // What is not allowed after all is found missing by the checks at the start of the proxy.
    if set_capabilities(None, sets).is_ok() {
        let _ = own_its_files();
    }
}

/// Of a process whose file has capabilities, `/proc/self` belongs to root: it could not count its own files. Making
/// it dumpable changes that, but then it could leave a core dump, which holds tokens.
fn own_its_files() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::Dumpable)
}

/// Gives `CAP_NET_ADMIN` up, whoever we are: for what talks to the network and needs no privilege.
pub(crate) fn give_up() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    if !(sets.permitted | sets.effective | sets.inheritable).contains(WANTED) {
        return Ok(());
    }
    sets.permitted.remove(WANTED);
    sets.effective.remove(WANTED);
    // With this one the kernel takes it from the ambient set, too.
    sets.inheritable.remove(WANTED);
    set_capabilities(None, sets)
}

/// Gives `CAP_NET_ADMIN` up unless it is effective: root, who sets up the networks of the demo, keeps it, and the
/// file of the binary gives it to nobody else.
pub(crate) fn give_up_unless_effective() -> io::Result<()> {
    if capabilities(None)?.effective.contains(WANTED) { Ok(()) } else { give_up() }
}
