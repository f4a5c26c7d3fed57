//! Conditions and atomicity of transactions.

use portolan_store::{CommitError, Scope, Step};

use crate::support::{NODE, SERVICE, SLICE, World, commit, content, put, remove, require};

fn conflict(step: usize, key: &str, actual: Option<u64>) -> CommitError {
    CommitError::Conflict { step, resource: SERVICE, key: key.into(), actual }
}

pub async fn a_condition_that_does_not_hold_is_a_conflict_at_its_step(world: World) {
    let store = &*world.store;
    let first = commit(store, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap();
    let revision = first.objects[0].revision();
    assert_eq!(revision, first.revision);
    let steps = vec![put(SERVICE, "n/a", "2", None)];
    assert_eq!(commit(store, steps).await.unwrap_err(), conflict(0, "n/a", Some(revision)));
    let steps = vec![put(SERVICE, "n/b", "2", None), remove(SERVICE, "n/c", revision)];
    assert_eq!(commit(store, steps).await.unwrap_err(), conflict(1, "n/c", None));
    let steps = vec![put(SERVICE, "n/b", "2", Some(revision))];
    assert_eq!(commit(store, steps).await.unwrap_err(), conflict(0, "n/b", None));
    let second = commit(store, vec![put(SERVICE, "n/a", "2", Some(revision))]).await.unwrap();
    assert!(second.revision > revision);
    let steps = vec![require(SERVICE, "n/a", Some(second.revision)), remove(SERVICE, "n/a", revision)];
    assert_eq!(commit(store, steps).await.unwrap_err(), conflict(1, "n/a", Some(second.revision)));
    assert_eq!(content(&store.get(SERVICE, "n/a").unwrap()), "2");
    let gone = commit(store, vec![remove(SERVICE, "n/a", second.revision)]).await.unwrap();
    assert!(gone.revision > second.revision && gone.objects.is_empty());
    assert!(store.get(SERVICE, "n/a").is_none() && store.latest(SERVICE, "n/a").is_none());
    assert!(store.revision() >= gone.revision);
}

pub async fn a_transaction_is_done_whole_or_not_at_all(world: World) {
    let store = &*world.store;
    let before = store.refresh().await.unwrap();
    commit(store, vec![put(NODE, "x", "1", None)]).await.unwrap();
    let steps = vec![put(SERVICE, "n/a", "1", None), put(SLICE, "n/a", "1", None), put(NODE, "x", "2", None)];
    assert!(matches!(commit(store, steps).await, Err(CommitError::Conflict { step: 2, .. })));
    store.refresh().await.unwrap();
    assert_eq!((store.count(SERVICE), store.count(SLICE), store.count(NODE)), (0, 0, 1));
    assert!(store.changes(SERVICE, before, 10).unwrap().changes.is_empty());

    let steps = vec![put(SERVICE, "n/a", "1", None), put(SLICE, "n/a", "1", None), put(NODE, "y", "2", None)];
    let done = commit(store, steps).await.unwrap();
    let keys: Vec<&str> = done.objects.iter().map(|object| object.key()).collect();
    assert_eq!(keys, ["n/a", "n/a", "y"]);
    assert_eq!((store.count(SERVICE), store.count(SLICE), store.count(NODE)), (1, 1, 2));
    let scope = Scope { namespace: Some("n"), ..Scope::default() };
    assert_eq!(store.snapshot(SLICE, &scope, None).unwrap().objects.len(), 1);
}

pub async fn a_requirement_writes_nothing(world: World) {
    let store = &*world.store;
    let done = commit(store, vec![put(NODE, "x", "1", None)]).await.unwrap();
    let before = store.refresh().await.unwrap();
    let only =
        commit(store, vec![require(NODE, "x", Some(done.revision)), require(NODE, "y", None)]).await.unwrap();
    assert_eq!((only.revision, only.objects.len()), (before, 0));
    assert!(matches!(
        commit(store, vec![require(NODE, "y", Some(done.revision))]).await,
        Err(CommitError::Conflict { step: 0, actual: None, .. })
    ));
    let steps = vec![require(NODE, "y", None), put(SERVICE, "n/a", "1", None)];
    let with = commit(store, steps).await.unwrap();
    assert_eq!((with.objects.len(), with.objects[0].revision()), (1, with.revision));
    assert_eq!(store.get(NODE, "x").unwrap().revision(), done.revision);
    assert_eq!(commit(store, Vec::new()).await.unwrap().objects.len(), 0);
}

pub async fn the_revision_of_another_step_does_not_meet_a_condition(world: World) {
    let store = &*world.store;
    let done = commit(store, vec![put(NODE, "x", "1", None), put(NODE, "y", "1", None)]).await.unwrap();
    let (x, y) = (done.objects[0].revision(), done.objects[1].revision());
    for wrong in [y, store.revision() + 1, 1, 0, u64::MAX] {
        let outcome = commit(store, vec![put(NODE, "x", "2", Some(wrong))]).await;
        let Err(CommitError::Conflict { actual, .. }) = outcome else { panic!("{wrong}: {outcome:?}") };
        assert_eq!(actual, Some(x), "{wrong}");
        assert!(commit(store, vec![put(NODE, "z", "2", Some(wrong))]).await.is_err(), "{wrong}");
    }
    commit(store, vec![put(NODE, "x", "2", Some(x)), remove(NODE, "y", y)]).await.unwrap();
}

pub async fn objects_may_be_large(world: World) {
    let store = &*world.store;
    let large = "é\"\\".repeat(200_000);
    commit(store, vec![put(SERVICE, "n/a", &large, None), put(NODE, "x", "1", None)]).await.unwrap();
    assert_eq!(content(&store.get(SERVICE, "n/a").unwrap()), large);

    if world.is_etcd() {
        let huge = "x".repeat(2 << 20);
        let error = commit(store, vec![put(SERVICE, "n/b", &huge, None)]).await.unwrap_err();
        assert!(matches!(&error, CommitError::TooLarge(_)), "{error:?}");
        let many = (0..128).map(|number| put(SERVICE, &format!("m/{number}"), "1", None)).collect();
        let error = commit(store, many).await.unwrap_err();
        assert!(matches!(&error, CommitError::TooLarge(text) if text.contains("128")), "{error:?}");
    }
}

pub async fn a_transaction_of_forty_steps_is_taken(world: World) {
    let store = &*world.store;
    let after = store.revision();
    let many = (0..40).map(|number| put(SERVICE, &format!("m/{number:02}"), "1", None)).collect();
    let done = commit(store, many).await.unwrap();
    assert!(done.objects.is_sorted_by(|one, other| one.revision() < other.revision()));
    let revisions: Vec<u64> = done.objects.iter().map(|object| object.revision()).collect();
    let changes = super::changes(store, SERVICE, after, 7).unwrap();
    assert_eq!(changes.iter().map(|change| change.revision).collect::<Vec<_>>(), revisions);
    let steps = done.objects.iter().map(|object| remove(SERVICE, object.key(), object.revision())).collect();
    let gone = commit(store, steps).await.unwrap();
    let removed = super::changes(store, SERVICE, done.revision, 7).unwrap();
    assert_eq!(removed.len(), 40);
    assert_eq!(removed[39].revision, gone.revision);
}

pub async fn a_transaction_may_have_as_many_steps_as_the_store_says(world: World) {
    let store = &*world.store;
    assert_eq!(store.most_steps().is_some(), world.is_etcd());
    let most = store.most_steps().unwrap_or(127);
    let puts = |number: usize| {
        (0..number).map(|number| put(SERVICE, &format!("m/{number:03}"), "1", None)).collect()
    };
    let done = commit(store, puts(most)).await.unwrap();
    let of = |make: fn(&str, u64) -> Step| {
        done.objects.iter().map(move |object| make(object.key(), object.revision()))
    };
    commit(store, of(|key, revision| require(SERVICE, key, Some(revision))).collect()).await.unwrap();
    commit(store, of(|key, revision| remove(SERVICE, key, revision)).collect()).await.unwrap();
    assert_eq!(store.count(SERVICE), 0);
    let more = commit(store, puts(most + 1)).await;
    assert_eq!(matches!(more, Err(CommitError::TooLarge(_))), world.is_etcd(), "{more:?}");
}
