//! Objects that other clients delete, although a manifest declares them. An object comes back at once, and later and
//! later if it is deleted each time: two that fight over an object shall not fill the store. Pure: no clock.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::ObjectId;

/// Delay after the second deletion. It doubles with each further one.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest delay. An object that stays for this long comes back at once again.
const LONGEST: Duration = Duration::from_secs(60);

/// The objects that were deleted a short time ago.
#[derive(Debug, Default)]
pub(super) struct Comebacks(HashMap<ObjectId, Comeback>);

#[derive(Debug)]
struct Comeback {
    delay: Duration,
    /// When the object may come back, or when it did.
    due: Instant,
    is_waiting: bool,
}

impl Comebacks {
    /// Records that a declared object was deleted. Returns true if it may come back at once.
    pub(super) fn deleted(&mut self, id: &ObjectId, now: Instant) -> bool {
        self.0.retain(|_, it| it.is_waiting || now < it.due + LONGEST);
        let Some(comeback) = self.0.get_mut(id) else {
            let comeback = Comeback { delay: Duration::ZERO, due: now, is_waiting: false };
            self.0.insert(id.clone(), comeback);
            return true;
        };
        if !comeback.is_waiting {
            comeback.delay = comeback.delay.saturating_mul(2).clamp(SHORTEST, LONGEST);
            comeback.due = now + comeback.delay;
            comeback.is_waiting = true;
        }
        false
    }

    /// Returns true if the object must not come back yet.
    pub(super) fn is_waiting(&self, id: &ObjectId) -> bool {
        self.0.get(id).is_some_and(|comeback| comeback.is_waiting)
    }

    /// Returns when an object may come back next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().filter(|it| it.is_waiting).map(|it| it.due).min()
    }

    /// Returns the objects that may come back now.
    pub(super) fn release(&mut self, now: Instant) -> Vec<ObjectId> {
        let due = self.0.iter_mut().filter(|(_, it)| it.is_waiting && it.due <= now);
        due.map(|(id, comeback)| {
            comeback.is_waiting = false;
            id.clone()
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use portolan_schema::Resource;

    use super::*;

    #[test]
    fn the_delay_doubles_until_an_object_stays() {
        let id = ObjectId { resource: Resource::Service, namespace: "default".into(), name: "a".into() };
        let (mut comebacks, mut now) = (Comebacks::default(), Instant::now());
        assert!(comebacks.deleted(&id, now), "at once");
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(!comebacks.deleted(&id, now) && comebacks.is_waiting(&id));
            let due = comebacks.due().unwrap();
            assert_eq!((due - now).as_secs(), seconds);
            // Another client has created and deleted it meanwhile.
            assert!(!comebacks.deleted(&id, now) && comebacks.due() == Some(due));
            assert!(comebacks.release(due - SHORTEST / 2).is_empty());
            now = due;
            assert!(comebacks.release(now).iter().eq([&id]));
            assert!(!comebacks.is_waiting(&id) && comebacks.due().is_none());
        }
        assert!(comebacks.deleted(&id, now + LONGEST), "it has stayed");
        assert_eq!(comebacks.0.len(), 1);
    }
}
