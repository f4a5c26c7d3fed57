//! The counters of all relays of this process. Each reload with other options of the relay starts another one, so those of
//! relays that are over are kept as sums.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan_node::metrics::RelayMeasures;
use portolan_relay::Counters;

/// The counters of all relays of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct RelayCounters {
    all: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    /// The newest relay, and those before it that may still count. Empty if there never was one.
    relays: Vec<Arc<Counters>>,
    /// The sums over all others, and how the newest relay gets its packets.
    ended: RelayMeasures,
}

impl RelayCounters {
    pub(super) fn add(&self, counters: Arc<Counters>, is_redirected: bool) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let All { relays, ended } = &mut *all;
        // The counters of a relay that is over belong to nothing else: its thread and its handles are gone.
        relays.retain_mut(|relay| match Arc::get_mut(relay) {
            Some(over) => {
                *ended = plus(*ended, over);
                false
            }
            None => true,
        });
        ended.is_redirected = is_redirected;
        relays.push(counters);
    }

    /// Returns the sums over all relays, or `None` if there never was one.
    pub(crate) fn read(&self) -> Option<RelayMeasures> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let sums = || all.relays.iter().fold(all.ended, |sums, relay| plus(sums, relay));
        (!all.relays.is_empty()).then(sums)
    }
}

fn plus(sums: RelayMeasures, relay: &Counters) -> RelayMeasures {
    let plus = |sum: u64, counter: &AtomicU64| sum.wrapping_add(counter.load(Ordering::Relaxed));
    RelayMeasures {
        open: plus(sums.open, &relay.open),
        accepted: plus(sums.accepted, &relay.accepted),
        no_room: plus(sums.no_room, &relay.no_room),
        unknown: plus(sums.unknown, &relay.unknown),
        attempts_failed: plus(sums.attempts_failed, &relay.attempts_failed),
        all_failed: plus(sums.all_failed, &relay.all_failed),
        expired: plus(sums.expired, &relay.expired),
        flows: plus(sums.flows, &relay.flows),
        flows_open: plus(sums.flows_open, &relay.flows_open),
        flows_replaced: plus(sums.flows_replaced, &relay.flows_replaced),
        datagrams_lost: plus(sums.datagrams_lost, &relay.datagrams_lost),
        bytes_to_endpoints: plus(sums.bytes_to_endpoints, &relay.bytes_to_backends),
        bytes_to_clients: plus(sums.bytes_to_clients, &relay.bytes_to_clients),
        failing: plus(sums.failing, &relay.failing),
        is_redirected: sums.is_redirected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_that_are_over_are_kept_as_sums() {
        let counters = RelayCounters::default();
        assert_eq!(counters.read(), None);
        let drains = Arc::<Counters>::default();
        counters.add(drains.clone(), false);
        for number in 1..=1000 {
            let relay = Arc::<Counters>::default();
            counters.add(relay.clone(), number % 2 == 0);
            relay.accepted.fetch_add(3, Ordering::Relaxed);
            relay.bytes_to_backends.fetch_add(number, Ordering::Relaxed);
            drains.accepted.fetch_add(1, Ordering::Relaxed);
        }
        let sums = counters.read().unwrap();
        assert_eq!((sums.accepted, sums.bytes_to_endpoints), (4000, 500_500), "none is lost");
        assert!(sums.is_redirected, "as the newest one");
        assert_eq!(counters.all.lock().unwrap().relays.len(), 2, "the one that drains and the newest");
    }
}
