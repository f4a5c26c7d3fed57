use std::collections::HashSet;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

fn backend(n: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, n).into()
}

fn of(backends: impl IntoIterator<Item = u16>) -> Rotation {
    let backends: Vec<_> = backends.into_iter().map(backend).collect();
    let mut rotation = Rotation::default();
    rotation.update(backends.into_iter());
    rotation
}

fn turns(rotation: &mut Rotation, health: &mut Health, now: Instant, count: usize) -> Vec<u16> {
    (0..count).filter_map(|_| rotation.choose(health, now, |_| false)).map(|b| b.port()).collect()
}

#[test]
fn every_backend_has_a_turn_in_a_fixed_order() {
    let (mut rotation, mut health, now) = (of([1, 2, 3]), Health::default(), Instant::now());
    assert_eq!(turns(&mut rotation, &mut health, now, 7), [1, 2, 3, 1, 2, 3, 1]);
}

#[test]
fn a_new_backend_has_its_turn_after_the_others() {
    let (mut rotation, mut health, now) = (of([1, 3, 4]), Health::default(), Instant::now());
    assert_eq!(turns(&mut rotation, &mut health, now, 1), [1]);
    rotation.update([1, 2, 3, 4].map(backend).into_iter());
    assert_eq!(turns(&mut rotation, &mut health, now, 5), [3, 4, 1, 2, 3]);
}

#[test]
fn a_removed_backend_takes_no_turn_from_others() {
    let (mut rotation, mut health, now) = (of([1, 2, 3, 4]), Health::default(), Instant::now());
    assert_eq!(turns(&mut rotation, &mut health, now, 2), [1, 2]);
    rotation.update([2, 3, 4].map(backend).into_iter());
    assert_eq!(turns(&mut rotation, &mut health, now, 3), [3, 4, 2]);
    rotation.update(std::iter::empty());
    assert_eq!(rotation.choose(&mut health, now, |_| false), None);
}

#[test]
fn a_failing_backend_is_set_aside_and_tried_by_one_at_a_time() {
    let (mut rotation, mut health, now) = (of([1, 2]), Health::default(), Instant::now());
    health.failed(backend(1), now, now);
    assert_eq!(turns(&mut rotation, &mut health, now, 3), [2, 2, 2]);
    let later = now + FIRST_PAUSE;
    assert_eq!(
        turns(&mut rotation, &mut health, later, 3),
        [1, 2, 2],
        "one try until it is known how that ends"
    );
    health.succeeded(backend(1));
    assert_eq!(turns(&mut rotation, &mut health, later, 3), [1, 2, 1]);
}

#[test]
fn pauses_grow_to_a_minute() {
    let (mut health, mut now) = (Health::default(), Instant::now());
    for failures in 1..40_u32 {
        health.failed(backend(1), now, now);
        now = check_pause(&health, now, failures);
    }
}

/// Checks that backend 1 is set aside for as long as after so many failures in a row. Returns the end of the pause.
fn check_pause(health: &Health, now: Instant, failures: u32) -> Instant {
    let pause = FIRST_PAUSE.saturating_mul(1 << (failures - 1).min(6)).min(LONGEST_PAUSE);
    let nearly = pause.saturating_sub(Duration::from_millis(1));
    assert!(health.is_aside(backend(1), now + nearly), "{failures}");
    assert!(!health.is_aside(backend(1), now + pause), "{failures}");
    now + pause
}

#[test]
fn failures_of_attempts_at_the_same_time_count_as_one() {
    let (mut health, start) = (Health::default(), Instant::now());
    let ms = Duration::from_millis;
    // All are under way before the first one fails.
    for number in 0..7 {
        health.failed(backend(1), start + ms(number), start + ms(250 + number));
    }
    let end = check_pause(&health, start + ms(250), 1);
    // One that no other backend was left for, one from before the pause that ends after it, and the trial.
    health.failed(backend(1), end.checked_sub(ms(500)).unwrap(), end.checked_sub(ms(400)).unwrap());
    health.failed(backend(1), start, end + ms(1));
    assert!(!health.is_aside(backend(1), end + ms(1)));
    health.failed(backend(1), end + ms(2), end + ms(3));
    check_pause(&health, end + ms(3), 2);
}

#[test]
fn a_quiet_connection_ends_only_the_back_off_from_before_it() {
    let (mut health, start) = (Health::default(), Instant::now());
    health.failed(backend(1), start, start);
    let before = start.checked_sub(Duration::from_millis(1)).unwrap();
    assert!(!health.lasted(backend(1), before));
    assert_eq!(health.failing(), 1, "the backend may have died since then");
    health.lasted(backend(2), start);
    assert_eq!(health.failing(), 1);
    health.lasted(backend(1), start + FIRST_PAUSE);
    assert_eq!(health.failing(), 0);
}

#[test]
fn the_next_attempt_follows_one_whose_client_left() {
    let (mut health, start) = (Health::default(), Instant::now());
    health.failed(backend(1), start, start);
    let trial = start + FIRST_PAUSE;
    health.chosen(backend(1), trial);
    assert!(health.is_aside(backend(1), trial), "one tries it");
    health.undecided(backend(1), start, trial);
    assert!(health.is_aside(backend(1), trial), "that one began before the failure");
    health.undecided(backend(1), trial, trial);
    assert!(!health.is_aside(backend(1), trial));
    assert_eq!(health.failing(), 1);
}

#[test]
fn an_old_attempt_that_fails_after_a_success_counts() {
    let (mut health, start) = (Health::default(), Instant::now());
    health.failed(backend(1), start, start);
    health.succeeded(backend(1));
    health.failed(backend(1), start, start + FIRST_PAUSE);
    check_pause(&health, start + FIRST_PAUSE, 1);
}

#[test]
fn if_all_are_set_aside_the_one_with_the_earliest_end_is_chosen() {
    let (mut rotation, mut health, now) = (of([1, 2]), Health::default(), Instant::now());
    health.failed(backend(1), now, now);
    health.failed(backend(2), now + FIRST_PAUSE / 2, now + FIRST_PAUSE / 2);
    let now = now + FIRST_PAUSE;
    health.failed(backend(1), now, now);
    assert_eq!(rotation.choose(&mut health, now, |_| false), Some(backend(2)));
    assert_eq!(rotation.choose(&mut health, now, |b| b == backend(2)), Some(backend(1)));
    assert_eq!(rotation.choose(&mut health, now, |_| true), None);
}

proptest! {
    /// Between two turns of a backend that stays, every other backend that stays has exactly one turn, whatever changes.
    #[test]
    fn turns_are_fair_to_backends_that_stay(
        steps in proptest::collection::vec(proptest::option::of(proptest::collection::hash_set(10..20_u16, 0..6)), 1..60),
    ) {
        const STAY: [u16; 3] = [1, 2, 3];
        let (mut rotation, mut health, now) = (of(STAY), Health::default(), Instant::now());
        let mut seen = Vec::new();
        for step in steps {
            match step {
                Some(others) => {
                    let mut all: Vec<u16> = STAY.into_iter().chain(others).collect();
                    all.sort_unstable();
                    rotation.update(all.into_iter().map(backend).collect::<Vec<_>>().into_iter());
                }
                None => seen.extend(rotation.choose(&mut health, now, |_| false)),
            }
        }
        let stay: Vec<u16> = seen.iter().map(SocketAddr::port).filter(|port| STAY.contains(port)).collect();
        for (at, port) in stay.iter().enumerate() {
            prop_assert_eq!(*port, STAY[at % 3]);
        }
    }

    #[test]
    fn an_update_leaves_exactly_the_backends(
        first in proptest::collection::hash_set(0..30_u16, 0..12),
        second in proptest::collection::hash_set(0..30_u16, 0..12),
        turns_before in 0..20_usize,
    ) {
        let (mut rotation, mut health, now) = (of(first), Health::default(), Instant::now());
        turns(&mut rotation, &mut health, now, turns_before);
        rotation.update(second.iter().copied().map(backend).collect::<Vec<_>>().into_iter());
        let round: HashSet<u16> = turns(&mut rotation, &mut health, now, second.len()).into_iter().collect();
        prop_assert_eq!(round, second);
    }
}
