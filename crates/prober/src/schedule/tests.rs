use proptest::prelude::*;

use super::*;

const INTERVAL: Duration = Duration::from_secs(5);

/// Takes and finishes every probe until `end`. Returns endpoints with their times.
fn run(schedule: &mut Schedule, end: Duration) -> Vec<(u64, Duration)> {
    let mut probes = Vec::new();
    while let Some(at) = schedule.next_due().filter(|at| *at < end) {
        let probe = schedule.take(at).unwrap();
        assert_eq!(probe.1, at);
        schedule.finished(probe.0, at);
        probes.push(probe);
    }
    probes
}

#[test]
fn ten_thousand_probes_are_even_over_the_interval() {
    let mut schedule = Schedule::default();
    (0..10_000).for_each(|endpoint| schedule.add(endpoint, INTERVAL, Duration::ZERO, true));
    let probes = run(&mut schedule, INTERVAL * 3);
    let mut counts = [0_u32; 300];
    for (_, at) in probes {
        counts[usize::try_from(at.as_millis() / 50).unwrap()] += 1;
    }
    // 2,000 a second are 100 in 50 ms. The first probes are within a second.
    assert!(counts[100..].iter().all(|count| (90..=110).contains(count)), "{counts:?}");
    assert!(counts[..20].iter().all(|count| *count < 700), "{counts:?}");
}

#[test]
fn the_first_probe_of_a_new_endpoint_is_within_a_second() {
    let now = Duration::from_secs(1000);
    for endpoint in 0..1000 {
        let mut schedule = Schedule::default();
        schedule.add(endpoint, Duration::from_secs(3600), now, true);
        assert!(schedule.next_due().unwrap() < now + FIRST_WITHIN);
        schedule.add(endpoint, INTERVAL, now, false);
        assert!((now..=now + INTERVAL).contains(&schedule.next_due().unwrap()));
    }
}

#[test]
fn a_late_probe_leaves_out_the_turns_that_have_passed() {
    let mut schedule = Schedule::default();
    schedule.add(7, INTERVAL, Duration::ZERO, false);
    let first = schedule.next_due().unwrap();
    assert_eq!(schedule.take(first), Some((7, first)));
    assert_eq!(schedule.next_due(), None, "one probe is under way");
    schedule.finished(7, first + INTERVAL * 3 + Duration::from_millis(1));
    assert_eq!(schedule.next_due(), Some(first + INTERVAL * 4));
    schedule.finished(7, first + INTERVAL * 9);
    assert_eq!(schedule.next_due(), Some(first + INTERVAL * 4), "it is scheduled already");
}

#[test]
fn removed_endpoints_are_not_probed_and_take_no_memory() {
    let mut schedule = Schedule::default();
    for endpoint in 0..10_000 {
        schedule.add(endpoint, INTERVAL, Duration::ZERO, true);
        schedule.remove(endpoint);
    }
    assert!(schedule.heap.len() <= 64 && schedule.entries.is_empty());
    assert_eq!(schedule.next_due(), None);
    schedule.add(1, INTERVAL, Duration::ZERO, true);
    schedule.take(INTERVAL);
    schedule.remove(1);
    schedule.finished(1, INTERVAL);
    assert_eq!(schedule.next_due(), None, "its probe was under way");
}

#[test]
fn another_interval_replaces_the_turn() {
    let mut schedule = Schedule::default();
    schedule.add(3, Duration::from_secs(3600), Duration::ZERO, false);
    schedule.add(3, INTERVAL, Duration::ZERO, false);
    let probes = run(&mut schedule, INTERVAL * 4);
    assert_eq!(probes.len(), 4);
}

proptest! {
    /// In every interval each endpoint has exactly one turn, whatever the time at which it was added.
    #[test]
    fn one_probe_in_each_interval(
        endpoints in proptest::collection::hash_map(any::<u64>(), 0_u64..60_000, 1..20),
        milliseconds in 1000_u64..20_000,
    ) {
        let interval = Duration::from_millis(milliseconds);
        let mut schedule = Schedule::default();
        for (endpoint, at) in &endpoints {
            schedule.add(*endpoint, interval, Duration::from_millis(*at), false);
        }
        let begin = Duration::from_secs(60) + interval;
        run(&mut schedule, begin);
        let probes = run(&mut schedule, begin + interval);
        let mut probed: Vec<u64> = probes.iter().map(|(endpoint, _)| *endpoint).collect();
        let mut wanted: Vec<u64> = endpoints.keys().copied().collect();
        probed.sort_unstable();
        wanted.sort_unstable();
        prop_assert_eq!(probed, wanted);
    }
}
