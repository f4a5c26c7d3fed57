//! The one capability that the proxy needs, where the process may have it but does not use it yet.
//!
//! A user other than root gets capabilities from the file of the binary (`capabilities(7)`). The image's file has
//! `CAP_NET_ADMIN` as permitted, not as effective: so it starts also where the capability is not allowed, for
//! `--help`, `--version` and `serve`, and the proxy's own check says what is missing.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Makes `CAP_NET_ADMIN` effective, if it is permitted. Threads that are started later have it, too: call it
/// before the first one.
pub(crate) fn raise_net_admin() {
    let Ok(mut sets) = capabilities(None) else { return };
    let wanted = CapabilitySet::NET_ADMIN;
    if sets.permitted.contains(wanted) && !sets.effective.contains(wanted) {
        sets.effective |= wanted;
        // What is not allowed after all is found missing by the checks at the start of the proxy.
        let _ = set_capabilities(None, sets);
        // Of a process whose file has capabilities, /proc/self belongs to root: it could not count its own files.
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
}
