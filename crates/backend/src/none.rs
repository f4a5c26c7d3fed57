//! A data plane that only stores the forwarding table: for dry runs, and as the smallest implementation of the trait.

use std::collections::HashMap;
use std::sync::Arc;

use portolan_model::{Change, Forwarding, ServicePortName, Settings};

use crate::{Commit, Dataplane, Error};

/// A data plane that programs nothing.
#[derive(Debug, Default)]
pub struct NoDataplane {
    table: HashMap<Arc<ServicePortName>, Arc<Forwarding>>,
}

impl Dataplane for NoDataplane {
    fn mode(&self) -> &'static str {
        "none"
    }

    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        for change in changes {
            match &change.new {
                Some(forwarding) => self.table.insert(change.name.clone(), forwarding.clone()),
                None => self.table.remove(&change.name),
            };
        }
        Ok(Commit::default())
    }

    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let commit = self.apply(changes)?;
        Ok(Commit { full: true, ..commit })
    }

    fn configure(&mut self, _settings: Settings) {}

    fn collect(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn needs_collection(&self) -> bool {
        false
    }

    fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.table.iter())
    }
}
