//! Many concurrent writers and followers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use portolan_store::{CommitError, Store, Transaction};
use tokio::task::JoinSet;

use super::follow;
use crate::support::{NODE, SERVICE, World, commit, content, put, remove, require};

const WRITERS: u64 = 8;
const INCREMENTS: u64 = 25;

/// Adds one to a counter, with concurrent writers.
async fn increment(store: &dyn Store, key: &str) -> u64 {
    loop {
        let (expected, value) = match store.latest(NODE, key) {
            Some(object) => (Some(object.revision()), content(&object).parse::<u64>().unwrap()),
            None => (None, 0),
        };
        let other = require(SERVICE, "n/never", None);
        match commit(store, vec![other, put(NODE, key, &(value + 1).to_string(), expected)]).await {
            Ok(done) => return done.revision,
            Err(CommitError::Conflict { step: 1, .. }) => store.refresh().await.unwrap(),
            Err(error) => panic!("{error}"),
        };
    }
}

pub async fn no_increment_is_lost_and_every_change_is_seen_once(world: World) {
    let begin = world.store.revision();
    let total = usize::try_from(WRITERS * INCREMENTS).unwrap();
    let follower =
        tokio::spawn(follow(Arc::clone(&world.store), NODE, begin, move |seen| seen.len() >= total));
    let second = world.second().await;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let here = second.as_ref().filter(|_| writer % 2 == 1).unwrap_or(&world.store);
        let store = Arc::clone(here);
        writers.spawn(async move {
            for round in 0..INCREMENTS {
                let revision = increment(&*store, if round % 5 == 0 { "rare" } else { "often" }).await;
                // Read your own writes.
                assert!(store.revision() >= revision);
            }
        });
    }
    writers.join_all().await;
    world.store.refresh().await.unwrap();
    let value = |key| content(&world.store.get(NODE, key).unwrap()).parse::<u64>().unwrap();
    assert_eq!((value("rare"), value("often")), (WRITERS * INCREMENTS / 5, WRITERS * INCREMENTS * 4 / 5));
    assert_eq!(follower.await.unwrap().len(), total);
}

pub async fn exactly_one_creates_a_key(world: World) {
    let second = world.second().await.unwrap_or_else(|| Arc::clone(&world.store));
    for round in 0..10 {
        let key = format!("n/{round}");
        let attempts = (0..8).map(|writer| {
            let store = if writer % 2 == 0 { &world.store } else { &second };
            store.commit(Transaction { steps: vec![put(SERVICE, &key, &writer.to_string(), None)] })
        });
        let outcomes = futures::future::join_all(attempts).await;
        let won: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        assert_eq!(won.len(), 1, "{outcomes:?}");
        let lost = outcomes.iter().filter(|outcome| matches!(outcome, Err(CommitError::Conflict { .. })));
        assert_eq!(lost.count(), 7, "{outcomes:?}");
        for store in [&world.store, &second] {
            store.refresh().await.unwrap();
            assert_eq!(store.get(SERVICE, &key).unwrap().revision(), won[0].revision);
        }
    }
}

/// A store in this process shows an accepted change to the next writer at once.
pub async fn accepted_writes_are_the_latest(world: World) {
    let store = &*world.store;
    let put_first = store.commit(Transaction { steps: vec![put(SERVICE, "n/a", "1", None)] });
    if world.is_etcd() {
        put_first.await.unwrap();
        assert_eq!(content(&store.latest(SERVICE, "n/a").unwrap()), "1");
        return;
    }
    let accepted = store.latest(SERVICE, "n/a").unwrap();
    let steps = vec![put(SERVICE, "n/a", "2", Some(accepted.revision()))];
    let put_second = store.commit(Transaction { steps });
    let accepted = store.latest(SERVICE, "n/a").unwrap();
    let removed = store.commit(Transaction { steps: vec![remove(SERVICE, "n/a", accepted.revision())] });
    assert!(store.latest(SERVICE, "n/a").is_none());
    let (first, second) = (put_first.await.unwrap(), put_second.await.unwrap());
    assert_eq!((first.revision + 1, second.revision + 1), (second.revision, removed.await.unwrap().revision));
}

pub async fn a_write_is_carried_out_if_its_future_is_dropped(world: World) {
    let seen = Arc::new(AtomicU64::new(0));
    let (count, begin) = (Arc::clone(&seen), world.store.revision());
    let follower = tokio::spawn(follow(Arc::clone(&world.store), SERVICE, begin, move |changes| {
        count.store(changes.len() as u64, SeqCst);
        changes.len() == 2
    }));
    drop(world.store.commit(Transaction { steps: vec![put(SERVICE, "n/a", "1", None)] }));
    drop(world.store.commit(Transaction { steps: vec![put(SERVICE, "n/b", "1", None)] }));
    follower.await.unwrap();
    assert_eq!(seen.load(SeqCst), 2);
}
