//! Removes what an earlier run of the userspace mode left in the kernel, without a relay.

use portolan_model::Family;

use super::dataplane::MODE;
use super::routing;
use portolan_engine::dataplane::{About, Commit, Dataplane, Error, Removal, TRANSIT_TIME, Takeover};
use portolan_engine::table::{Changes, Table};
use portolan_nftables::{Connections, TableRemoval};

/// A data plane that programs nothing, and removes the userspace mode's objects of one family.
#[derive(Debug)]
pub struct Remains {
    family: Family,
    departure: TableRemoval,
}

impl Remains {
    /// Creates a data plane for the network namespace of the calling thread.
    pub fn new(family: Family) -> Self {
        Self { family, departure: TableRemoval::default() }
    }
}

impl Dataplane for Remains {
    fn about(&self) -> About {
        About::of(MODE)
    }

    fn apply(&mut self, _table: &Table, _changes: &Changes) -> Result<Commit, Error> {
        Ok(Commit::default())
    }

    fn compare(&mut self, _table: &Table, _changes: &Changes) -> Result<Commit, Error> {
        Ok(Commit { full: true, ..Commit::default() })
    }

    fn remove_part(&mut self, _takeover: &Takeover<'_>) -> Result<Removal, Error> {
        let mut connections = Connections::open()?;
        if !connections.end_capture(self.family, &mut self.departure)? {
            return Ok(Removal::Continues(TRANSIT_TIME));
        }
        for table in [portolan_nftables::CAPTURE_TABLE, portolan_nftables::CONNECTIONS_TABLE] {
            connections.remove_table(self.family, table)?;
        }
        routing::remove(self.family)?;
        Ok(Removal::Done)
    }
}
