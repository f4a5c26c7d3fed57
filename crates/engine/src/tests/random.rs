//! Random requests, faults and waits. The recorders hold the engine to the guarantees of the trait at every call.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
enum RandomEvent {
    Put(usize, u16),
    Remove(usize),
    Check(usize, Option<u16>),
    Configure(u8),
    Drift,
    Fail(usize),
    Lose,
    Replace(usize),
    Retire,
    Wait(u16),
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const PLACES: [&str; 3] = ["first", "second", "third"];

fn event() -> impl Strategy<Value = RandomEvent> {
    prop_oneof![
        6 => (0..NAMES.len(), 80_u16..83).prop_map(|(name, port)| RandomEvent::Put(name, port)),
        3 => (0..NAMES.len()).prop_map(RandomEvent::Remove),
        5 => (0..NAMES.len(), prop::option::of(1_u16..3)).prop_map(|(name, port)| RandomEvent::Check(name, port)),
        1 => (0_u8..3).prop_map(RandomEvent::Configure),
        1 => Just(RandomEvent::Drift),
        2 => (0_usize..4).prop_map(RandomEvent::Fail),
        1 => Just(RandomEvent::Lose),
        1 => (0..PLACES.len()).prop_map(RandomEvent::Replace),
        1 => Just(RandomEvent::Retire),
        6 => (0_u16..15_000).prop_map(RandomEvent::Wait),
    ]
}

/// A request to the engine, or a fault of the data plane that was made last.
fn happen(bench: &mut Bench, current: &mut Recorder, event: RandomEvent) {
    let handle = bench.handle.clone();
    let put = |work| handle.work(Family::Ipv4, work);
    match event {
        RandomEvent::Put(name, port) => {
            put(Work { changes: vec![change(NAMES[name], port)], ..Work::default() });
        }
        RandomEvent::Remove(name) => {
            put(Work { changes: vec![Change { new: None, ..change(NAMES[name], 80) }], ..Work::default() });
        }
        RandomEvent::Check(name, port) => {
            put(Work { health_checks: vec![check_port(NAMES[name], port)], ..Work::default() });
        }
        RandomEvent::Configure(masquerade_bit) => {
            handle.configure(Settings { masquerade_bit, ..Settings::plain(Family::Ipv4) });
        }
        RandomEvent::Drift => handle.compare(Family::Ipv4),
        RandomEvent::Fail(times) => current.fails(times),
        RandomEvent::Lose => current.is_found(Condition::Changed),
        RandomEvent::Replace(place) => {
            *current = Recorder::at(PLACES[place]).waiting(&[300 * MILLISECOND]).without_notifications();
            handle.replace(Family::Ipv4, current.boxed());
        }
        RandomEvent::Retire => handle.retire(Family::Ipv4, Recorder::at("left").boxed()),
        RandomEvent::Wait(wait) => bench.advance(u32::from(wait) * MILLISECOND),
    }
}

proptest! {
    #[test]
    fn every_call_keeps_the_guarantees_and_the_last_data_plane_gets_everything(
        before in prop::collection::vec(event(), 0..5), events in prop::collection::vec(event(), 0..60)
    ) {
        let mut current = Recorder::at(PLACES[0]);
        let mut bench = Bench::new(&current, timing());
        for event in before {
            happen(&mut bench, &mut current, event);
        }
        bench.handle.start();
        for event in events {
            happen(&mut bench, &mut current, event);
        }
        bench.advance(60 * SECOND);
        let snapshot = bench.snapshot();
        prop_assert!(snapshot.state.is_in_sync() && snapshot.pending == 0);
        prop_assert!(snapshot.successor.is_none() && snapshot.retired.is_empty());
        let wanted: Vec<String> = snapshot.table.iter().map(|(name, _)| name.to_string()).collect();
        prop_assert_eq!(current.known(), wanted);
        prop_assert!(!current.is_removed());
    }
}
