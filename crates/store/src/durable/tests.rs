use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    sync::atomic::Ordering::SeqCst,
};

use portolan_schema::json::json;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{Draft, Step};

mod earlier;
mod offline;
mod power;

const NODE: Resource = Resource::Node;

fn put(name: &str, content: &str, expected: Option<u64>) -> Transaction {
    let value = json!({"metadata": {"name": name}, "spec": {"content": content}});
    Transaction {
        steps: vec![Step::Put {
            resource: NODE,
            draft: Draft::new(NODE, value.as_object().unwrap()),
            expected,
        }],
    }
}

fn open(dir: &TempDir) -> DurableStore {
    DurableStore::open(dir.path(), History::default()).unwrap()
}

fn faulty(dir: &TempDir) -> (DurableStore, Faults) {
    let faults = Faults::default();
    (DurableStore::open_with(dir.path(), History::default(), faults.clone()).unwrap(), faults)
}

#[tokio::test]
async fn accepted_changes_are_latest_but_not_published_until_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    let begin = store.revision();
    let held = faults.gate.lock().unwrap();
    let first = store.commit(put("a", "1", None));
    let accepted = store.latest(NODE, "a").unwrap().revision();
    let second = store.commit(put("a", "2", Some(accepted)));
    // The outcome depends on a change that is not yet durable, so it must not be known yet.
    let mut refused = store.commit(put("a", "3", None));
    assert!(store.latest(NODE, "a").unwrap().revision() > accepted);
    assert_eq!((store.revision(), store.count(NODE)), (begin, 0));
    assert!(store.changes(NODE, begin, 10).unwrap().changes.is_empty());
    assert!((&mut refused).now_or_never().is_none());
    drop(held);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!(store.get(NODE, "a").unwrap().revision(), second.revision);
    assert_eq!(first.revision, accepted);
    assert!(
        matches!(refused.await, Err(CommitError::Conflict { actual: Some(actual), .. }) if actual == second.revision)
    );
}

#[expect(clippy::await_holding_lock, reason = "the sync waits for the lock while other tasks run")]
#[tokio::test]
async fn reads_do_not_wait_for_a_sync_and_one_that_hangs_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    let begin = store.revision();
    let held = faults.gate.lock().unwrap();
    let write = store.commit(put("a", "1", None));
    assert!(matches!(store.refresh_for_reads().now_or_never(), Some(Ok(revision)) if revision == begin));
    let mut refresh = store.refresh();
    assert!((&mut refresh).now_or_never().is_none());
    until("the sync has begun", || store.shared.counters.sync_in_progress().is_some()).await;
    let since = store.shared.counters.sync_in_progress().unwrap();
    assert!(store.writable_at(since).is_ok());
    let reason = store.writable_at(since + 2 * SLOW_SYNC).unwrap_err();
    assert!(reason.contains("for 10 s"), "{reason}");
    drop(held);
    let written = write.await.unwrap().revision;
    assert_eq!(refresh.await.unwrap(), written);
    assert!(store.writable_at(since + 2 * SLOW_SYNC).is_ok());
}

#[tokio::test]
async fn transactions_that_wait_share_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    let before = store.metrics();
    let held = faults.gate.lock().unwrap();
    let commits: Vec<_> = (0..100).map(|number| store.commit(put(&number.to_string(), "1", None))).collect();
    drop(held);
    for outcome in futures::future::join_all(commits).await {
        outcome.unwrap();
    }
    let metrics = store.metrics();
    assert!(metrics.syncs - before.syncs <= 2, "{metrics:?}");
    assert_eq!(metrics.committed, 100);
    // The first transaction, or a few, made one group, and the rest another.
    assert_eq!(metrics.group_sizes.iter().sum::<u64>(), metrics.syncs - before.syncs);
}

#[tokio::test]
async fn a_full_disk_fails_writes_until_there_is_room_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    let before = store.commit(put("a", "1", None)).await.unwrap().revision;
    faults.writes.store(true, SeqCst);
    let pair = [store.commit(put("a", "2", Some(before))), store.commit(put("b", "1", None))];
    for outcome in futures::future::join_all(pair).await {
        // The file cannot be opened for writing either, so it is unknown whether the changes were written.
        assert!(
            matches!(&outcome, Err(CommitError::Unavailable(_) | CommitError::Unknown(_))),
            "{outcome:?}"
        );
    }
    assert!(matches!(store.commit(put("b", "1", None)).await, Err(CommitError::Unavailable(_))));
    assert_eq!((store.revision(), store.count(NODE)), (before, 1));
    assert_eq!(store.latest(NODE, "a").unwrap().revision(), before);
    assert!(store.latest(NODE, "b").is_none());
    faults.writes.store(false, SeqCst);
    let after = store.commit(put("b", "2", None)).await.unwrap();
    assert!(after.revision > before);
    assert_eq!(store.metrics().failed, 3);
    drop(store);
    let again = open(&dir);
    assert_eq!((again.count(NODE), again.revision()), (2, after.revision));
    assert_eq!(again.changes(NODE, before, 10).unwrap().changes.len(), 1);
}

/// Waits for a condition.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "never came true: {what}");
}

#[tokio::test]
async fn the_probe_logs_a_reason_once_and_detects_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    store.commit(put("a", "1", None)).await.unwrap();
    faults.broken.store(true, SeqCst);
    assert!(store.commit(put("b", "1", None)).await.is_err());
    let said = |part: &str| store.writable().is_err_and(|reason| reason.contains(part));
    assert!(said("os error 5"), "{:?}", store.writable());
    let before = faults.failed.load(SeqCst);
    until("it is tried several times", || faults.failed.load(SeqCst) >= before + 3).await;
    let reported = store.shared.trouble.logged();
    assert!((1..=2).contains(&reported.len()), "{reported:?}");
    // Only the probe writes.
    faults.writes.store(true, SeqCst);
    faults.broken.store(false, SeqCst);
    until("the disk is known to be full", || said("delete objects")).await;
    faults.writes.store(false, SeqCst);
    until("writing does again", || store.writable().is_ok()).await;
    assert!(store.shared.trouble.logged().is_empty());
    store.commit(put("b", "1", None)).await.unwrap();
}

#[tokio::test]
async fn after_a_failed_sync_the_file_decides_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    let before = store.commit(put("a", "1", None)).await.unwrap().revision;
    // Held open, so that the inode number is not reused.
    let first = fs::File::open(dir.path().join("objects.redb")).unwrap();
    faults.syncs.store(true, SeqCst);
    // The bytes are in the file, but the disk did not confirm them.
    let doubtful = store.commit(put("a", "2", Some(before))).await;
    let refused = store.commit(put("b", "1", None)).await;
    assert!(matches!(refused, Err(CommitError::Unavailable(_))), "{refused:?}");
    assert_eq!(store.revision(), before);
    faults.syncs.store(false, SeqCst);
    // What the kernel failed to write is written again, into a new file.
    let file = |dir: &TempDir| fs::metadata(dir.path().join("objects.redb")).unwrap();
    assert_ne!(file(&dir).ino(), first.metadata().unwrap().ino());
    assert_eq!(file(&dir).permissions().mode() & 0o777, 0o600);
    store.refresh().await.unwrap();
    let now = store.get(NODE, "a").unwrap().revision();
    match doubtful {
        Ok(done) => assert_eq!(now, done.revision),
        Err(CommitError::Unavailable(_)) => assert_eq!(now, before),
        Err(CommitError::Unknown(_)) => {}
        Err(error) => panic!("{error}"),
    }
    let next = store.commit(put("a", "3", Some(now))).await.unwrap();
    drop(store);
    let again = open(&dir);
    assert_eq!(again.get(NODE, "a").unwrap().revision(), next.revision);
    assert_eq!(again.count(NODE), 1);
}

#[tokio::test]
async fn a_copy_after_a_failed_sync_does_not_fill_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("objects.redb.new");
    fs::write(&new, "of a killed process").unwrap();
    let (store, faults) = faulty(&dir);
    assert!(!new.exists());
    store.commit(put("a", "1", None)).await.unwrap();
    faults.no_room.store(true, SeqCst);
    faults.one_sync.store(true, SeqCst);
    assert!(store.commit(put("b", "1", None)).await.is_err());
    let said = |part: &str| store.writable().is_err_and(|reason| reason.contains(part));
    assert!(said("a sync has failed") && said("0 are free"), "{:?}", store.writable());
    assert!(!new.exists());
    faults.copies.store(true, SeqCst);
    faults.no_room.store(false, SeqCst);
    until("the copy fails at its end", || said("a sync has failed") && !said("0 are free")).await;
    until("the copy is removed", || !new.exists()).await;
    faults.copies.store(false, SeqCst);
    until("writing does again", || store.writable().is_ok()).await;
    store.commit(put("c", "1", None)).await.unwrap();
}

#[tokio::test]
async fn a_file_that_lost_what_was_acknowledged_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let (store, faults) = faulty(&dir);
    let file = dir.path().join("objects.redb");
    let first = store.commit(put("a", "1", None)).await.unwrap().revision;
    let older = fs::read(&file).unwrap();
    let second = store.commit(put("a", "2", Some(first))).await.unwrap().revision;
    let latest = fs::read(&file).unwrap();
    faults.broken.store(true, SeqCst);
    assert!(store.commit(put("b", "1", None)).await.is_err());
    fs::write(&file, &older).unwrap();
    faults.broken.store(false, SeqCst);
    until("the loss is known", || store.writable().is_err_and(|reason| reason.contains("was in it before")))
        .await;
    let refused = store.commit(put("b", "1", None)).await;
    assert!(matches!(refused, Err(CommitError::Unavailable(_))), "{refused:?}");
    assert_eq!((store.revision(), store.count(NODE)), (second, 1));
    // The probe does not write to the file while it is replaced.
    faults.broken.store(true, SeqCst);
    let before = faults.failed.load(SeqCst);
    until("the disk is broken again", || faults.failed.load(SeqCst) > before).await;
    fs::write(&file, &latest).unwrap();
    faults.broken.store(false, SeqCst);
    until("writing does again", || store.writable().is_ok()).await;
    store.commit(put("b", "1", None)).await.unwrap();
    drop(store);
    assert_eq!(open(&dir).get(NODE, "a").unwrap().revision(), second);
}

#[tokio::test]
async fn everything_accepted_is_written_when_the_store_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let commits: Vec<_> = (0..50).map(|number| store.commit(put(&number.to_string(), "1", None))).collect();
    drop(store);
    for outcome in futures::future::join_all(commits).await {
        outcome.unwrap();
    }
    assert_eq!(open(&dir).count(NODE), 50);
}

#[tokio::test]
async fn dropped_history_is_removed_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let limits = History { max_changes: 10, max_superseded_bytes: usize::MAX };
    let store = DurableStore::open(dir.path(), limits).unwrap();
    let begin = store.revision();
    let large = "x".repeat(100_000);
    let mut last = None;
    for _ in 0..300 {
        last = Some(store.commit(put("a", &large, last)).await.unwrap().revision);
    }
    let removed = Transaction::remove(NODE, "a", last.unwrap());
    let gone = store.commit(removed).await.unwrap().revision;
    for _ in 0..12 {
        last = Some(store.commit(put("b", "1", None)).await.unwrap().revision);
        store.commit(Transaction::remove(NODE, "b", last.unwrap())).await.unwrap();
    }
    let (revision, oldest) = (store.revision(), store.changes(NODE, begin, 1).unwrap_err().oldest);
    assert!(oldest > gone);
    drop(store);
    let size = fs::metadata(dir.path().join("objects.redb")).unwrap().len();
    assert!(size < 10 << 20, "{size} bytes for nothing");
    let store = DurableStore::open(dir.path(), limits).unwrap();
    assert_eq!((store.revision(), store.count(NODE)), (revision, 0));
    assert_eq!(store.changes(NODE, begin, 1).unwrap_err().oldest, oldest);
    assert_eq!(store.changes(NODE, oldest, 100).unwrap().changes.len(), 10);
    drop(store);
    // A shorter history applies at once.
    let limits = History { max_changes: 3, ..limits };
    let store = DurableStore::open(dir.path(), limits).unwrap();
    assert!(store.changes(NODE, oldest, 100).is_err());
}

#[test]
fn files_are_for_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("some/data");
    let store = DurableStore::open(&folder, History::default()).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("objects.redb")), 0o600);
    assert!(matches!(DurableStore::open(&folder, History::default()), Err(OpenError::InUse(_))));
    drop(store);
    DurableStore::open(&folder, History::default()).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(DurableStore::open(&file, History::default()), Err(OpenError::Io { .. })));
}

/// A folder with a store of some objects, and its file.
fn filled() -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    (0..200).for_each(|number| drop(store.commit(put(&number.to_string(), &"x".repeat(3000), None))));
    drop(store);
    let file = dir.path().join("objects.redb");
    (dir, file)
}

#[test]
fn a_damaged_file_is_named_and_left_alone() {
    let (dir, file) = filled();
    let whole = fs::read(&file).unwrap();
    let mut damaged =
        vec![Vec::new(), b"hello".to_vec(), vec![0; 100_000], whole[..whole.len() / 2].to_vec()];
    damaged.push([&[0xff; 64], &whole[64..]].concat());
    for bytes in damaged {
        fs::write(&file, &bytes).unwrap();
        let error = DurableStore::open(dir.path(), History::default()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Corrupt { .. }), "{text}");
        assert!(text.contains("objects.redb") && text.contains("backup"), "{text}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(open(&dir).count(NODE), 200);
    // A partial file from a crash at the very first start is ignored.
    fs::rename(&file, dir.path().join("objects.redb.new")).unwrap();
    assert_eq!(open(&dir).count(NODE), 0);
}

#[test]
fn a_newer_format_is_refused() {
    let (dir, file) = filled();
    let database = redb::Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    let numbers = redb::TableDefinition::<'_, &str, u64>::new("numbers");
    transaction.open_table(numbers).unwrap().insert("format", 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = DurableStore::open(dir.path(), History::default()).unwrap_err();
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}");
    let wanted = format!(
        "{} has format 2, this version knows formats up to 1; run the version that wrote it, or a newer one",
        file.display()
    );
    assert_eq!(error.to_string(), wanted);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// For any flipped bit, the file is refused, or its content has not changed.
    #[test]
    fn a_flipped_bit_is_noticed_or_harmless(place in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let (dir, file) = filled();
        let length = fs::metadata(&file).unwrap().len();
        let at = place.index(usize::try_from(length).unwrap()) as u64;
        let handle = fs::File::options().read(true).write(true).open(&file).unwrap();
        let mut byte = [0];
        handle.read_exact_at(&mut byte, at).unwrap();
        handle.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
        match DurableStore::open(dir.path(), History::default()) {
            Ok(store) => {
                let filler = "x".repeat(3000);
                let intact = |name: u32| store.get(NODE, &name.to_string()).unwrap().decode()["spec"]["content"] == filler;
                prop_assert!((0..200).all(intact));
            }
            Err(error) => prop_assert!(matches!(error, OpenError::Corrupt { .. }), "{}", error),
        }
    }
}
