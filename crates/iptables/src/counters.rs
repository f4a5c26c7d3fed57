//! The kernel's counters (nfacct) of invalid packets and of connections to node ports on loopback addresses: creates,
//! tries and reads them.
//!
//! The counters belong to a network namespace. Both families share them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::nfacct::{self, NfacctEvent};

use super::options::{COUNTER_INVALID, COUNTER_LOCALHOST};
use super::program::Error;
use super::rule::IptablesTable;
use super::{Meter, Programs};

/// How long the removal of a counter in use is retried, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The values of the counters; `None` for a counter that does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Dropped packets in conntrack's state INVALID (`iptables_ct_state_invalid_dropped_packets_total`).
    pub invalid: Option<u64>,
    /// Packets, one for each connection, to node ports on loopback addresses
    /// (`iptables_localhost_nodeports_accepted_packets_total`).
    pub localhost: Option<u64>,
}

/// Reads the counters in the network namespace of this thread.
pub fn counted() -> Result<Counted, SocketError> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    Ok(Counted {
        invalid: packets(&mut socket, COUNTER_INVALID)?,
        localhost: packets(&mut socket, COUNTER_LOCALHOST)?,
    })
}

/// Returns the names of the counters that exist in the network namespace of this thread.
pub fn counter_names() -> Result<Vec<&'static str>, SocketError> {
    let Counted { invalid, localhost } = counted()?;
    let names = [invalid.map(|_| COUNTER_INVALID), localhost.map(|_| COUNTER_LOCALHOST)];
    Ok(names.into_iter().flatten().collect())
}

fn packets(socket: &mut Socket, name: &str) -> Result<Option<u64>, SocketError> {
    let mut packets = None;
    let asked = socket.query(&mut nfacct::get(name), |frame| {
        if let NfacctEvent::Counter(counter) = NfacctEvent::decode(frame)? {
            packets = Some(counter.packets);
        }
        Ok(())
    });
    match asked {
        // A kernel without nfacct does not understand the request.
        Err(SocketError::Refused(refusal)) if matches!(refusal.errno, Errno::ENOENT | Errno::EINVAL) => {
            Ok(None)
        }
        asked => asked.map(|()| packets),
    }
}

/// Removes the counters in the network namespace of this thread. If a rule still refers to a counter ten
/// seconds after our rules are gone, another program uses it, and it stays.
pub fn remove_counters() -> Result<(), SocketError> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    let start = Instant::now();
    for name in [COUNTER_INVALID, COUNTER_LOCALHOST] {
        while let Err(error) = socket.query(&mut nfacct::delete(name), |_| Ok(())) {
            match error.errno() {
                // The kernel frees a deleted rule, and its reference to the counter, in the background.
                Some(Errno::EBUSY) if start.elapsed() < PATIENCE => sleep(PAUSE),
                // A kernel without nfacct does not understand the request.
                Some(Errno::EBUSY | Errno::ENOENT | Errno::EINVAL) => break,
                _ => return Err(error),
            }
        }
    }
    Ok(())
}

/// The counters that rules can refer to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usable {
    pub(super) invalid: bool,
    pub(super) localhost: bool,
}

/// Creates the counters, and finds out once whether rules can refer to them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Result of the trial; `None` before it.
    tried: Option<bool>,
}

impl Counters {
    /// Creates the counters that are missing. An error means that the tables cannot be written at the moment.
    pub(super) fn ensure(&mut self, programs: &Programs, meter: &Meter) -> Result<Usable, Error> {
        if self.tried == Some(false) {
            return Ok(Usable::default());
        }
        let usable = match make() {
            Ok(usable) => usable,
            Err(error) => {
                tracing::info!(%error, "the kernel's nfacct cannot be used: invalid packets and connections to node ports on loopback are not counted");
                Usable::default()
            }
        };
        let name = match usable {
            Usable { invalid: true, .. } => COUNTER_INVALID,
            Usable { localhost: true, .. } => COUNTER_LOCALHOST,
            _ => {
                self.tried = Some(false);
                return Ok(usable);
            }
        };
        if self.tried.is_none() {
            self.tried = Some(can_refer(name, programs, meter)?);
        }
        Ok(if self.tried == Some(true) { usable } else { Usable::default() })
    }
}

fn make() -> Result<Usable, SocketError> {
    let mut socket = Socket::open(Protocol::Netfilter)?;
    Ok(Usable {
        invalid: create(&mut socket, COUNTER_INVALID)?,
        localhost: create(&mut socket, COUNTER_LOCALHOST)?,
    })
}

fn create(socket: &mut Socket, name: &str) -> Result<bool, SocketError> {
    match socket.query(&mut nfacct::create(name), |_| Ok(())) {
        Err(SocketError::Refused(refusal)) if refusal.errno == Errno::EEXIST => Ok(true),
        asked => asked.map(|()| true),
    }
}

/// Writes a rule with this counter and removes it. Returns true if iptables and the kernel accept it.
fn can_refer(name: &str, programs: &Programs, meter: &Meter) -> Result<bool, Error> {
    let rule = format!("-m nfacct --nfacct-name {name}");
    let refusal = programs.try_rule(IptablesTable::Filter, &rule, meter)?;
    if let Some(error) = &refusal {
        tracing::info!(%error, "iptables cannot refer to nfacct counters: nothing is counted with them");
    }
    Ok(refusal.is_none())
}
