//! The processes that write for a data plane. The kernel's notification of a change names the process that made it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of process ids that are kept: enough for every process whose notifications have not been read, and too few for
/// the kernel to have given a kept id to another process.
const KEPT: usize = 64;

/// The processes that a data plane has run last. Clones share the list, so a clone sees later processes, too.
#[derive(Debug, Clone, Default)]
pub struct Writers {
    ids: Arc<Mutex<VecDeque<u32>>>,
}

impl Writers {
    pub(super) fn add(&self, id: u32) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.truncate(KEPT - 1);
        ids.push_front(id);
    }

    /// Returns true if the process with this netlink port is in the list. The kernel gives the first netlink socket
    /// of a process the process id as port.
    pub(crate) fn has(&self, port: u32) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}

/// Equal if both belong to the same data plane.
impl PartialEq for Writers {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ids, &other.ids)
    }
}

impl Eq for Writers {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processes_are_kept() {
        let writers = Writers::default();
        let seen = writers.clone();
        (1..=100).for_each(|id| writers.add(id));
        let known: Vec<u32> = (1..=101).filter(|id| seen.has(*id)).collect();
        assert_eq!(known, (37..=100).collect::<Vec<u32>>());
        assert!(seen == writers && seen != Writers::default());
    }
}
