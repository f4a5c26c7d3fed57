//! Revisions, reads of the past, and restarts.

use std::time::Duration;

use portolan_store::{Expired, Scope};
use tokio::time::timeout;

use super::{HISTORY, changes};
use crate::support::{NODE, SERVICE, SLICE, World, commit, content, put, remove};

pub async fn revisions_increase_within_a_transaction(world: World) {
    let store = &*world.store;
    let begin = store.revision();
    assert!(begin > 0);
    let steps =
        vec![put(SERVICE, "n/a", "1", None), put(SLICE, "n/a", "1", None), put(SERVICE, "n/b", "1", None)];
    let done = commit(store, steps).await.unwrap();
    let revisions: Vec<u64> = done.objects.iter().map(|object| object.revision()).collect();
    assert!(
        begin < revisions[0] && revisions.is_sorted_by(|one, other| one < other),
        "{begin} {revisions:?}"
    );
    assert_eq!(done.revision, revisions[2]);
    assert!(store.revision() >= done.revision);
    // A watch may be resumed between the two changes.
    let rest = store.changes(SERVICE, revisions[0], 10).unwrap();
    assert_eq!(rest.changes.iter().map(|change| change.revision).collect::<Vec<_>>(), [revisions[2]]);
    assert_eq!(rest.through, store.revision());
    let between = store.snapshot(SERVICE, &Scope::default(), Some(revisions[1])).unwrap();
    assert_eq!((between.revision, between.objects.len()), (revisions[1], 1));
}

pub async fn what_is_too_old_or_unknown_is_expired(world: World) {
    let store = &*world.store;
    let mut last = commit(store, vec![put(NODE, "x", "0", None)]).await.unwrap().revision;
    let first = last;
    let large = "x".repeat(100_000);
    // More bytes than the history keeps.
    for _ in 0..(HISTORY.max_superseded_bytes / large.len() + 5) {
        last = commit(store, vec![put(NODE, "x", &large, Some(last))]).await.unwrap().revision;
    }
    let expired = store.changes(NODE, first, 10).expect_err("compacted");
    assert!(expired.requested == first && expired.oldest > first && expired.oldest < last, "{expired:?}");
    assert_eq!(store.snapshot(NODE, &Scope::default(), Some(first)).unwrap_err(), expired);
    assert!(store.changes(NODE, expired.oldest, 10).is_ok());
    // Other resources have their own history.
    assert!(store.changes(SERVICE, first, 10).is_ok());
    let future = store.revision() + 1000;
    assert!(matches!(store.changes(NODE, future, 10), Err(Expired { requested, .. }) if requested == future));
    assert!(store.snapshot(NODE, &Scope::default(), Some(future)).is_err());
}

pub async fn a_follower_is_woken_for_its_resource(world: World) {
    let store = &*world.store;
    let (mut services, mut nodes) = (store.subscribe(SERVICE), store.subscribe(NODE));
    let done = commit(store, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap();
    timeout(Duration::from_secs(30), services.wait_for(|last| *last >= done.revision))
        .await
        .unwrap()
        .unwrap();
    assert!(!nodes.has_changed().unwrap());
    let done =
        commit(store, vec![remove(SERVICE, "n/a", done.revision), put(NODE, "x", "1", None)]).await.unwrap();
    timeout(Duration::from_secs(30), nodes.wait_for(|last| *last >= done.revision)).await.unwrap().unwrap();
    assert!(services.has_changed().unwrap());
}

pub async fn a_restart_keeps_objects_and_revisions(mut world: World) {
    let begin = world.store.revision();
    let steps =
        vec![put(SERVICE, "n/a", "é", None), put(SERVICE, "n/b", "1", None), put(NODE, "x", "1", None)];
    let first = commit(&*world.store, steps).await.unwrap();
    let revisions: Vec<u64> = first.objects.iter().map(|object| object.revision()).collect();
    let steps = vec![put(SERVICE, "n/a", "2", Some(revisions[0])), remove(SERVICE, "n/b", revisions[1])];
    let second = commit(&*world.store, steps).await.unwrap();
    let (last, bytes) = (world.store.revision(), world.store.get(SERVICE, "n/a").unwrap().body().clone());
    if !world.reopen().await {
        return;
    }
    let store = &*world.store;
    assert_eq!((store.count(SERVICE), store.count(NODE)), (1, 1));
    assert_eq!(store.get(SERVICE, "n/a").unwrap().body(), &bytes);
    assert_eq!(store.get(NODE, "x").unwrap().revision(), revisions[2]);
    // A server on etcd starts with a write.
    assert!(if world.is_file() { store.revision() == last } else { store.revision() > last });
    let seen = changes(store, SERVICE, begin, 2).unwrap();
    assert_eq!(seen.len(), 4);
    assert_eq!(content(seen[2].old.as_ref().unwrap()), "é");
    assert_eq!((seen[3].revision, seen[3].new.is_none()), (second.revision, true));
    let before = store.snapshot(SERVICE, &Scope::default(), Some(first.revision)).unwrap();
    assert_eq!(before.objects.iter().map(|object| content(object)).collect::<Vec<_>>(), ["é", "1"]);
    let last = store.revision();
    let third = commit(store, vec![put(SERVICE, "n/b", "3", None)]).await.unwrap();
    assert!(third.revision > last);
    let seen = changes(store, SERVICE, last, 2).unwrap();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].old.is_none());
}

pub async fn counters_tell_what_happened(world: World) {
    let store = &*world.store;
    commit(store, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap();
    let done = commit(store, vec![put(SERVICE, "n/b", "1", None), put(NODE, "x", "1", None)]).await.unwrap();
    commit(store, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap_err();
    store.refresh().await.unwrap();
    let metrics = store.metrics();
    assert_eq!((metrics.committed, metrics.conflicts, metrics.failed), (2, 1, 0));
    let objects = |resource| metrics.objects.iter().find(|(of, _)| *of == resource).unwrap().1;
    assert_eq!((objects(SERVICE), objects(NODE), objects(SLICE)), (2, 1, 0));
    assert!(metrics.revision >= done.revision);
    if world.is_file() {
        assert_eq!(metrics.group_sizes.iter().sum::<u64>(), 2);
        assert!(metrics.syncs >= 2 && metrics.sync_time > Duration::ZERO);
    }
}
