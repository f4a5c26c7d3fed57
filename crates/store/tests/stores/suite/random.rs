//! Compares random transactions with a model that keeps the whole history.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
};

use portolan_schema::Resource;
use portolan_store::{CommitError, Scope, Step, Store};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::changes;
use crate::support::{SERVICE, SLICE, World, commit, content, put, remove, require};

const KEYS: [&str; 5] = ["n/a", "n/b", "m/a", "m/b", "o/a"];
const RESOURCES: [Resource; 2] = [SERVICE, SLICE];
const TRANSACTIONS: usize = 120;

type State = BTreeMap<(Resource, &'static str), (u64, String)>;

#[derive(Debug, Clone)]
struct Plan {
    kind: u8,
    resource: usize,
    key: usize,
    content: u16,
    condition: Condition,
}

#[derive(Debug, Clone, Copy)]
enum Condition {
    /// The current revision. Chosen most of the time, so that many transactions write.
    Right,
    Absent,
    /// The revision of the last write to any object.
    Other,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let condition =
        prop_oneof![8 => Just(Condition::Right), 1 => Just(Condition::Absent), 1 => Just(Condition::Other)];
    let plan = (0..6_u8, 0..RESOURCES.len(), 0..KEYS.len(), any::<u16>(), condition);
    let plan = plan.prop_map(|(kind, resource, key, content, condition)| Plan {
        kind,
        resource,
        key,
        content,
        condition,
    });
    proptest::collection::vec(plan, 1..6)
}

/// Returns the steps of a plan, at most one for each object.
fn steps(plans: &[Plan], state: &State, last: u64) -> Vec<Step> {
    let mut objects = BTreeSet::new();
    let mut steps = Vec::new();
    for plan in plans {
        let (resource, key) = (RESOURCES[plan.resource], KEYS[plan.key]);
        if !objects.insert((resource, key)) {
            continue;
        }
        let current = state.get(&(resource, key)).map(|(revision, _)| *revision);
        let expected = match plan.condition {
            Condition::Right => current,
            Condition::Absent => None,
            Condition::Other => Some(last),
        };
        steps.push(match (plan.kind, expected) {
            (0, _) => require(resource, key, expected),
            (1 | 2, Some(expected)) => remove(resource, key, expected),
            _ => put(resource, key, &plan.content.to_string(), expected),
        });
    }
    steps
}

/// Checks the conditions against the model.
fn judge(steps: &[Step], state: &State) -> Result<(), CommitError> {
    for (step, it) in steps.iter().enumerate() {
        let key = KEYS.into_iter().find(|key| *key == it.key()).unwrap();
        let actual = state.get(&(it.resource(), key)).map(|(revision, _)| *revision);
        if actual != it.expected() {
            return Err(CommitError::Conflict { step, resource: it.resource(), key: key.into(), actual });
        }
    }
    Ok(())
}

pub async fn any_order_of_transactions_is_as_the_model_has_it(world: World) {
    let store = &*world.store;
    // One long run with a new seed each time. The seed is in the messages.
    let seed = RandomState::new().hash_one(());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed.to_le_bytes(); 4].concat());
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut state = State::new();
    let mut states = vec![(store.revision(), state.clone())];
    for _ in 0..TRANSACTIONS {
        let plans = plans().new_tree(&mut runner).unwrap().current();
        let last = states.last().unwrap().0;
        let steps = steps(&plans, &state, last);
        let judged = judge(&steps, &state);
        let outcome = commit(store, steps.clone()).await;
        assert_eq!(outcome.as_ref().map(drop), judged.as_ref().copied(), "seed {seed}: {steps:?}");
        let Ok(done) = outcome else { continue };
        // Deletions have revisions, too. They are in the changes.
        for resource in RESOURCES {
            for change in store.changes(resource, last, 100).unwrap().changes {
                let object = change.new.as_ref().or(change.old.as_ref()).unwrap();
                let key = KEYS.into_iter().find(|key| *key == object.key()).unwrap();
                states.push((change.revision, State::new()));
                let at = states.len() - 1;
                states[at].1.insert(
                    (resource, key),
                    (change.revision, change.new.as_ref().map_or_else(String::new, |new| content(new))),
                );
            }
        }
        order(&mut states, last, &mut state, &steps);
        assert!(done.objects.iter().all(|object| object.revision() <= done.revision));
        let writes = steps.iter().filter(|step| !matches!(step, Step::Require { .. })).count();
        assert_eq!(
            states.iter().filter(|(revision, _)| *revision > last).count(),
            writes,
            "seed {seed}: {steps:?}"
        );
    }
    for (revision, state) in &states {
        for resource in RESOURCES {
            check(store, resource, *revision, state, &states);
        }
    }
}

/// Orders the changes that were just seen, each alone in its state, and turns them into whole states.
fn order(states: &mut [(u64, State)], last: u64, state: &mut State, steps: &[Step]) {
    let begin = states.partition_point(|(revision, _)| *revision <= last);
    let new = &mut states[begin..];
    new.sort_by_key(|(revision, _)| *revision);
    let written = steps.iter().filter(|step| !matches!(step, Step::Require { .. }));
    for ((_, change), step) in new.iter_mut().zip(written) {
        let ((resource, key), (revision, text)) = change.pop_first().unwrap();
        assert_eq!((resource, key), (step.resource(), step.key()), "the steps are not in order");
        match step {
            Step::Remove { .. } => drop(state.remove(&(resource, key))),
            _ => drop(state.insert((resource, key), (revision, text))),
        }
        *change = state.clone();
    }
}

/// Checks the objects at a revision and every change after it.
fn check(store: &dyn Store, resource: Resource, revision: u64, state: &State, states: &[(u64, State)]) {
    let of = |state: &State| -> Vec<(String, u64, String)> {
        let mine = state.iter().filter(|((of, _), _)| *of == resource);
        mine.map(|((_, key), (revision, content))| ((*key).to_owned(), *revision, content.clone())).collect()
    };
    let shot = store.snapshot(resource, &Scope::default(), Some(revision)).unwrap();
    let found: Vec<_> = shot
        .objects
        .iter()
        .map(|object| (object.key().to_owned(), object.revision(), content(object)))
        .collect();
    assert_eq!(found, of(state), "{resource:?} at {revision}");

    let mut replayed: BTreeMap<String, (u64, String)> =
        found.into_iter().map(|(key, revision, content)| (key, (revision, content))).collect();
    for change in changes(store, resource, revision, 1 + (revision % 7) as usize).unwrap() {
        assert!(change.revision > revision);
        let key = change.new.as_ref().or(change.old.as_ref()).unwrap().key().to_owned();
        let before = match &change.new {
            Some(new) => replayed.insert(key, (new.revision(), content(new))),
            None => replayed.remove(&key),
        };
        assert_eq!(change.old.as_ref().map(|old| old.revision()), before.map(|(revision, _)| revision));
        let then = &states.iter().find(|(revision, _)| *revision == change.revision).unwrap().1;
        let now: Vec<_> = replayed
            .iter()
            .map(|(key, (revision, content))| (key.clone(), *revision, content.clone()))
            .collect();
        assert_eq!(now, of(then), "{resource:?} replayed to {}", change.revision);
    }
}
