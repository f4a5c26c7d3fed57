//! Removes a table that has traffic.
//!
//! For packets, the deletion of a table with its chains is not atomic. A deleted base chain keeps its rules until its
//! hook is unregistered, one hook after the other, while lookups in verdict maps fail from the commit on
//! (`nf_tables_commit_chain_prepare` and `nft_map_deactivate` in `nf_tables_api.c`). So packets that are not
//! translated would still be checked, and rejected. Rules that are deleted from chains that stay are removed all at
//! once. So the base chains are emptied first.

use portolan_sock::{Socket, SocketError};
use portolan_wire::nftables::{Family, NftablesEvent, Transaction, request};

use super::chain::FamilyTable;
use portolan_engine::dataplane::Error;
use portolan_sock::retry_on_change;

/// Sequence numbers reserved for one transaction.
const SEQUENCE_ROOM: u32 = 1 << 16;

/// The removal of a table in two steps. The first removes the rules that translate or capture packets, the second
/// removes the rest, after the packets on their way have left.
#[derive(Debug, Default)]
pub struct TableRemoval {
    is_begun: bool,
}

impl TableRemoval {
    /// Empties the base chains for which `leads_in` is true, at the first call. Returns true if the rest is to be removed.
    /// After false, [`TRANSIT_TIME`](portolan_engine::dataplane::TRANSIT_TIME) has to pass before the next call.
    pub(crate) fn advance(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        leads_in: impl Fn(&str) -> bool,
    ) -> Result<bool, Error> {
        if self.is_begun || !empty(socket, place.wire(), place.table, leads_in)? {
            return Ok(true);
        }
        self.is_begun = true;
        Ok(false)
    }
}

/// Removes a table. Returns false if it did not exist.
pub fn remove(socket: &mut Socket, family: Family, table: &str) -> Result<bool, Error> {
    if !empty(socket, family, table, |_| true)? {
        return Ok(false);
    }
    commit(socket, |transaction| {
        transaction.delete_table(family, table);
    })?;
    Ok(true)
}

/// Deletes the rules of the base chains for which `is_meant` is true, in one transaction. Returns true if the table
/// exists.
fn empty(
    socket: &mut Socket,
    family: Family,
    table: &str,
    is_meant: impl Fn(&str) -> bool,
) -> Result<bool, Error> {
    let (exists, chains) = retry_on_change(|| base_chains(socket, family, table))?;
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
        if let NftablesEvent::NewTable(found) = NftablesEvent::decode(frame)? {
            exists |= found.name == table && found.family == family;
        }
        Ok(())
    })?;
    let mut chains = Vec::new();
    if exists {
        socket.dump(&mut request::chains(family), |frame| {
            match NftablesEvent::decode(frame)? {
                NftablesEvent::NewChain(chain)
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
