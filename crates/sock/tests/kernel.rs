//! Tests against the running kernel, each in its own network namespace. They fail without root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

#[path = "kernel/address.rs"]
mod address;
#[path = "kernel/addresses.rs"]
mod addresses;
#[path = "kernel/compat.rs"]
mod compat;
#[path = "kernel/conntrack.rs"]
mod conntrack;
#[path = "kernel/expressions.rs"]
mod expressions;
#[path = "kernel/ipset.rs"]
mod ipset;
#[path = "kernel/listing.rs"]
mod listing;
#[path = "kernel/nfacct.rs"]
mod nfacct;
#[path = "kernel/privilege.rs"]
mod privilege;
#[path = "kernel/routes.rs"]
mod routes;
#[path = "kernel/transactions.rs"]
mod transactions;

use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{
    BaseChain, Chain, ChainType, Family, Hook, IfExists, NftTable, NftablesEvent, Policy, Transaction,
};
use portolan_wire::{DecodeError, Frame, Request};

const TABLE: &str = "portolan-test";

/// Runs a test in a new network namespace with a netfilter socket.
fn in_namespace(test: impl FnOnce(&mut Socket) + Send) {
    in_new_network_namespace(|| test(&mut Socket::open(Protocol::Netfilter).unwrap()))
        .expect("this test needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN in a user namespace");
}

/// Returns true on this version of Linux and on newer ones.
fn is_linux(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse::<u32>());
    let mut next = || numbers.next().unwrap().unwrap();
    (next(), next()) >= (major, minor)
}

/// Commits the changes that `write` adds to a transaction.
fn commit<R>(socket: &mut Socket, write: impl FnOnce(&mut Transaction) -> R) {
    let mut transaction = Transaction::begin(socket.next_sequence(1), None);
    write(&mut transaction);
    socket.commit(&transaction.finish().unwrap()).unwrap();
}

/// Dumps objects and collects those that `pick` returns.
fn list<T>(
    socket: &mut Socket,
    mut request: Request,
    mut pick: impl FnMut(&Frame<'_>) -> Result<Option<T>, DecodeError>,
) -> Vec<T> {
    let mut found = Vec::new();
    let outcome: Result<(), SocketError> = socket.dump(&mut request, |frame| {
        found.extend(pick(frame)?);
        Ok(())
    });
    outcome.unwrap();
    found
}

fn event<T>(
    pick: impl Fn(NftablesEvent<'_>) -> Option<T>,
) -> impl FnMut(&Frame<'_>) -> Result<Option<T>, DecodeError> {
    move |frame| NftablesEvent::decode(frame).map(&pick)
}

fn new_table(transaction: &mut Transaction, family: Family) {
    transaction.new_table(&NftTable::new(family, TABLE), IfExists::Fail);
}

fn base_chain(family: Family, name: &str, kind: ChainType, hook: Hook, priority: i32) -> Chain {
    let base = BaseChain { kind, hook, priority, policy: Policy::Accept, devices: Vec::new() };
    Chain { base: Some(base), ..Chain::regular(family, TABLE, name) }
}
