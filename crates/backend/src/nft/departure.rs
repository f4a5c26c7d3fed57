//! Taking a table away from under traffic.
//!
//! A chain that is deleted keeps its rules until its hook is gone, one hook after the other, while maps with verdicts
//! answer nothing from the commit on (`nf_tables_commit_chain_prepare` and `nft_map_deactivate` in `nf_tables_api.c`): what is
//! no longer translated would still be checked, and rejected. Rules that are deleted from chains that stay go all at once.

use std::time::Instant;

use portolan_sock::{Socket, SocketError};
use portolan_wire::nftables::{Event, Family, Transaction, request};

use super::skeleton::Place;
use crate::dataplane::{Error, PASSAGE};
use crate::reading::consistently;

/// Sequence numbers for one transaction.
const SEQUENCE_ROOM: u32 = 1 << 16;

/// A table on its way out: what leads packets in goes first, the rest when those packets are through.
#[derive(Debug, Default)]
pub(crate) struct Departure {
    begun: Option<Instant>,
}

impl Departure {
    /// Takes away what leads packets in, the first time. Says whether the rest may go.
    pub(crate) fn go_on(
        &mut self,
        socket: &mut Socket,
        place: Place,
        leads_in: impl Fn(&str) -> bool,
    ) -> Result<bool, Error> {
        if let Some(begun) = self.begun {
            return Ok(begun.elapsed() >= PASSAGE);
        }
        if !empty(socket, place.wire(), place.table, leads_in)? {
            return Ok(true);
        }
        self.begun = Some(Instant::now());
        Ok(false)
    }

    /// When the rest may go, once it has begun.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.begun?.checked_add(PASSAGE)
    }
}

/// Removes a table. Says whether there was one.
pub(crate) fn remove(socket: &mut Socket, family: Family, table: &str) -> Result<bool, Error> {
    if !empty(socket, family, table, |_| true)? {
        return Ok(false);
    }
    commit(socket, |transaction| {
        transaction.delete_table(family, table);
    })?;
    Ok(true)
}

/// Deletes the rules of the base chains that are meant, in one transaction. Says whether the table is there.
fn empty(
    socket: &mut Socket,
    family: Family,
    table: &str,
    is_meant: impl Fn(&str) -> bool,
) -> Result<bool, Error> {
    let (exists, chains) = consistently(|| base_chains(socket, family, table))?;
    let meant: Vec<&String> = chains.iter().filter(|chain| is_meant(chain)).collect();
    if !meant.is_empty() {
        commit(socket, |transaction| {
            for chain in meant {
                transaction.flush_chain(family, table, chain);
            }
        })?;
    }
    Ok(exists)
}

fn base_chains(socket: &mut Socket, family: Family, table: &str) -> Result<(bool, Vec<String>), SocketError> {
    let mut exists = false;
    socket.dump(&mut request::tables(family), |frame| {
        if let Event::NewTable(found) = Event::decode(frame)? {
            exists |= found.name == table && found.family == family;
        }
        Ok(())
    })?;
    let mut chains = Vec::new();
    if exists {
        socket.dump(&mut request::chains(family), |frame| {
            match Event::decode(frame)? {
                Event::NewChain(chain)
                    if chain.table == table && chain.family == family && chain.base.is_some() =>
                {
                    chains.push(chain.name);
                }
                _ => {}
            }
            Ok(())
        })?;
    }
    Ok((exists, chains))
}

fn commit(socket: &mut Socket, fill: impl FnOnce(&mut Transaction)) -> Result<(), Error> {
    let mut transaction = Transaction::begin(socket.next_sequence(SEQUENCE_ROOM), None);
    fill(&mut transaction);
    let batch = transaction.finish().map_err(SocketError::from)?;
    Ok(socket.commit(&batch)?)
}
