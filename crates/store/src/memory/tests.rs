use std::collections::BTreeMap as Map;

use portolan_schema::json::json;
use proptest::prelude::*;

use super::*;
use crate::{Change, Draft};

const SERVICE: Resource = Resource::Service;

fn draft(key: &str, content: u32) -> Draft {
    let (namespace, name) = key.split_once('/').unwrap();
    let value = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterIP": content.to_string()}});
    Draft::new(SERVICE, value.as_object().unwrap())
}

fn store(max_changes: usize) -> MemoryStore {
    MemoryStore::starting_at(History { max_changes, max_superseded_bytes: usize::MAX }, 100)
}

/// Transactions with one step.
impl MemoryStore {
    fn put(
        &self,
        resource: Resource,
        draft: Draft,
        expected: Option<u64>,
    ) -> Result<Arc<StoredObject>, CommitError> {
        self.commit_now(Transaction::put(resource, draft, expected)).map(|done| done.objects[0].clone())
    }

    fn remove(&self, resource: Resource, key: &str, expected: u64) -> Result<u64, CommitError> {
        self.commit_now(Transaction::remove(resource, key, expected)).map(|done| done.revision)
    }
}

fn conflict(key: &str, actual: Option<u64>) -> CommitError {
    CommitError::Conflict { step: 0, resource: SERVICE, key: key.into(), actual }
}

fn keys(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.objects.iter().map(|object| object.key()).collect()
}

#[test]
fn writes_check_their_conditions() {
    let store = store(10);
    assert_eq!(store.put(SERVICE, draft("a/b", 1), None).unwrap().revision(), 101);
    let taken = store.put(SERVICE, draft("a/b", 1), None).unwrap_err();
    assert_eq!(taken, conflict("a/b", Some(101)));
    assert_eq!(store.put(SERVICE, draft("a/b", 2), Some(100)).unwrap_err(), conflict("a/b", Some(101)));
    assert_eq!(store.remove(SERVICE, "a/c", 101).unwrap_err(), conflict("a/c", None));
    assert_eq!(store.remove(SERVICE, "a/b", 101), Ok(102));
    assert_eq!((store.revision(), store.count(SERVICE)), (102, 0));
}

#[test]
fn scopes_are_by_whole_namespace_and_after_a_key() {
    let store = store(10);
    for key in ["a/b", "a/c", "ab/a", "a-b/x"] {
        store.put(SERVICE, draft(key, 1), None).unwrap();
    }
    let read = |namespace, after| {
        let snapshot = store.snapshot(SERVICE, &Scope { namespace, after, key: None }, None).unwrap();
        keys(&snapshot).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(read(None, None), ["a-b/x", "a/b", "a/c", "ab/a"]);
    assert_eq!(read(Some("a"), None), ["a/b", "a/c"]);
    assert_eq!(read(Some("a"), Some("a/b")), ["a/c"]);
    assert_eq!(read(None, Some("a/b")), ["a/c", "ab/a"]);
    assert_eq!(read(Some("a"), Some("z/z")), Vec::<String>::new());
    let before = store.revision();
    store.put(SERVICE, draft("b/new", 1), None).unwrap();
    for at in [None, Some(before)] {
        let one = |namespace, after, key| {
            let scope = Scope { namespace, after, key: Some(key) };
            keys(&store.snapshot(SERVICE, &scope, at).unwrap()).join(" ")
        };
        assert_eq!((one(None, None, "a/c"), one(Some("a"), None, "a/c")), ("a/c".into(), "a/c".into()));
        assert_eq!((one(Some("ab"), None, "a/c"), one(None, None, "a/d")), (String::new(), String::new()));
        assert_eq!(
            (one(None, Some("a/b"), "a/c"), one(None, Some("a/c"), "a/c")),
            ("a/c".into(), String::new())
        );
        assert_eq!(one(None, None, "b/new"), if at.is_none() { "b/new" } else { "" });
    }
}

#[test]
fn history_is_bounded_by_count_and_by_bytes() {
    let store = store(3);
    for content in 0..5 {
        let expected = store.get(SERVICE, "a/b").map(|object| object.revision());
        store.put(SERVICE, draft("a/b", content), expected).unwrap();
    }
    assert_eq!(store.changes(SERVICE, 101, 10).unwrap_err(), Expired { requested: 101, oldest: 102 });
    let kept = store.changes(SERVICE, 102, 10).unwrap();
    assert_eq!(kept.changes.iter().map(|change| change.revision).collect::<Vec<_>>(), [103, 104, 105]);
    let store = MemoryStore::starting_at(History { max_changes: 100, max_superseded_bytes: 0 }, 1);
    store.put(SERVICE, draft("a/b", 1), None).unwrap();
    assert_eq!(store.changes(SERVICE, 1, 10).unwrap().changes.len(), 1, "a creation supersedes nothing");
    store.put(SERVICE, draft("a/b", 2), Some(2)).unwrap();
    assert!(store.changes(SERVICE, 2, 10).is_err());
}

#[test]
fn revisions_of_another_process_are_expired() {
    let store = store(10);
    for revision in [1, 99, 101, u64::MAX] {
        assert!(store.changes(SERVICE, revision, 10).is_err(), "{revision}");
        assert!(store.snapshot(SERVICE, &Scope::default(), Some(revision)).is_err(), "{revision}");
    }
    assert_eq!(store.changes(SERVICE, 100, 10).unwrap().through, 100);
}

#[derive(Debug, Clone)]
enum Op {
    Put(u8, u32),
    Remove(u8),
    PutNode,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..6_u8, any::<u32>()).prop_map(|(key, content)| Op::Put(key, content)),
        2 => (0..6_u8).prop_map(Op::Remove),
        1 => Just(Op::PutNode),
    ]
}

fn key(number: u8) -> String {
    format!("{}/{}", ["a", "b"][usize::from(number % 2)], number)
}

type State = Map<String, u64>;

fn state(snapshot: &Snapshot) -> State {
    snapshot.objects.iter().map(|object| (object.key().to_owned(), object.revision())).collect()
}

fn replay(mut state: State, changes: &[Change]) -> State {
    for change in changes {
        match (&change.old, &change.new) {
            (_, Some(new)) => state.insert(new.key().to_owned(), new.revision()),
            (Some(old), None) => state.remove(old.key()),
            (None, None) => None,
        };
    }
    state
}

proptest! {
    /// After any sequence of writes, every past revision reads as it was. Any past state plus the changes after it
    /// gives the present state, whatever the size of the pages in which the changes are read.
    #[test]
    fn the_past_is_readable_and_replays_to_the_present(ops in prop::collection::vec(op(), 0..60), step in 1..5_usize) {
        let store = store(1000);
        let mut past: Vec<(u64, State)> = vec![(store.revision(), State::new())];
        for op in ops {
            match op {
                Op::Put(number, content) => {
                    let expected = store.get(SERVICE, &key(number)).map(|object| object.revision());
                    store.put(SERVICE, draft(&key(number), content), expected).unwrap();
                }
                Op::Remove(number) => {
                    if let Some(object) = store.get(SERVICE, &key(number)) {
                        store.remove(SERVICE, object.key(), object.revision()).unwrap();
                    }
                }
                Op::PutNode => {
                    let expected = store.get(Resource::Node, "n").map(|object| object.revision());
                    let node = json!({"metadata": {"name": "n"}});
                    store.put(Resource::Node, Draft::new(Resource::Node, node.as_object().unwrap()), expected).unwrap();
                }
            }
            past.push((store.revision(), state(&store.snapshot(SERVICE, &Scope::default(), None).unwrap())));
        }
        let (_, present) = past.last().unwrap().clone();
        for (revision, then) in past {
            let snapshot = store.snapshot(SERVICE, &Scope::default(), Some(revision)).unwrap();
            prop_assert_eq!(&state(&snapshot), &then);
            let scope = Scope { namespace: Some("a"), after: Some("a/0"), key: None };
            let part = store.snapshot(SERVICE, &scope, Some(revision)).unwrap();
            let expected: State = then.iter().filter(|(key, _)| key.starts_with("a/") && key.as_str() > "a/0")
                .map(|(key, revision)| (key.clone(), *revision)).collect();
            prop_assert_eq!(state(&part), expected);
            let (mut cursor, mut replayed) = (revision, then);
            while cursor < store.revision() {
                let changes = store.changes(SERVICE, cursor, step).unwrap();
                prop_assert!(changes.through > cursor);
                replayed = replay(replayed, &changes.changes);
                cursor = changes.through;
            }
            prop_assert_eq!(&replayed, &present);
        }
    }
}
