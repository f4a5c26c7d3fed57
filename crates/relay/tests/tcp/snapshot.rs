//! The relay's table, as its handle returns it.

use portolan_model::{Family, Protocol};
use portolan_relay::RelayOptions;

use super::support::{Bed, NOWHERE, PATIENCE};

#[test]
fn a_snapshot_has_every_change_that_was_sent_before() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    assert_eq!(bed.relay.snapshot(Family::Ipv4), Some(Vec::new()));
    for number in 1..50 {
        let backends: Vec<_> = (1..=number).map(|port| (NOWHERE.ip(), port).into()).collect();
        bed.service(&backends, Some(u32::from(number)));
        let entries = bed.relay.snapshot(Family::Ipv4).unwrap();
        assert_eq!(entries.len(), 1);
        let (name, forwarding) = &entries[0].entry;
        assert_eq!((&*name.service, forwarding.cluster.len()), ("web", usize::from(number)));
        assert_eq!(forwarding.affinity, Some(u32::from(number)));
    }
    assert_eq!(bed.relay.snapshot(Family::Ipv6), Some(Vec::new()), "of the other family");
    bed.other_service(&[NOWHERE]);
    assert_eq!(bed.relay.snapshot(Family::Ipv4).unwrap().len(), 2);
}

#[test]
fn a_relay_that_has_ended_has_no_snapshot() {
    let bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let asking = {
        let relay = bed.relay.clone();
        std::thread::spawn(move || while relay.snapshot(Family::Ipv4).is_some() {})
    };
    bed.relay.drain(PATIENCE);
    assert!(bed.relay.is_over());
    assert_eq!(bed.relay.snapshot(Family::Ipv4), None);
    asking.join().unwrap();
}
