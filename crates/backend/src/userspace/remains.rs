//! Removes what an earlier run of the userspace mode left in the kernel, without a relay.

use std::sync::Arc;
use std::time::Instant;

use portolan_model::{Change, Family, Forwarding, ServicePortName, Settings};

use super::dataplane::MODE;
use super::routing;
use crate::dataplane::{Commit, Dataplane, Error};
use crate::nft::{self, Connections, TableRemoval};

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
    fn mode(&self) -> &'static str {
        MODE
    }

    fn apply(&mut self, _changes: &[Change]) -> Result<Commit, Error> {
        Ok(Commit::default())
    }

    fn compare(&mut self, _changes: &[Change]) -> Result<Commit, Error> {
        Ok(Commit { full: true, ..Commit::default() })
    }

    fn configure(&mut self, _settings: Settings) {}

    fn collect(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn needs_collection(&self) -> bool {
        false
    }

    fn remove(&mut self) -> Result<(), Error> {
        let mut connections = Connections::open()?;
        for table in [nft::CAPTURE_TABLE, nft::CONNECTIONS_TABLE] {
            connections.remove_table(self.family, table)?;
        }
        Ok(routing::remove(self.family)?)
    }

    fn remove_part(&mut self) -> Result<bool, Error> {
        if !Connections::open()?.end_capture(self.family, &mut self.departure)? {
            return Ok(true);
        }
        self.remove().map(|()| false)
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.departure.due()
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(std::iter::empty())
    }
}
