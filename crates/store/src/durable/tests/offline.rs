//! Checks, backups, restoring and rescue.

use std::{sync::mpsc, time::Duration};

use super::{
    super::offline::{backup, check, rescue, restore, restore_with},
    *,
};
use crate::{Change, transaction::Write};

/// A store with 40 Nodes of two versions, of which 10 were deleted.
fn written(dir: &TempDir) -> DurableStore {
    let store = open(dir);
    for number in 0..40 {
        let (name, filler) = (format!("node-{number}"), "x".repeat(number * 50));
        let first = commit(&store, put(&name, &filler, None));
        let second = commit(&store, put(&name, "latest", Some(first)));
        if number % 4 == 0 {
            commit(&store, Transaction::remove(NODE, &name, second));
        }
    }
    store
}

fn commit(store: &DurableStore, transaction: Transaction) -> u64 {
    futures::executor::block_on(store.commit(transaction)).unwrap().revision
}

/// Returns the objects without their revisions.
fn content(store: &DurableStore) -> Vec<(String, Draft)> {
    let objects = store.snapshot(NODE, &Scope::default(), None).unwrap().objects;
    objects.iter().map(|object| (object.key().to_owned(), Draft::new(NODE, &object.decode()))).collect()
}

fn assert_same(one: &DurableStore, other: &DurableStore) {
    let (one, other) = (content(one), content(other));
    assert!(!one.is_empty());
    let bytes = |(key, draft): &(String, Draft)| (key.clone(), draft.body().to_vec());
    assert!(one.iter().map(bytes).eq(other.iter().map(bytes)));
}

#[test]
fn a_check_counts_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects.redb");
    assert!(matches!(check(dir.path()), Err(OpenError::Missing(path)) if path == file));
    let store = written(&dir);
    // The store is in use, as it would be left by kill -9.
    let before = fs::read(&file).unwrap();
    let found = check(dir.path()).unwrap();
    assert_eq!((found.revision, found.bytes), (store.revision(), before.len() as u64));
    let objects: Vec<_> = found.objects.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(objects, [(NODE, 30)]);
    assert!(fs::read(&file).unwrap() == before, "the file was written to");
    drop(store);
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() / 2);
    for bytes in [Vec::new(), bytes] {
        fs::write(&file, &bytes).unwrap();
        assert!(matches!(check(dir.path()), Err(OpenError::Corrupt { path, .. }) if path == file));
        assert!(fs::read(&file).unwrap() == bytes, "the file was written to");
    }
}

#[test]
fn a_backup_is_restored_with_later_revisions_only() {
    let [dir, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let store = written(&dir);
    let file = other.path().join("backup");
    let made = backup(dir.path(), &file).unwrap();
    assert_eq!(made.revision, store.revision());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = backup(dir.path(), &file).unwrap_err();
    assert!(matches!(&again, OpenError::Backup { path, .. } if *path == file), "{again}");

    // The store goes on, and is lost.
    let seen = commit(&store, put("later", "1", None));
    let folder = other.path().join("new");
    let restored = restore(&file, &folder).unwrap();
    assert_eq!(restored.objects, made.objects);
    let now = DurableStore::open(&folder, History::default()).unwrap();
    assert!(now.get(NODE, "later").is_none());
    let removed = commit(&store, Transaction::remove(NODE, "later", seen));
    assert_same(&store, &now);
    assert_eq!(now.revision(), restored.revision);
    let oldest = now.snapshot(NODE, &Scope::default(), None).unwrap().objects;
    let oldest = oldest.iter().map(|object| object.revision()).min().unwrap();
    assert!(oldest > removed, "a client has seen {removed}, and {oldest} is served");
    for before in [made.revision, seen, removed, restored.revision - 1] {
        assert!(now.changes(NODE, before, 10).is_err(), "a watch from {before} goes on");
        assert!(now.snapshot(NODE, &Scope::default(), Some(before)).is_err());
    }
    let next = commit(&now, put("new", "1", None));
    assert_eq!(now.changes(NODE, restored.revision, 10).unwrap().changes.len(), 1);
    drop(now);
    let now = DurableStore::open(&folder, History::default()).unwrap();
    assert_eq!((now.count(NODE), now.revision()), (31, next));
}

#[test]
fn a_second_restored_store_begins_after_the_first_if_that_was_ahead_of_the_clock() {
    let [dir, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    drop(written(&dir));
    let (backup_file, folder) = (other.path().join("backup"), other.path().join("new"));
    let of_backup = backup(dir.path(), &backup_file).unwrap().revision;
    let begin = |now: u64| {
        restore_with(&backup_file, &folder, Faults::default(), now).unwrap();
        let store = DurableStore::open(&folder, History::default()).unwrap();
        let objects = store.snapshot(NODE, &Scope::default(), None).unwrap().objects;
        let seen = commit(&store, put("later", "1", None));
        drop(store);
        fs::remove_file(folder.join("objects.redb")).unwrap();
        (objects.iter().map(|object| object.revision()).min().unwrap(), seen)
    };
    let (_, mut seen) = begin(1);
    for now in [of_backup + 1, 1, seen + 1] {
        let (oldest, latest) = begin(now);
        assert!(oldest > seen, "a client has seen {seen}, and {oldest} is served");
        seen = latest;
    }
    // Without a backup, too.
    let empty = DurableStore::open(&folder, History::default()).unwrap();
    assert!(empty.revision() > seen);
}

#[test]
fn nothing_is_restored_over_a_store() {
    let [dir, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let file = other.path().join("backup");
    drop(written(&dir));
    backup(dir.path(), &file).unwrap();
    let before = fs::read(dir.path().join("objects.redb")).unwrap();
    let refused = restore(&file, dir.path()).unwrap_err();
    assert!(matches!(&refused, OpenError::Exists(_)), "{refused}");
    assert!(fs::read(dir.path().join("objects.redb")).unwrap() == before);
    let store = open(&dir);
    assert!(matches!(restore(&file, dir.path()), Err(OpenError::InUse(_))));
    drop(store);
    // A damaged backup leaves no store.
    let folder = other.path().join("new");
    fs::write(&file, &before[..before.len() / 2]).unwrap();
    assert!(matches!(restore(&file, &folder), Err(OpenError::Corrupt { path, .. }) if path == file));
    assert!(!folder.join("objects.redb").exists());
}

#[test]
fn a_backup_of_a_store_that_is_written_to_has_all_that_was_completed() {
    let [dir, other] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let store = open(&dir);
    thread::scope(|scope| {
        // The writer waits for the word to write once, and says when it has.
        let (next, allowed) = mpsc::channel();
        let (done, written) = mpsc::channel();
        let store = &store;
        scope.spawn(move || {
            for number in allowed {
                commit(store, put(&format!("node-{number}"), &"x".repeat(500), None));
                done.send(()).unwrap();
            }
        });
        for made in 0..5 {
            let file = other.path().join(made.to_string());
            let (folder, to) = (dir.path(), file.clone());
            let before = store.count(NODE);
            let running = scope.spawn(move || backup(folder, &to));
            for number in 0..20 {
                next.send(made * 20 + number).unwrap();
                written.recv_timeout(Duration::from_secs(60)).unwrap();
            }
            let summary = match running.join().unwrap() {
                // The writes took all of its time. Now there are none.
                Err(OpenError::Busy(_)) => backup(dir.path(), &file),
                other => other,
            };
            let objects = summary.unwrap().objects;
            let count = objects.iter().find(|(found, _)| *found == NODE).unwrap().1;
            assert!(count >= before, "{count} of {before}");
        }
    });
}

#[test]
fn a_whole_store_is_rescued_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(&dir);
    let found = rescue(dir.path()).unwrap();
    assert_eq!((found.damage, found.of, found.objects.len()), (None, Some(30), 30));
    assert!(
        found
            .objects
            .iter()
            .all(|(_, object)| store.get(NODE, object.key()).unwrap().body() == object.body())
    );
}

#[test]
fn what_is_left_of_a_damaged_store_is_rescued() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(&dir);
    let all = store.changes(NODE, store.revision() - 90, 1000).unwrap().changes;
    let latest = content(&store);
    drop(store);
    let file = dir.path().join("objects.redb");
    let whole = fs::read(&file).unwrap();
    let damaged = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let found = rescue(dir.path()).unwrap();
        assert!(fs::read(&file).unwrap() == bytes);
        // Each object is as it was written at some time.
        for (resource, object) in &found.objects {
            let once = all
                .iter()
                .filter_map(|change| change.new.as_ref())
                .find(|it| it.revision() == object.revision());
            assert_eq!((*resource, object.body()), (NODE, once.unwrap().body()));
        }
        found
    };
    // Without the first page nothing refers to the others.
    let mut bytes = whole.clone();
    bytes[..4096].fill(0);
    let found = damaged(&bytes);
    assert!(found.damage.is_some());
    assert_eq!(found.count(), "30 of 30 objects can be read");
    assert!(found.objects.iter().all(|(_, object)| latest.iter().any(|(key, _)| key == object.key())));
    // Each other page in turn.
    let mut fewest = 30;
    for page in 1..whole.len() / 4096 {
        let mut bytes = whole.clone();
        let there = &mut bytes[page * 4096..][..4096];
        if there.iter().all(|byte| *byte == 0) {
            continue;
        }
        there.fill(0);
        fewest = fewest.min(damaged(&bytes).objects.len());
    }
    println!("with one page lost at least {fewest} of 30 objects can be read");
    // The entry of a failed write is not taken for that of the same revision.
    let refused = all.iter().rev().find_map(|change| change.new.clone().zip(change.old.clone())).unwrap();
    let (new, old) = refused;
    let write = Write {
        resource: NODE,
        change: Change { revision: new.revision(), old: None, new: Some(Arc::clone(&old)) },
    };
    let mut bytes = whole.clone();
    let entry = entry::encode(&write).unwrap();
    bytes[..4096].copy_from_slice(&pages::leaf(&[(new.revision(), &entry)])[..4096]);
    let found = damaged(&bytes);
    assert_eq!(found.doubtful, [(NODE, new.key().into())]);
    assert_eq!(found.count(), "30 of 30 objects can be read; doubtful: 1");
    // An object of a deleted one's page may be found again, and one that is damaged is left out.
    let text = b"\"name\":\"node-1\"";
    let mut bytes = whole.clone();
    let places: Vec<usize> =
        (0..bytes.len() - text.len()).filter(|at| bytes[*at..].starts_with(text)).collect();
    for at in places {
        bytes[at] = b'!';
    }
    let found = damaged(&bytes);
    assert_eq!((found.objects.len(), found.of), (29, Some(30)), "{:?}", found.damage);
    assert_eq!(found.count(), "29 of 30 objects can be read");
    assert!(damaged(b"something else").objects.is_empty());
}

#[test]
fn a_store_that_did_not_count_its_objects_is_rescued_without_their_number() {
    let (dir, file) = filled();
    let database = redb::Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    let numbers = redb::TableDefinition::<'_, &str, u64>::new("numbers");
    transaction.open_table(numbers).unwrap().insert("revision", u64::MAX).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let mut bytes = fs::read(&file).unwrap();
    bytes[..4096].fill(0);
    fs::write(&file, &bytes).unwrap();
    let found = rescue(dir.path()).unwrap();
    assert_eq!((found.objects.len(), found.of), (200, None));
    assert_eq!(found.count(), "200 objects can be read; how many there were cannot");
}
