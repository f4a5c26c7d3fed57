//! The index of the Nodes' networks. It follows the published Nodes, so a write that asks for an address of a Node
//! reads no Node but those that have changed.

use std::sync::Arc;

use portolan_ipam::Nodes;
use portolan_schema::Resource;
use portolan_store::{Expired, Scope, Store, StoredObject};

use super::BATCH;
use crate::kinds::node::stored_networks;

/// The Nodes up to a revision of the store.
#[derive(Debug, Default)]
pub(super) struct FollowedNodes {
    nodes: Arc<Nodes>,
    /// The revision up to which changes are applied. `None` if all Nodes must be read.
    followed: Option<u64>,
}

impl FollowedNodes {
    /// Returns the Nodes as of the last call of [`FollowedNodes::follow`].
    pub(super) fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    /// Applies what was published since the last call.
    pub(super) fn follow(&mut self, store: &dyn Store) {
        let followed = self.followed.take().and_then(|through| self.catch_up(store, through).ok());
        self.followed = followed.or_else(|| self.read(store).ok());
    }

    fn catch_up(&mut self, store: &dyn Store, mut through: u64) -> Result<u64, Expired> {
        loop {
            let changes = store.changes(Resource::Node, through, BATCH)?;
            through = changes.through;
            for change in &changes.changes {
                match (&change.new, &change.old) {
                    (Some(new), _) => self.set(new),
                    (None, Some(old)) => Arc::make_mut(&mut self.nodes).remove(old.key()),
                    (None, None) => {}
                }
            }
            if changes.changes.len() < BATCH {
                return Ok(through);
            }
        }
    }

    /// Reads all Nodes. They stay as they are if the store cannot be read.
    fn read(&mut self, store: &dyn Store) -> Result<u64, Expired> {
        let snapshot = store.snapshot(Resource::Node, &Scope::default(), None)?;
        self.nodes = Arc::default();
        for node in &snapshot.objects {
            self.set(node);
        }
        Ok(snapshot.revision)
    }

    fn set(&mut self, node: &StoredObject) {
        let networks = stored_networks(node);
        // Most changes of a Node are reports of its state. They need no copy of an index that an audit reads.
        if self.nodes.get(node.key()) != Some(&networks) {
            Arc::make_mut(&mut self.nodes).set(node.key(), networks);
        }
    }
}
