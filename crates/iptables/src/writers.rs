//! The processes that write for a data plane. The kernel's notification of a change names the process that made it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use portolan_wire::nftables::{NftablesEvent, Rule};
use portolan_wire::{DecodeError, Frame};

use super::netlink::jump;
use super::present::is_watched;
use portolan_engine::drift::Watched;

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
}

impl Watched for Writers {
    /// The kernel gives the first netlink socket of a process the process id as port.
    fn is_writer(&self, port: u32) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&port)
    }

    fn is_drift(
        &self,
        table: &str,
        event: &NftablesEvent<'_>,
        frame: &Frame<'_>,
    ) -> Result<bool, DecodeError> {
        Ok(match event {
            NftablesEvent::DeleteTable(_) => ["mangle", "filter", "nat"].contains(&table),
            NftablesEvent::NewChain(chain) => is_watched(table, &chain.name),
            NftablesEvent::DeleteChain(chain) => is_watched(table, &chain.chain),
            NftablesEvent::NewRule(rule) => is_watched(table, &rule.chain),
            NftablesEvent::DeleteRule(rule) if is_watched(table, &rule.chain) => true,
            // The rule may have been a jump to a watched chain.
            NftablesEvent::DeleteRule(_) => {
                jump(Rule::decode(frame)?).is_some_and(|jump| is_watched(table, &jump.to))
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processes_are_kept() {
        let writers = Writers::default();
        let seen = writers.clone();
        (1..=100).for_each(|id| writers.add(id));
        let known: Vec<u32> = (1..=101).filter(|id| seen.is_writer(*id)).collect();
        assert_eq!(known, (37..=100).collect::<Vec<u32>>());
    }
}
