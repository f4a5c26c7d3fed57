use super::*;

#[test]
fn records_are_small() {
    assert_eq!(size_of::<CompactEndpoint<Ipv4Addr>>(), 8);
    assert_eq!(size_of::<CompactEndpoint<Ipv6Addr>>(), 20);
    assert!(size_of::<SliceRecord>() <= 104, "{}", size_of::<SliceRecord>());
    assert!(size_of::<ServiceRecord>() <= 136, "{}", size_of::<ServiceRecord>());
}

#[test]
fn interned_values_are_shared_and_dropped() {
    let mut interner = Interner::<str>::default();
    let kept = interner.intern("kept");
    assert!(Arc::ptr_eq(&kept, &interner.intern("kept")));
    for n in 0..10_000 {
        interner.intern(&n.to_string());
    }
    assert!(interner.values.len() <= 64, "{}", interner.values.len());
    assert!(Arc::ptr_eq(&kept, &interner.intern("kept")));
}
