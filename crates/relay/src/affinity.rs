//! Session affinity: which client is bound to which backend (`sessionAffinity: ClientIP`).

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The maximum number of bindings of one Service port. The one that was not used for about the longest time is dropped.
pub const BINDINGS_MAX: usize = 65_536;

/// Bindings of clients to backends. Each call checks only a few old bindings, so that time and memory are bounded.
#[derive(Debug, Default)]
pub struct Affinity {
    bindings: HashMap<IpAddr, Binding>,
    /// Each bound client once, with the time of a use, maybe not the latest.
    queue: VecDeque<(IpAddr, Instant)>,
}

#[derive(Debug, Clone, Copy)]
struct Binding {
    backend: SocketAddr,
    used: Instant,
}

impl Affinity {
    /// Returns the backend that a client is bound to, and renews the binding.
    pub fn get(&mut self, client: IpAddr, timeout: Duration, now: Instant) -> Option<SocketAddr> {
        let binding = self.bindings.get_mut(&client)?;
        if now.saturating_duration_since(binding.used) >= timeout {
            return None;
        }
        binding.used = now;
        Some(binding.backend)
    }

    /// Binds a client to a backend, in place of its former one.
    pub fn bind(&mut self, client: IpAddr, backend: SocketAddr, timeout: Duration, now: Instant) {
        if self.bindings.insert(client, Binding { backend, used: now }).is_none() {
            self.queue.push_back((client, now));
        }
        for _ in 0..2 {
            self.settle_oldest(timeout, now);
        }
        while self.bindings.len() > BINDINGS_MAX {
            self.retire();
        }
    }

    /// Returns the number of bindings.
    pub fn len(&self) -> usize {
        self.bindings.len()
    }

    /// Returns true if there are no bindings.
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// Drops the binding at the head of the queue if it has timed out. Moves it to the end if it was used since it was
    /// queued.
    fn settle_oldest(&mut self, timeout: Duration, now: Instant) {
        let Some(&(client, since)) = self.queue.front() else { return };
        let used = self.bindings.get(&client).map_or(since, |binding| binding.used);
        if now.saturating_duration_since(used) >= timeout {
            self.queue.pop_front();
            self.bindings.remove(&client);
        } else if used > since {
            self.queue.rotate_left(1);
            self.stamp_newest(used);
        }
    }

    /// Drops the first binding that was not used since it was queued. Those before it move to the end, with the time of
    /// their last use.
    fn retire(&mut self) {
        while let Some(&(client, since)) = self.queue.front() {
            let used = self.bindings.get(&client).map_or(since, |binding| binding.used);
            if used <= since {
                self.queue.pop_front();
                self.bindings.remove(&client);
                return;
            }
            self.queue.rotate_left(1);
            self.stamp_newest(used);
        }
    }

    fn stamp_newest(&mut self, used: Instant) {
        if let Some((_, since)) = self.queue.back_mut() {
            *since = used;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn client(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    fn backend(n: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, n).into()
    }

    #[test]
    fn a_binding_lasts_from_its_last_use() {
        let (mut affinity, start) = (Affinity::default(), Instant::now());
        affinity.bind(client(1), backend(1), TIMEOUT, start);
        let nearly = TIMEOUT.saturating_sub(Duration::from_millis(1));
        assert_eq!(affinity.get(client(1), TIMEOUT, start + nearly), Some(backend(1)));
        assert_eq!(affinity.get(client(1), TIMEOUT, start + nearly * 2), Some(backend(1)));
        assert_eq!(affinity.get(client(1), TIMEOUT, start + nearly * 2 + TIMEOUT), None);
        assert_eq!(affinity.get(client(2), TIMEOUT, start), None);
    }

    #[test]
    fn a_client_can_be_bound_to_another_backend() {
        let (mut affinity, now) = (Affinity::default(), Instant::now());
        affinity.bind(client(1), backend(1), TIMEOUT, now);
        affinity.bind(client(1), backend(2), TIMEOUT, now);
        assert_eq!(affinity.get(client(1), TIMEOUT, now), Some(backend(2)));
        assert_eq!(affinity.len(), 1);
    }

    #[test]
    fn new_bindings_remove_timed_out_ones() {
        let (mut affinity, start) = (Affinity::default(), Instant::now());
        (0..1000).for_each(|n| affinity.bind(client(n), backend(1), TIMEOUT, start));
        let later = start + TIMEOUT;
        (1000..2000).for_each(|n| affinity.bind(client(n), backend(1), TIMEOUT, later));
        assert_eq!(affinity.len(), 1000);
        assert_eq!(affinity.queue.len(), 1000);
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
    fn bindings_are_bounded_and_used_ones_stay() {
        let (mut affinity, start) = (Affinity::default(), Instant::now());
        let mut now = start;
        let many = BINDINGS_MAX as u32 * 2;
        for n in 0..many {
            now += Duration::from_nanos(10);
            affinity.bind(client(n), backend(1), TIMEOUT, now);
            if n % 1000 == 0 {
                assert_eq!(affinity.get(client(0), TIMEOUT, now), Some(backend(1)), "{n}");
            }
        }
        assert_eq!(affinity.len(), BINDINGS_MAX);
        assert_eq!(affinity.queue.len(), BINDINGS_MAX);
        assert_eq!(affinity.get(client(many - 1), TIMEOUT, now), Some(backend(1)));
    }
}
