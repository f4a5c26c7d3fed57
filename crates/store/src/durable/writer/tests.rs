//! The writer without its thread, so that a test decides what happens between two of its steps.

use std::{path::Path, sync::atomic::Ordering::SeqCst};

use futures::FutureExt;
use portolan_schema::{Resource, json::json};
use tempfile::TempDir;

use super::*;
use crate::{
    Committed, Draft, History, Step,
    durable::{DurableStore, disk::Faults},
};

const NODE: Resource = Resource::Node;

/// A writer, and what a test needs to drive it.
struct Driven {
    writer: Writer,
    shared: Arc<Shared>,
    faults: Faults,
}

impl Driven {
    fn open(dir: &Path) -> Self {
        let faults = Faults::default();
        let (writer, shared) = DurableStore::read(dir, History::default(), faults.clone()).unwrap();
        Self { writer, shared, faults }
    }

    fn commit(&mut self, transaction: Transaction) -> Result<Committed, CommitError> {
        let outcome = self.shared.commit(transaction, true);
        let Task::Write(group) = self.writer.next() else { panic!("nothing to write") };
        self.writer.write(group);
        outcome.now_or_never().unwrap()
    }

    fn put(&mut self, name: &str, expected: Option<u64>) -> Result<u64, CommitError> {
        let value = json!({"metadata": {"name": name}});
        let draft = Draft::new(NODE, value.as_object().unwrap());
        let step = Step::Put { resource: NODE, draft, expected };
        self.commit(Transaction { steps: vec![step] }).map(|done| done.revision)
    }

    /// Writes a Node. The disk does not confirm it, and a copy of the file does not fit.
    fn put_in_doubt(&mut self, name: &str) {
        self.faults.no_room.store(true, SeqCst);
        self.faults.one_sync.store(true, SeqCst);
        let outcome = self.put(name, None);
        assert!(matches!(outcome, Err(CommitError::Unknown(_))), "{outcome:?}");
        assert!(!self.writer.is_open() && self.writer.space.is_full);
    }

    /// Finds out what is in the file, because a copy of it fits again.
    fn settle_doubt(&mut self) {
        self.faults.no_room.store(false, SeqCst);
        self.writer.probe();
        assert!(self.writer.is_open() && !self.writer.space.is_full);
    }

    fn forget_history(&mut self) {
        let dropped = self.shared.published.forget_history();
        self.writer.forget.add(&dropped);
    }

    fn has_history_since(&self, revision: u64) -> bool {
        self.shared.published.read().changes(NODE, revision, 100).is_ok()
    }
}

/// Returns the names of the Nodes in the file.
fn stored(dir: &TempDir) -> Vec<String> {
    let (_, shared) = DurableStore::read(dir.path(), History::default(), Faults::default()).unwrap();
    let nodes = shared.published.read().snapshot(NODE, &crate::Scope::default(), None).unwrap().objects;
    nodes.iter().map(|node| node.name().to_owned()).collect()
}

#[test]
fn history_that_is_dropped_while_a_write_is_in_doubt_is_still_removed_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut driven = Driven::open(dir.path());
    let first = driven.put("a", None).unwrap();
    let second = driven.put("a", Some(first)).unwrap();
    driven.put_in_doubt("b");
    driven.forget_history();
    driven.settle_doubt();
    driven.commit(Transaction::remove(NODE, "a", second)).unwrap();
    driven.forget_history();
    driven.put("c", None).unwrap();
    drop(driven);
    // The first version of "a" would come back if its entry was left in the file.
    assert_eq!(stored(&dir), ["b", "c"]);
}

#[test]
fn the_history_is_kept_while_the_file_cannot_be_made_shorter() {
    let dir = tempfile::tempdir().unwrap();
    let mut driven = Driven::open(dir.path());
    let first = driven.put("a", None).unwrap();
    driven.put("a", Some(first)).unwrap();
    driven.put_in_doubt("b");
    driven.writer.probe();
    assert!(driven.has_history_since(first));
    driven.settle_doubt();
    assert!(driven.has_history_since(first));
}

#[test]
fn an_overflow_is_not_the_reason_of_a_later_failure() {
    let dir = tempfile::tempdir().unwrap();
    let mut driven = Driven::open(dir.path());
    driven.put_in_doubt("a");
    assert!(!driven.writer.folder.takes_overflow());
    driven.faults.no_room.store(false, SeqCst);
    driven.faults.broken.store(true, SeqCst);
    driven.writer.reopen(None);
    let reason = driven.shared.trouble.reason().unwrap();
    assert!(reason.contains("os error 5") && !reason.contains(FULL), "{reason}");
}
