//! Sends changes as netlink messages and reads the kernel's replies.

use std::net::IpAddr;

use portolan_sock::{Errno, Socket};
use portolan_wire::Batch;
use portolan_wire::ipvs::{self, Counters, RealServer, VirtualServer};
use portolan_wire::route::{self, Scope};

use crate::Error;
use crate::difference::{Operation, WEIGHT};
use crate::frontend::{Config, Key};
use crate::refusal::Refused;

/// Number of messages in one call.
const TOGETHER: usize = 1000;

/// The result of sending messages.
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// The relevant refusals. All other messages were carried out.
    pub(super) refused: Vec<Refused>,
}

/// Sends a message for each item, many in one call. `refused` decides which refusals are relevant.
pub(super) fn send<T>(
    socket: &mut Socket,
    what: &'static str,
    items: &[T],
    write: impl Fn(&mut Batch, &T),
    refused: impl Fn(&T, Errno) -> Option<Refused>,
) -> Result<Sent, Error> {
    let mut sent = Sent { bytes: 0, refused: Vec::new() };
    let mut batch = Batch::new(0);
    for items in items.chunks(TOGETHER) {
        batch.clear(socket.next_sequence(u32::try_from(items.len()).unwrap_or(u32::MAX)));
        for item in items {
            write(&mut batch, item);
        }
        batch.acknowledge_last();
        sent.bytes = sent.bytes.saturating_add(batch.len());
        let replies = socket.submit(&batch).map_err(Error::socket(what))?;
        if replies.lost || (replies.acknowledged == 0 && replies.refusals.is_empty()) {
            return Err(Error::Lost { what });
        }
        for refusal in replies.refusals {
            let place = refusal.sequence.wrapping_sub(batch.first_sequence());
            let item = items.get(usize::try_from(place).unwrap_or(usize::MAX));
            match item.and_then(|item| refused(item, refusal.errno)) {
                Some(refused) if refused.error.is_of_one() => sent.refused.push(refused),
                Some(refused) => return Err(refused.error),
                None => {}
            }
        }
    }
    Ok(sent)
}

pub(super) fn encode(batch: &mut Batch, number: u16, operation: &Operation) {
    let server = |key: &Key, config: &Config| VirtualServer {
        identity: key.identity(),
        scheduler: config.scheduler.name().to_owned(),
        flags: config.flags,
        timeout: config.timeout,
        counters: Counters::default(),
    };
    match operation {
        Operation::New(key, config) => ipvs::new_virtual_server(batch, number, &server(key, config)),
        Operation::Set(key, config) => ipvs::set_virtual_server(batch, number, &server(key, config)),
        Operation::Delete(key) => ipvs::delete_virtual_server(batch, number, &key.identity()),
        Operation::NewReal(key, place) => {
            let real = RealServer::new(*place, WEIGHT);
            ipvs::new_real_server(batch, number, &key.identity(), &real);
        }
        Operation::Restore(key, place) => {
            ipvs::set_real_server(batch, number, &key.identity(), &RealServer::new(*place, WEIGHT));
        }
        Operation::Drain(key, place, until) => {
            let real = RealServer { upper_threshold: until.threshold(), ..RealServer::new(*place, 0) };
            ipvs::set_real_server(batch, number, &key.identity(), &real);
        }
        Operation::DeleteReal(key, place) => {
            ipvs::delete_real_server(batch, number, &key.identity(), *place);
        }
    }
}

pub(super) const fn on_device(index: u32, address: IpAddr) -> route::Address {
    let prefix = if address.is_ipv4() { 32 } else { 128 };
    route::Address { index, local: address, peer: address, prefix, flags: 0, scope: Scope::UNIVERSE }
}

/// Makes an error from the kernel's refusal of a change.
pub(super) fn refusal(operation: &Operation, errno: Errno) -> Error {
    match operation.scheduler() {
        Some(scheduler) if errno == Errno::ENOENT => Error::Scheduler { scheduler },
        _ => Error::Refused { what: operation.to_string(), errno },
    }
}
