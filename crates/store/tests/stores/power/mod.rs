//! Losses of power of the machine on which etcd runs, while Portolan's store writes to it.
//!
//! A real etcd runs under strace. Its trace says what was written to which file, and when it was synced ([`recording`]).
//! From that follows what a loss of power at any moment may leave of the folder ([`disk`] has the model of the file
//! system). Then etcd starts on it, and Portolan's store must have all that its readers had seen before this moment, with
//! every acknowledged write, and no transaction in part.
//!
//! `PORTOLAN_POWER_LOSSES` sets the number of losses. `PORTOLAN_SEED` repeats the same choices, but not the same order of
//! events: etcd's threads and the disk decide about that. What the writers write is always the same.

mod disk;
mod recording;
mod trace;
mod tree;
// The tests of the embedded store use it, too.
#[path = "../../../src/durable/tests/power/writes.rs"]
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, iter,
    path::Path,
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use portolan_schema::Resource;
use portolan_store::{EtcdOptions, EtcdStore, History, Scope, Step, Store};
use rustix::fs::statvfs;
use tempfile::TempDir;
use tokio::task::JoinSet;

use self::{disk::Left, recording::Recording, tree::Tree};
use crate::support::{
    NODE, SERVICE, SLICE, commit, content,
    etcd::{DATA, Etcd, program},
    options, put, remove,
};

const WRITERS: usize = 6;
/// How many transactions each writer does in each half of a run.
const TRANSACTIONS: usize = 15;
/// A writer has this many Services, and changes one after the other.
const SERVICES: usize = 3;
/// A writer has this many EndpointSlices: it creates one in each transaction, and removes the oldest.
const SLICES: usize = 4;
/// Maximum number of letters in a Service.
const LARGEST: usize = 20_000;
/// Losses of power, unless `PORTOLAN_POWER_LOSSES` sets another number.
const LOSSES: usize = 8;
/// etcd begins another log file when one has this many bytes: `SegmentSizeBytes` in its `wal/wal.go`.
const SEGMENT: usize = 64_000_000;
/// Bytes that are left in the first log file of a run that begins the second one. A run writes more.
const LEFT_IN_SEGMENT: usize = 600_000;
/// Bytes that have to be free in memory, or else etcd starts on the disk after a loss of power. It has up to four log files,
/// and copies a damaged one. A byte of this copy has four letters in the trace.
const NEEDED: u64 = 1 << 30;

/// What readers have seen.
#[derive(Debug, Clone, Default)]
struct Note {
    /// The length of the trace after that.
    at: usize,
    /// The number of the last transaction of each writer.
    numbers: [usize; WRITERS],
    revision: u64,
}

/// A transaction that was submitted when the trace had the length `at`.
#[derive(Debug)]
struct Begun {
    at: usize,
    writer: usize,
    number: usize,
}

/// A time in which etcd was traced.
#[derive(Debug)]
struct Run {
    recording: Recording,
    /// The first one is what had been seen before.
    notes: Vec<Note>,
    begun: Vec<Begun>,
    /// The end of the part in which losses of power are tried.
    end: usize,
}

/// What a store has to have after a loss of power.
#[derive(Debug)]
struct Wanted {
    least: Note,
    /// The number of the last transaction of each writer that was submitted.
    most: [usize; WRITERS],
}

#[tokio::test]
async fn a_loss_of_power_of_etcd_loses_nothing_that_was_seen() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("PORTOLAN_SEED").unwrap_or(1);
    let losses = number("PORTOLAN_POWER_LOSSES").map_or(LOSSES, |number| usize::try_from(number).unwrap());
    let mut dice = Rng::with_seed(seed);
    if program("strace").is_none() {
        return;
    }
    let Some(first) = Run::from_nothing().await else { return };
    let runs = [first, Run::across_segments().await];
    let (mut done, mut at_start) = (0, 0);
    while done < losses {
        // How many choices were needed before depends on the order of events.
        let mut dice = dice.fork();
        let which = dice.usize(..runs.len());
        let run = &runs[which];
        // One time in four, the power is lost again while etcd starts.
        let again = dice.usize(..4) == 0 && done + 1 < losses;
        let (at, left) = run.loss(&mut dice);
        let wanted = run.wanted(at);
        println!("PORTOLAN_SEED={seed}, loss {done} in run {which} at {at}: {}", left.story);
        done += 1;
        let Some(start) = restart(&left, &wanted, again).await.unwrap() else { continue };
        let (at, left) = start.loss(&mut dice);
        println!("PORTOLAN_SEED={seed}, loss {done} at {at} of the start: {}", left.story);
        (done, at_start) = (done + 1, at_start + 1);
        restart(&left, &wanted, false).await.unwrap();
    }
    let acknowledged: usize = runs.iter().map(|run| run.begun.len()).sum();
    println!(
        "PORTOLAN_SEED={seed}: {done} losses of power, {at_start} of them while etcd starts after one; \
         {acknowledged} acknowledged transactions in two runs"
    );
    notices_a_disk_that_does_not_sync(&runs[0]).await;
}

/// The same check fails for a disk that says it has synced, and has not.
async fn notices_a_disk_that_does_not_sync(run: &Run) {
    let left = run.recording.left(run.end, run.notes[0].at, None);
    let error = restart(&left, &run.wanted(run.end), false).await.unwrap_err();
    assert!(error.contains("had seen"), "{error}");
}

impl Run {
    /// Traces an etcd that begins with nothing, with its defaults. In between, its database is made smaller, which
    /// `docs/storage.md` recommends. Losses of power before the store is open are left out: nothing was promised, and etcd
    /// does not start on every half-made folder.
    async fn from_nothing() -> Option<Self> {
        let defragment = |etcd: &Etcd| etcd.call("/v3/maintenance/defragment", "{}");
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(DATA)).unwrap();
        let run = Self::trace(dir, &[], None, defragment).await?;
        let renamed = run.recording.created().filter(|name| *name == "db").count();
        assert_eq!(renamed, 2, "etcd made no other database");
        Some(run)
    }

    /// Traces an etcd from its start on a folder whose log file is almost full, until it is in the next one. It also writes
    /// snapshots of its log, which come after 100,000 transactions by default.
    async fn across_segments() -> Self {
        let etcd = Etcd::start_on(tempfile::tempdir().unwrap(), &[], &[]).unwrap();
        let store = open(&etcd).await;
        let no_trace = Path::new("");
        write(&store, no_trace, &mut Vec::new(), &mut Vec::new()).await;
        let before = Note::now(&*store, no_trace);
        drop(store);
        fill_log(etcd.folder(), |key, value| {
            etcd.call("/v3/kv/put", &format!(r#"{{"key": "{key}", "value": "{value}"}}"#));
        });
        let snapshots = ["--snapshot-count".to_owned(), "100".to_owned()];
        let run = Self::trace(etcd.into_folder(), &snapshots, Some(before), |_| ()).await.unwrap();
        for end in [".wal", ".snap"] {
            assert!(run.recording.created().any(|name| name.ends_with(end)), "etcd made no {end}");
        }
        run
    }

    /// Traces an etcd on what a folder has, while a store writes. `before` is what had been seen earlier.
    async fn trace(
        dir: TempDir,
        options: &[String],
        before: Option<Note>,
        in_between: impl FnOnce(&Etcd),
    ) -> Option<Self> {
        let (base, trace) = (Tree::read(dir.path(), DATA), dir.path().join("trace"));
        let etcd = Etcd::start_on(dir, &trace::strace(&trace), options)?;
        let store = open(&etcd).await;
        let first = before.unwrap_or_else(|| Note::now(&*store, &trace));
        let (mut notes, mut begun) = (vec![first], Vec::new());
        write(&store, &trace, &mut notes, &mut begun).await;
        in_between(&etcd);
        write(&store, &trace, &mut notes, &mut begun).await;
        drop(store);
        let end = notes.last().unwrap().at;
        Some(Self { recording: read(etcd, &base), notes, begun, end })
    }

    /// Returns a moment, and what a loss of power leaves then. One time in three, it is as little as can be.
    fn loss(&self, dice: &mut Rng) -> (usize, Left) {
        let at = self.moment(dice);
        let has_dice = dice.usize(..3) != 0;
        (at, self.recording.left(at, at, has_dice.then_some(dice)))
    }

    /// Returns a moment: when something had just been seen, or in or after a call on a file. Each kind of call has the same
    /// chance, so rare ones are not left out.
    fn moment(&self, dice: &mut Rng) -> usize {
        let (begin, seen) = (self.notes[0].at, &self.notes[1..]);
        if !seen.is_empty() && dice.bool() {
            return seen[dice.usize(..seen.len())].at;
        }
        let within = |calls: &Vec<(usize, usize)>| -> Vec<(usize, usize)> {
            calls.iter().filter(|call| begin <= call.0 && call.1 <= self.end).copied().collect()
        };
        let kinds: Vec<_> =
            self.recording.calls.values().map(within).filter(|calls| !calls.is_empty()).collect();
        let kind = &kinds[dice.usize(..kinds.len())];
        let (begin, end) = kind[dice.usize(..kind.len())];
        if dice.bool() { begin + 1 } else { end }
    }

    fn wanted(&self, at: usize) -> Wanted {
        let mut least = self.notes[0].clone();
        for note in self.notes.iter().filter(|note| note.at <= at) {
            least.revision = least.revision.max(note.revision);
            least.numbers = std::array::from_fn(|writer| least.numbers[writer].max(note.numbers[writer]));
        }
        let mut most = self.notes[0].numbers;
        for begun in self.begun.iter().filter(|begun| begun.at < at) {
            most[begun.writer] = most[begun.writer].max(begun.number);
        }
        Wanted { least, most }
    }
}

impl Note {
    fn now(store: &dyn Store, trace: &Path) -> Self {
        let revision = store.revision();
        let numbers = std::array::from_fn(|writer| number(store, writer));
        Self { at: length(trace), numbers, revision }
    }
}

fn length(trace: &Path) -> usize {
    fs::metadata(trace).map_or(0, |data| usize::try_from(data.len()).unwrap())
}

/// Kills a traced etcd, and reads its trace. It has to say how each file became what it is.
fn read(etcd: Etcd, base: &Tree) -> Recording {
    let id = etcd.id();
    let dir = etcd.into_folder();
    let trace = trace::read(&dir.path().join("trace"), id);
    let recording = Recording::new(dir.path().to_str().unwrap(), base, &trace).unwrap();
    recording.check(&Tree::read(dir.path(), DATA)).unwrap();
    recording
}

/// Opens the store. It also compacts etcd's history all the time.
async fn open(etcd: &Etcd) -> Arc<dyn Store> {
    let options = EtcdOptions {
        compaction: Some(Duration::from_millis(200)),
        timeout: Duration::from_secs(60),
        ..options(etcd, "/power")
    };
    Arc::new(EtcdStore::connect(options, History::default()).await.unwrap())
}

/// Makes etcd's first log file almost full.
fn fill_log(dir: &Path, put: impl Fn(&str, &str)) {
    let log = fs::read(dir.join(DATA).join("member/wal/0000000000000000-0000000000000000.wal")).unwrap();
    let free = log.rchunks(512).take_while(|sector| *sector == &[0; 512][..sector.len()]).count() * 512;
    assert_eq!(log.len(), SEGMENT);
    // In base64, three bytes are four letters.
    let (key, many) = ("ZmlsbGVy", "QUFB".repeat(333_333));
    let bytes = free - LEFT_IN_SEGMENT;
    (0..bytes / 1_000_000).for_each(|_| put(key, &many));
    put(key, &many[..bytes % 1_000_000 / 3 * 4]);
}

/// Lets all writers do their transactions. Adds what was seen after each, in order, and when each began.
async fn write(store: &Arc<dyn Store>, trace: &Path, notes: &mut Vec<Note>, begun: &mut Vec<Begun>) {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (store, trace) = (Arc::clone(store), trace.to_owned());
        writers.spawn(async move {
            let mut done = Vec::new();
            for _ in 0..TRANSACTIONS {
                let begun = Begun { at: length(&trace), writer, number: number(&*store, writer) + 1 };
                commit(&*store, steps(&*store, writer, begun.number)).await.unwrap();
                let note = Note::now(&*store, &trace);
                assert_eq!(note.numbers[writer], begun.number);
                done.push((note, begun));
            }
            done
        });
    }
    let mut done: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    done.sort_by_key(|(note, _)| (note.at, note.revision));
    for (note, one) in done {
        notes.push(note);
        begun.push(one);
    }
}

/// Returns the number of the last transaction of a writer; 0 if there is none.
fn number(store: &dyn Store, writer: usize) -> usize {
    store.get(NODE, &format!("writer-{writer}")).map_or(0, |object| content(&object).parse().unwrap())
}

/// Returns what a transaction writes to a Service. Letters and length follow from the writer and the number.
fn text(writer: usize, number: usize) -> String {
    let mut dice = Rng::with_seed((number * WRITERS + writer) as u64);
    let length = dice.usize(..LARGEST);
    let letters: String = iter::repeat_with(|| dice.alphanumeric()).take(length).collect();
    format!("{number} {letters}")
}

/// Returns the next transaction of a writer.
fn steps(store: &dyn Store, writer: usize, number: usize) -> Vec<Step> {
    let expected = |resource, key: &str| store.get(resource, key).map(|object| object.revision());
    let change = |resource, key: &str, text: &str| put(resource, key, text, expected(resource, key));
    let service = format!("n/{writer}-{}", number % SERVICES);
    let mut steps = vec![
        put(SLICE, &format!("n/{writer}-{number}"), &number.to_string(), None),
        change(SERVICE, &service, &text(writer, number)),
        change(NODE, &format!("writer-{writer}"), &number.to_string()),
    ];
    if let Some(oldest) = number.checked_sub(SLICES).filter(|oldest| *oldest > 0) {
        let key = format!("n/{writer}-{oldest}");
        steps.push(remove(SLICE, &key, expected(SLICE, &key).unwrap()));
    }
    steps
}

/// Returns the content of each object, if the writers did so many transactions whole and no other.
fn objects(numbers: &[usize; WRITERS]) -> BTreeMap<(Resource, String), String> {
    let mut objects = BTreeMap::new();
    for (writer, last) in numbers.iter().enumerate().filter(|(_, last)| **last > 0) {
        objects.insert((NODE, format!("writer-{writer}")), last.to_string());
        for number in 1.max(last.saturating_sub(SERVICES - 1))..=*last {
            let key = format!("n/{writer}-{}", number % SERVICES);
            objects.insert((SERVICE, key), text(writer, number));
        }
        for number in 1.max(last.saturating_sub(SLICES - 1))..=*last {
            objects.insert((SLICE, format!("n/{writer}-{number}")), number.to_string());
        }
    }
    objects
}

/// Starts etcd on what a loss of power left, and checks what Portolan's store has. Returns this run of etcd if it is to
/// be traced.
async fn restart(left: &Left, wanted: &Wanted, is_traced: bool) -> Result<Option<Run>, String> {
    let dir = folder();
    left.tree.write(dir.path());
    let trace = dir.path().join("trace");
    let runner = if is_traced { trace::strace(&trace) } else { Vec::new() };
    let etcd = Etcd::start_on(dir, &runner, &[]).unwrap();
    let store = open(&etcd).await;
    check(&*store, wanted)?;
    let end = length(&trace);
    // A revision that was seen is not given again.
    let steps = steps(&*store, 0, number(&*store, 0) + 1);
    let next = commit(&*store, steps).await.map_err(|error| error.to_string())?.revision;
    if next <= wanted.least.revision {
        return Err(format!("readers had seen revision {}, and {next} is the next", wanted.least.revision));
    }
    drop(store);
    let before = Note { at: 0, ..wanted.least.clone() };
    Ok(is_traced.then(|| {
        let recording = read(etcd, &left.tree);
        Run { recording, notes: vec![before], begun: Vec::new(), end }
    }))
}

/// Returns a temporary folder, in memory if it has the space: a sync takes no time there.
fn folder() -> TempDir {
    let free = statvfs("/dev/shm").map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize));
    let in_memory = (free >= NEEDED).then(|| tempfile::tempdir_in("/dev/shm").ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

fn check(store: &dyn Store, wanted: &Wanted) -> Result<(), String> {
    let numbers = std::array::from_fn(|writer| number(store, writer));
    let (least, most) = (&wanted.least.numbers, &wanted.most);
    if (0..WRITERS).any(|writer| numbers[writer] < least[writer]) {
        return Err(format!("readers had seen the transactions {least:?}, and {numbers:?} are there"));
    }
    if (0..WRITERS).any(|writer| numbers[writer] > most[writer]) {
        return Err(format!("{most:?} were submitted, and {numbers:?} are there"));
    }
    let mut found = BTreeMap::new();
    for resource in [NODE, SERVICE, SLICE] {
        let snapshot = store.snapshot(resource, &Scope::default(), None).unwrap();
        let objects = snapshot.objects.iter();
        found.extend(objects.map(|it| ((resource, it.key().to_owned()), content(it))));
    }
    let whole = objects(&numbers);
    let all: BTreeSet<_> = found.keys().chain(whole.keys()).collect();
    let wrong: Vec<_> = all.into_iter().filter(|key| found.get(*key) != whole.get(*key)).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("of the transactions until {numbers:?}, these objects are missing or other: {wrong:?}"))
}
