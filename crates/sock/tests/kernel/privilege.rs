//! Sockets without privilege, and namespaces.

use std::fs::File;

use portolan_sock::namespace::{enter_network_namespace, in_new_network_namespace};
use portolan_sock::{CommitError, Protocol, Socket};
use portolan_wire::nftables::{Chain, Family, IfExists, NftTable, Transaction};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::{TABLE, in_namespace, new_table};

const FAMILY: Family = Family::IPV4;

/// Removes `CAP_NET_ADMIN` from this thread only.
fn drop_privilege() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, sets).unwrap();
}

fn chains(count: u32) -> portolan_wire::Batch {
    let mut transaction = Transaction::begin(1, None);
    new_table(&mut transaction, FAMILY);
    for index in 0..count {
        transaction.new_chain(&Chain::regular(FAMILY, TABLE, format!("chain-{index}")), IfExists::Fail);
    }
    transaction.finish().unwrap()
}

#[test]
fn without_privilege_a_transaction_is_refused_as_such() {
    in_namespace(|socket| {
        drop_privilege();
        let error = socket.commit(&chains(1)).unwrap_err();
        assert!(matches!(error, CommitError::NotPermitted), "{error}");
    });
}

#[test]
fn without_privilege_the_send_buffer_is_limited_and_a_long_transaction_is_not_sent() {
    // Older kernels show the limit in the initial network namespace only. It applies in all namespaces.
    let wmem_max = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
    in_namespace(|_| {
        drop_privilege();
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        let limit = 2 * wmem_max.trim().parse::<usize>().unwrap();
        let batch = chains(u32::try_from(limit / 32).unwrap());
        let CommitError::TooLong { length, capacity } = socket.commit(&batch).unwrap_err() else { panic!() };
        assert_eq!(length, batch.len());
        assert!(capacity < limit && capacity < length, "{capacity} of {limit}");
        assert_eq!(socket.send_capacity().unwrap(), capacity);
        let small = chains(u32::try_from(capacity / 100).unwrap());
        let error = socket.commit(&small).unwrap_err();
        assert!(matches!(error, CommitError::NotPermitted), "what fits is sent: {error}");
    });
}

#[test]
fn with_privilege_the_send_buffer_grows() {
    in_namespace(|socket| {
        const WANTED: usize = 50_000_000;
        assert!(socket.send_capacity().unwrap() < WANTED);
        assert!(socket.reserve_send_capacity(WANTED).unwrap() >= WANTED);
    });
}

#[test]
fn a_thread_enters_a_namespace_and_leaves_it() {
    in_namespace(|socket| {
        let inner = File::open("/proc/thread-self/ns/net").unwrap();
        let mut transaction = Transaction::begin(1, None);
        transaction.new_table(&NftTable::new(FAMILY, TABLE), IfExists::Fail);
        let batch = transaction.finish().unwrap();
        socket.commit(&batch).unwrap();
        in_new_network_namespace(|| {
            let outer = File::open("/proc/thread-self/ns/net").unwrap();
            let create = || Socket::open(Protocol::Netfilter).unwrap().commit(&batch);
            create().unwrap();
            enter_network_namespace(&inner).unwrap();
            assert!(matches!(create(), Err(CommitError::Refused(_))), "the table is there already");
            enter_network_namespace(&outer).unwrap();
            assert!(matches!(create(), Err(CommitError::Refused(_))), "the table is there already");
        })
        .unwrap();
    });
}

#[test]
fn the_allocator_gives_back_what_is_free() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let attempt = || {
        // Many small blocks. All are freed except the last, which prevents the heap from shrinking by itself.
        let blocks: Vec<Vec<u8>> = (0..200_000).map(|_| vec![1; 500]).collect();
        let before = resident();
        let last = blocks.into_iter().next_back();
        portolan_sock::memory::trim();
        let after = resident();
        drop(last);
        (before, after)
    };
    // Other tests of this process may allocate as much meanwhile, but not every time.
    let mut attempts = Vec::new();
    let is_given_back = (0..10).any(|_| {
        let (before, after) = attempt();
        attempts.push((before, after));
        after + 50_000_000 < before
    });
    assert!(is_given_back, "before and after: {attempts:?}");
}
