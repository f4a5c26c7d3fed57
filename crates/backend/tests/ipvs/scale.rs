//! What a change and a first load cost as the cluster grows. Bars are ratios: they hold on any machine.

use std::time::{Duration, Instant};

use portolan_backend::Dataplane as _;
use portolan_model::{Change, Family};

use super::example::{cluster_ip, put};
use super::support::{in_namespace, open};

const ENDPOINTS: usize = 10;
const CHANGES: usize = 60;

fn service(number: usize, endpoints: usize) -> Change {
    let (high, low) = (number / 250, number % 250 + 1);
    let places: Vec<String> =
        (1..=endpoints).map(|endpoint| format!("10.{}.{low}.{endpoint}:8080", 100 + high)).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let forwarding = cluster_ip(&format!("172.30.{high}.{low}"), 80, &places);
    put(&format!("service-{number}"), "", forwarding)
}

/// How long a first load takes, and the quickest of many changes after it: others keep the machine busy, too.
fn measured(services: usize) -> Option<(Duration, Duration)> {
    in_namespace(|| {
        let mut ipvs = open(Family::Ipv4);
        let all: Vec<Change> = (0..services).map(|number| service(number, ENDPOINTS)).collect();
        ipvs.apply(&all).unwrap();
        let start = Instant::now();
        let commit = ipvs.resync().unwrap();
        let load = start.elapsed();
        assert!(commit.elements > services * (ENDPOINTS + 1));
        let change = (0..CHANGES)
            .map(|index| {
                let number = index * 7 % services;
                let change = service(number, ENDPOINTS + 1 - index % 2);
                let start = Instant::now();
                let commit = ipvs.apply(std::slice::from_ref(&change)).unwrap();
                assert!(commit.elements <= 4, "{commit:?}");
                start.elapsed()
            })
            .min();
        (load, change.unwrap())
    })
}

#[test]
fn a_change_costs_what_it_changes_and_a_load_what_it_loads() {
    let Some((small_load, small)) = measured(100) else { return };
    let (middle_load, middle) = measured(1000).unwrap();
    let (large_load, large) = measured(5000).unwrap();
    eprintln!(
        "change: {small:?}, {middle:?}, {large:?}; load: {small_load:?}, {middle_load:?}, {large_load:?}"
    );
    assert!(large < small * 3 / 2, "a change at 100 Services: {small:?}, at 5000: {large:?}");
    // Five times as many, with room for the accidents of an emulated machine; the square would be 25 times.
    assert!(
        large_load < middle_load * 12,
        "a load of 1000 Services: {middle_load:?}, of 5000: {large_load:?}"
    );
}
