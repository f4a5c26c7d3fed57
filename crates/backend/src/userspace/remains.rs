//! Removes what an earlier run of the userspace mode left in the kernel, without a relay.

use portolan_model::Family;

use super::dataplane::MODE;
use super::routing;
use crate::dataplane::{About, Commit, Dataplane, Error, Removal, TRANSIT_TIME, Takeover};
use crate::nft::{self, Connections, TableRemoval};
use crate::table::{Changes, Table};

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
        for table in [nft::CAPTURE_TABLE, nft::CONNECTIONS_TABLE] {
            connections.remove_table(self.family, table)?;
        }
        routing::remove(self.family)?;
        Ok(Removal::Done)
    }
}
