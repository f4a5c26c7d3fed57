//! Who writes for a data plane: the kernel's notifications of changes name the process that made them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Processes remembered: more than may have ended before what they did is read, and too few for their ids to come again.
const KEPT: usize = 64;

/// The processes that a data plane ran last. A clone sees those to come as well.
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

    /// Whether this is one of them. The kernel gives the first netlink socket of a process its id as port.
    pub(crate) fn has(&self, port: u32) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }
}

/// Those of the same data plane.
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
    fn the_last_ones_are_known() {
        let writers = Writers::default();
        let seen = writers.clone();
        (1..=100).for_each(|id| writers.add(id));
        let known: Vec<u32> = (1..=101).filter(|id| seen.has(*id)).collect();
        assert_eq!(known, (37..=100).collect::<Vec<u32>>());
        assert!(seen == writers && seen != Writers::default());
    }
}
