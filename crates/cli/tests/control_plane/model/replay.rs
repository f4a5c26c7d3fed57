//! The merged histories of one collection: every change that any watcher saw, in order.

use std::collections::BTreeMap;

use serde_json::Value;

use super::key;
use super::watcher::{Entry, History, List};

/// The changes of one collection.
pub(crate) struct Replay {
    /// The revision at which it begins.
    pub(crate) start: u64,
    first: BTreeMap<String, Value>,
    pub(crate) changes: BTreeMap<u64, Change>,
}

/// Objects by key.
pub(crate) type State<'a> = BTreeMap<&'a str, &'a Value>;

#[derive(Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) kind: String,
    pub(crate) key: String,
    pub(crate) object: Value,
}

impl Replay {
    /// Builds the replay from the recorder's history, and checks all other histories against it.
    pub(crate) fn of(path: &str, histories: &[History]) -> Self {
        let mine = || histories.iter().filter(|history| history.path == path);
        let recorder = mine().find(|history| history.is_recorder).unwrap();
        let mut entries = recorder.entries.iter();
        let Some(Entry::List(list)) = entries.next() else { panic!("a history begins with a list") };
        let first: BTreeMap<_, _> = list.objects.iter().map(|it| (key(it), it.clone())).collect();
        let mut replay = Self { start: list.revision, first, changes: BTreeMap::new() };
        let mut seen = replay.start;
        for entry in entries {
            let Entry::Event { kind, revision, object } = entry else {
                panic!("no server could resume a watch of {path} from {seen}");
            };
            assert!(*revision > seen, "{path}: {revision} after {seen}: {kind} {object}");
            seen = *revision;
            let change = Change { kind: kind.clone(), key: key(object), object: object.clone() };
            replay.changes.insert(*revision, change);
        }
        replay.check_kinds();
        for history in mine().filter(|history| !history.is_recorder) {
            replay.check_history(history);
        }
        replay
    }

    /// Returns the objects at the beginning.
    pub(crate) fn first(&self) -> State<'_> {
        self.first.iter().map(|(key, object)| (key.as_str(), object)).collect()
    }

    /// Returns the objects right after a revision.
    pub(crate) fn at(&self, revision: u64) -> State<'_> {
        let mut state = self.first();
        self.changes.range(..=revision).for_each(|(_, change)| change.apply(&mut state));
        state
    }

    /// Asserts that a list is the result of the changes up to its revision.
    pub(crate) fn check_list(&self, list: &List) {
        if list.revision >= self.start {
            self.check_objects(&list.objects, list.revision);
        }
    }

    /// Asserts that these are all objects right after a revision.
    pub(crate) fn check_objects(&self, objects: &[Value], revision: u64) {
        let state = self.at(revision);
        for object in objects {
            assert_eq!(state.get(key(object).as_str()), Some(&object), "in the list at {revision}");
        }
        assert_eq!(objects.len(), state.len(), "objects in the list at {revision}");
    }

    /// Asserts that ADDED events are for new objects, MODIFIED and DELETED events for existing ones, and that a
    /// deletion shows the last state.
    fn check_kinds(&self) {
        let mut state = self.first();
        for (revision, change) in &self.changes {
            let before = state.get(change.key.as_str());
            let is_right = match change.kind.as_str() {
                "ADDED" => before.is_none(),
                "MODIFIED" => {
                    before.is_some_and(|before| before["metadata"]["uid"] == change.object["metadata"]["uid"])
                }
                "DELETED" => before.is_some_and(|before| before["spec"] == change.object["spec"]),
                _ => false,
            };
            assert!(is_right, "{revision}: {change:?} after {before:?}");
            change.apply(&mut state);
        }
    }

    /// Asserts that between two lists, another watcher saw exactly the same changes.
    fn check_history(&self, history: &History) {
        let mut seen = None;
        for entry in &history.entries {
            match entry {
                Entry::List(list) => {
                    assert!(
                        seen.is_none_or(|seen| list.revision >= seen),
                        "a list went back to {}",
                        list.revision
                    );
                    self.check_list(list);
                    seen = Some(list.revision);
                }
                Entry::Event { kind, revision, object } => {
                    let from = seen.unwrap();
                    assert!(*revision > from, "{revision} after {from}: {kind} {object}");
                    seen = Some(*revision);
                    if *revision <= self.start {
                        continue;
                    }
                    let mut between = self.changes.range(from.max(self.start) + 1..=*revision);
                    let same = Change { kind: kind.clone(), key: key(object), object: object.clone() };
                    let found = between.next();
                    assert_eq!(
                        found,
                        Some((revision, &same)),
                        "the first change after {from} of {}",
                        history.path
                    );
                }
            }
        }
    }
}

impl Change {
    pub(crate) fn apply<'a>(&'a self, state: &mut State<'a>) {
        if self.kind == "DELETED" {
            state.remove(self.key.as_str());
        } else {
            state.insert(&self.key, &self.object);
        }
    }
}
