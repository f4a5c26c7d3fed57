//! A loss of power at every write: what was not synced is lost, in any part. The store opens, has every transaction that
//! was acknowledged, and none in part.

mod disk;
mod writes;

use std::collections::{BTreeMap, btree_map::Entry};

use fastrand::Rng;

use self::disk::{Left, Platter};
use super::{
    super::{file::Folder, journal::Event},
    *,
};
use crate::{memory::wall_clock, tables::Tables};

const SERVICE: Resource = Resource::Service;
const SLICE: Resource = Resource::EndpointSlice;
/// A history so short that its end is dropped from the file all the time.
const HISTORY: History = History { max_changes: 15, max_superseded_bytes: 60_000 };
/// An object of many pages.
const LARGE: usize = 30_000;

type State = BTreeMap<(Resource, Box<str>), Arc<StoredObject>>;

/// What a folder has to hold, by the transactions that were submitted to it.
#[derive(Debug, Default)]
struct Wanted {
    now: State,
    /// The objects after each transaction, by its revision.
    states: BTreeMap<u64, State>,
    /// The revisions of the acknowledged transactions, in order.
    acknowledged: Vec<u64>,
}

/// Transactions that are submitted together. Each is a number that decides about its objects.
type Burst = Vec<usize>;

/// Part of a test: the store is opened, and these transactions are submitted.
#[derive(Debug, Clone)]
enum Life {
    Writes(Vec<Burst>),
    /// A sync fails between two parts.
    SyncFails(Vec<Burst>, Vec<Burst>),
    /// The file is made as short as it can be.
    Compacted,
}

impl Wanted {
    /// Returns a transaction of three objects, some of which it may remove, and the state after it.
    fn transaction(&self, number: usize, revision: u64) -> (Transaction, State) {
        let (mut steps, mut state, mut revision) = (Vec::new(), self.now.clone(), revision);
        let size = if number.is_multiple_of(11) { LARGE } else { number % 700 };
        let key = |number: usize| format!("n/{}", number % 13);
        for (resource, key, size) in
            [(SERVICE, key(number), size), (SLICE, key(number / 3), 10), (NODE, "counter".to_owned(), 10)]
        {
            revision += 1;
            let name = key.rsplit('/').next().unwrap();
            let entry = state.entry((resource, key.as_str().into()));
            if let Entry::Occupied(old) = &entry
                && resource != NODE
                && number % 5 < 2
            {
                steps.push(Step::Remove { resource, key: key.into(), expected: old.get().revision() });
                state.remove(&(resource, steps.last().unwrap().key().into()));
                continue;
            }
            let mut object =
                json!({"metadata": {"name": name}, "spec": {"number": number, "filler": "x".repeat(size)}});
            if resource != NODE {
                object["metadata"]["namespace"] = "n".into();
            }
            let draft = Draft::new(resource, object.as_object().unwrap());
            let expected = match &entry {
                Entry::Occupied(old) => Some(old.get().revision()),
                Entry::Vacant(_) => None,
            };
            entry.insert_entry(Arc::new(draft.clone().at(revision)));
            steps.push(Step::Put { resource, draft, expected });
        }
        (Transaction { steps }, state)
    }

    /// Carries out bursts of transactions. Returns false if one of them failed.
    fn write(&mut self, store: &DurableStore, bursts: &[Burst]) -> bool {
        bursts.iter().all(|burst| {
            let before = self.now.clone();
            let mut waiting = Vec::new();
            for number in burst {
                let last = store.shared.lock().0.last_revision();
                let (transaction, state) = self.transaction(*number, last);
                let revision = last + transaction.steps.len() as u64;
                waiting.push((revision, store.commit(transaction)));
                self.states.insert(revision, state.clone());
                self.now = state;
            }
            let mut all = true;
            for (revision, outcome) in waiting {
                match futures::executor::block_on(outcome) {
                    Ok(done) => {
                        assert_eq!(done.revision, revision);
                        self.acknowledged.push(revision);
                    }
                    Err(error) => {
                        assert!(matches!(error, CommitError::Unavailable(_)), "{error}");
                        all = false;
                    }
                }
            }
            if !all {
                self.now = self.acknowledged.last().map_or(before, |last| self.states[last].clone());
            }
            all
        })
    }
}

/// Returns a folder in memory, where a sync takes no time.
fn quick_folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Runs a store through its lives. Returns everything that it asked of the disk.
fn run(lives: &[Life]) -> (Wanted, Vec<Event>) {
    let dir = quick_folder();
    let mut wanted = Wanted::default();
    let faults = Faults::default();
    faults.journal.start();
    for life in lives {
        faults.journal.acknowledged_earlier(wanted.acknowledged.len() as u64);
        let open = || DurableStore::open_with(dir.path(), HISTORY, faults.clone()).unwrap();
        match life {
            Life::Writes(bursts) => assert!(wanted.write(&open(), bursts)),
            Life::SyncFails(before, after) => {
                let store = open();
                assert!(wanted.write(&store, before));
                faults.one_sync.store(true, SeqCst);
                // The file says whether this one was written.
                wanted.write(&store, &[vec![1]]);
                assert!(!faults.one_sync.load(SeqCst));
                // From here on conditions are checked again, and revisions are assigned at once.
                futures::executor::block_on(store.refresh()).unwrap();
                assert!(wanted.write(&store, after));
            }
            Life::Compacted => {
                let folder = Folder::take(dir.path(), Arc::default(), faults.clone()).unwrap();
                folder.open().unwrap().compact().unwrap();
            }
        }
    }
    (wanted, faults.journal.take())
}

/// Opens what a loss of power left, and checks it. Returns what that asked of the disk.
fn check(left: &Left, wanted: &Wanted, acknowledged: u64, place: &str) -> Vec<Event> {
    let dir = quick_folder();
    for (name, content) in [("objects.redb", &left.file), ("objects.redb.new", &left.new)] {
        if let Some(content) = content {
            fs::write(dir.path().join(name), content).unwrap();
        }
    }
    let faults = Faults::default();
    faults.journal.start();
    let folder = Folder::take(dir.path(), Arc::default(), faults.clone()).unwrap();
    let opened = folder.open_or_create(1);
    let database = opened.unwrap_or_else(|error| panic!("{place}: {error}"));
    let (tables, _) = folder.load(&database, HISTORY).unwrap_or_else(|error| panic!("{place}: {error}"));
    drop(database);
    let least = usize::try_from(acknowledged).unwrap().checked_sub(1).map(|last| wanted.acknowledged[last]);
    let found = tables.revision();
    assert!(Some(found) >= least, "{place}: {least:?} was acknowledged, and {found} is the last");
    let empty = State::new();
    let is_empty = wanted.states.first_key_value().is_none_or(|(first, _)| found < *first);
    let state = if is_empty { Some(&empty) } else { wanted.states.get(&found) };
    let state = state.unwrap_or_else(|| panic!("{place}: a transaction is there in part: {found}"));
    compare(&tables, state, None, place);
    // The history leads back to the transactions before.
    let from = [NODE, SERVICE, SLICE].map(|resource| tables.compacted(resource)).into_iter().max().unwrap();
    for (revision, state) in
        wanted.states.range(from..=found).filter(|(at, _)| wanted.acknowledged.contains(at))
    {
        compare(&tables, state, Some(*revision), place);
    }
    faults.journal.take()
}

fn compare(tables: &Tables, state: &State, at: Option<u64>, place: &str) {
    for resource in [NODE, SERVICE, SLICE] {
        let there = tables.snapshot(resource, &crate::Scope::default(), at).unwrap().objects;
        let there = there.iter().map(|object| (object.key(), object.body()));
        let wanted = state.iter().filter(|((of, _), _)| *of == resource);
        let wanted = wanted.map(|((_, key), object)| (&**key, object.body()));
        assert!(there.eq(wanted), "{place}: {resource:?} at {at:?} is not as it was written");
    }
}

/// Takes the power away before each event, `variants` times, and after the last one. At one event in `nested` (if it is
/// not 0) the power is lost again while the store opens.
fn lose_power(wanted: &Wanted, events: &[Event], seed: u64, (variants, nested): (usize, usize)) -> usize {
    let (mut platter, mut checks) = (Platter::default(), 0);
    let all = wanted.acknowledged.len() as u64;
    for number in 0..=events.len() {
        let mut dice = Rng::with_seed(seed ^ ((number as u64) << 32));
        let acknowledged = events.get(number).map_or(all, |event| event.acknowledged);
        for variant in 0..variants {
            let left = platter.left(&mut dice);
            let place = format!("seed {seed}, before event {number} of {}, variant {variant}", events.len());
            let opening = check(&left, wanted, acknowledged, &place);
            checks += 1;
            if variant == 0 && nested > 0 && dice.usize(..nested) == 0 {
                let mut platter = Platter::default();
                for (step, event) in opening.iter().enumerate() {
                    platter.apply(event, &mut dice);
                    let place = format!("{place}, and after step {step} of its opening");
                    check(&platter.left(&mut dice), wanted, acknowledged, &place);
                    checks += 1;
                }
            }
        }
        if let Some(event) = events.get(number) {
            platter.apply(event, &mut dice);
        }
    }
    checks
}

fn bursts(dice: &mut Rng, count: usize) -> Vec<Burst> {
    (0..count).map(|_| (0..=dice.usize(..5)).map(|_| dice.usize(..10_000)).collect()).collect()
}

#[test]
fn a_loss_of_power_at_any_write_loses_nothing_acknowledged() {
    let seed = std::env::var("PORTOLAN_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut dice = Rng::with_seed(seed);
    let lives = [
        Life::Writes(bursts(&mut dice, 12)),
        Life::SyncFails(bursts(&mut dice, 3), bursts(&mut dice, 3)),
        Life::Writes(bursts(&mut dice, 6)),
        Life::Compacted,
        Life::Writes(bursts(&mut dice, 2)),
    ];
    let (wanted, events) = run(&lives);
    let checks = lose_power(&wanted, &events, seed, (2, 40));
    println!(
        "seed {seed}: {} transactions, {} events, {checks} checks",
        wanted.acknowledged.len(),
        events.len()
    );
}

#[test]
fn a_loss_of_power_leaves_no_store_or_a_restored_one() {
    let [dir, other] = [(), ()].map(|()| quick_folder());
    let backup = other.path().join("backup");
    let store = open(&dir);
    let mut wanted = Wanted::default();
    assert!(wanted.write(&store, &bursts(&mut Rng::with_seed(3), 4)));
    super::super::offline::backup(dir.path(), &backup).unwrap();
    let faults = Faults::default();
    faults.journal.start();
    super::super::offline::restore_with(&backup, &other.path().join("new"), faults.clone(), wall_clock())
        .unwrap();
    let events = faults.journal.take();
    let (mut platter, mut dice) = (Platter::default(), Rng::with_seed(4));
    for event in &events {
        let left = platter.left(&mut dice);
        if let Some(file) = &left.file {
            let found = quick_folder();
            fs::write(found.path().join("objects.redb"), file).unwrap();
            let found = open(&found);
            let count = |resource| wanted.now.keys().filter(|(of, _)| *of == resource).count();
            assert!([NODE, SERVICE, SLICE].iter().all(|resource| found.count(*resource) == count(*resource)));
        }
        platter.apply(event, &mut dice);
    }
    assert!(platter.left(&mut dice).file.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// The same for any transactions, with fewer of them.
    #[test]
    fn a_loss_of_power_is_survived_for_any_transactions(
        first in prop::collection::vec(prop::collection::vec(0_usize..10_000, 1..4), 1..4),
        second in prop::collection::vec(prop::collection::vec(0_usize..10_000, 1..4), 0..3),
        fails in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let second = if fails { Life::SyncFails(second, vec![vec![2]]) } else { Life::Writes(second) };
        let (wanted, events) = run(&[Life::Writes(first), second]);
        lose_power(&wanted, &events, seed, (1, 0));
    }
}
