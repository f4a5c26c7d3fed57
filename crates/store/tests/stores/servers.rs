//! Several servers on one etcd, and failures of etcd and of the connection to it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use portolan_store::{
    Change, CommitError, EtcdOptions, EtcdStore, History, OpenError, Scope, Store, Transaction,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    suite::follow,
    support::{NODE, SERVICE, commit, connect, content, etcd::Etcd, options, proxy::Proxy, put, remove},
};

pub const PREFIX: &str = "/portolan/v1";
const DEADLINE: Duration = Duration::from_secs(120);

pub fn history() -> History {
    History::default()
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < DEADLINE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Repeats a write until it is carried out, as the API server does. Returns the revision if etcd confirmed the write.
pub async fn insist(store: &dyn Store, key: &str) -> Option<u64> {
    let mut doubtful = false;
    loop {
        match commit(store, vec![put(SERVICE, key, "1", None), put(NODE, &key.replace('/', "-"), "1", None)])
            .await
        {
            Ok(done) => return Some(done.revision),
            Err(CommitError::Unknown(_)) => doubtful = true,
            Err(CommitError::Unavailable(_)) => {}
            Err(CommitError::Conflict { .. }) if doubtful => return None,
            Err(error) => panic!("{key}: {error}"),
        }
        let _ = store.refresh().await;
    }
}

/// The parts of the changes that must be the same at every server.
fn facts(changes: &[Change]) -> Vec<(u64, String, Option<u64>, bool)> {
    let facts = changes.iter().map(|change| {
        let key = change.new.as_ref().or(change.old.as_ref()).unwrap().key().to_owned();
        (change.revision, key, change.old.as_ref().map(|old| old.revision()), change.new.is_some())
    });
    facts.collect()
}

#[tokio::test]
async fn two_servers_see_each_others_writes_with_the_same_revisions() {
    let Some(etcd) = Etcd::start() else { return };
    let (one, other) = (connect(&etcd, PREFIX, history()).await, connect(&etcd, PREFIX, history()).await);
    let begin = one.refresh().await.unwrap();
    assert_eq!(begin, other.revision());
    let first =
        commit(&*one, vec![put(SERVICE, "n/a", "1", None), put(SERVICE, "n/b", "1", None)]).await.unwrap();
    assert!(other.refresh().await.unwrap() >= first.revision);
    assert_eq!(content(&other.get(SERVICE, "n/a").unwrap()), "1");
    let b = other.get(SERVICE, "n/b").unwrap().revision();
    let steps = vec![
        put(SERVICE, "n/c", "1", None),
        remove(SERVICE, "n/b", b),
        remove(SERVICE, "n/a", first.objects[0].revision()),
    ];
    let second = commit(&*other, steps).await.unwrap();
    assert_eq!(one.refresh().await.unwrap(), other.refresh().await.unwrap());
    assert_eq!(one.revision(), other.revision());
    let (seen, same) = (one.changes(SERVICE, begin, 10).unwrap(), other.changes(SERVICE, begin, 10).unwrap());
    assert_eq!(facts(&seen.changes), facts(&same.changes));
    assert_eq!((seen.changes.len(), seen.changes[4].revision), (5, second.revision));
    // A third server that starts later sees the objects with the same revisions.
    let third = connect(&etcd, PREFIX, history()).await;
    assert_eq!(third.get(SERVICE, "n/c").unwrap().revision(), second.objects[0].revision());
    assert_eq!(third.revision(), one.refresh().await.unwrap());
}

#[tokio::test]
async fn watches_go_on_over_a_killed_etcd_and_nothing_answered_is_lost() {
    let Some(mut etcd) = Etcd::start() else { return };
    let stores = [connect(&etcd, PREFIX, history()).await, connect(&etcd, PREFIX, history()).await];
    let begin = stores[0].refresh().await.unwrap();
    assert_eq!(begin, stores[1].revision());
    let mut followers = JoinSet::new();
    for store in &stores {
        let last = |changes: &[Change]| {
            changes
                .iter()
                .filter(|change| change.new.as_ref().is_some_and(|new| new.name().starts_with("last")))
                .count()
                == 4
        };
        followers.spawn(follow(Arc::clone(store), SERVICE, begin, last));
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let (store, stopped) = (Arc::clone(&stores[writer % 2]), stopped.clone());
        writers.spawn(async move {
            let mut done = Vec::new();
            for number in 0.. {
                let key = format!("n/{writer}-{number}");
                done.push((insist(&*store, &key).await, key));
                if *stopped.borrow() {
                    break;
                }
            }
            let key = format!("n/last-{writer}");
            done.push((insist(&*store, &key).await, key));
            done
        });
    }
    for round in 1..=3 {
        let before = stores[0].count(SERVICE);
        until("writes", || stores[0].count(SERVICE) > before + 20 * round).await;
        etcd.restart();
    }
    stop.send_replace(true);
    let done: BTreeMap<String, Option<u64>> =
        writers.join_all().await.into_iter().flatten().map(|(revision, key)| (key, revision)).collect();
    let seen = timeout(DEADLINE, followers.join_all()).await.unwrap();
    assert_eq!(facts(&seen[0]), facts(&seen[1]));
    assert_eq!(seen[0].len(), done.len());
    for change in &seen[0] {
        let key = change.new.as_ref().unwrap().key();
        let answered = done[key];
        assert!(answered.is_none_or(|revision| revision == change.revision + 1), "{key}");
    }
    for store in &stores {
        store.refresh().await.unwrap();
        assert_eq!((store.count(SERVICE), store.count(NODE)), (done.len(), done.len()));
        assert_eq!(store.metrics().loads, 1, "the watch went on where it was");
    }
}

#[tokio::test]
async fn a_cut_connection_is_made_again_and_nothing_is_missed() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::start(etcd.port()).await;
    let near = connect(&etcd, PREFIX, history()).await;
    let far = Arc::new(EtcdStore::connect(through(&proxy), history()).await.unwrap());
    let begin = far.revision();
    let follower = tokio::spawn(follow(far.clone(), SERVICE, begin, |seen| seen.len() == 30));
    for round in 0..3 {
        for number in 0..5 {
            insist(&*near, &format!("n/{round}-{number}")).await;
        }
        proxy.cut();
        for number in 5..10 {
            insist(&*near, &format!("n/{round}-{number}")).await;
        }
        proxy.mend();
    }
    let seen = timeout(DEADLINE, follower).await.unwrap().unwrap();
    assert_eq!(facts(&seen), facts(&near.changes(SERVICE, begin, 100).unwrap().changes));
    assert_eq!(far.metrics().loads, 1);
}

pub fn through(proxy: &Proxy) -> EtcdOptions {
    // Longer than any delay on a busy machine.
    let timeout = Duration::from_secs(60);
    EtcdOptions {
        endpoints: vec![proxy.endpoint()],
        prefix: PREFIX.into(),
        timeout,
        ..EtcdOptions::default()
    }
}

#[tokio::test]
async fn after_a_compaction_everything_is_read_again_and_watches_expire() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::start(etcd.port()).await;
    let near = connect(&etcd, PREFIX, history()).await;
    let far = EtcdStore::connect(through(&proxy), history()).await.unwrap();
    let a = commit(&*near, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap().revision;
    insist(&*near, "n/b").await;
    let seen = far.refresh().await.unwrap();
    let mut signal = far.subscribe(SERVICE);
    signal.borrow_and_update();
    proxy.cut();
    commit(&*near, vec![remove(SERVICE, "n/a", a), put(SERVICE, "n/c", "1", None)]).await.unwrap();
    let last = commit(&*near, vec![put(SERVICE, "n/d", "1", None)]).await.unwrap().revision;
    etcd.call("/v3/kv/compaction", &format!("{{\"revision\": \"{}\"}}", last >> 8));
    proxy.mend();
    timeout(DEADLINE, signal.changed()).await.unwrap().unwrap();
    assert_eq!(far.metrics().loads, 2);
    assert_eq!(far.changes(SERVICE, seen, 10).unwrap_err().requested, seen);
    assert_eq!(far.revision(), near.refresh().await.unwrap());
    let keys = |store: &dyn Store| {
        let shot = store.snapshot(SERVICE, &Scope::default(), None).unwrap();
        shot.objects.iter().map(|object| (object.key().to_owned(), object.revision())).collect::<Vec<_>>()
    };
    assert_eq!(keys(&far), keys(&*near));
    assert_eq!(keys(&far).len(), 3);
    let far_revision = far.revision();
    let next = commit(&far, vec![put(SERVICE, "n/e", "1", None)]).await.unwrap();
    assert_eq!(far.changes(SERVICE, far_revision, 10).unwrap().changes[0].revision, next.revision);
}

#[tokio::test]
async fn an_etcd_that_lost_everything_is_read_anew() {
    let Some(mut etcd) = Etcd::start() else { return };
    let store = connect(&etcd, PREFIX, history()).await;
    for number in 0..5 {
        insist(&*store, &format!("n/{number}")).await;
    }
    let seen = store.revision();
    etcd.restart_empty();
    until("an empty store", || store.count(SERVICE) == 0).await;
    assert!(store.changes(SERVICE, seen, 10).is_err());
    let done = commit(&*store, vec![put(SERVICE, "n/0", "1", None)]).await.unwrap();
    assert_eq!(store.get(SERVICE, "n/0").unwrap().revision(), done.revision);
}

#[tokio::test]
async fn what_others_do_below_the_prefix_is_followed_as_well() {
    let Some(etcd) = Etcd::start() else { return };
    let stores = [connect(&etcd, PREFIX, history()).await, connect(&etcd, PREFIX, history()).await];
    let steps = (0..4).map(|number| put(SERVICE, &format!("n/{number}"), "1", None)).collect();
    let done = commit(&*stores[0], steps).await.unwrap();
    let key = |key: &str| BASE64_STANDARD.encode(format!("{PREFIX}/{key}"));
    // An operator deletes several objects at once and overwrites another with an invalid value.
    etcd.call(
        "/v3/kv/deleterange",
        &format!("{{\"key\": \"{}\", \"range_end\": \"{}\"}}", key("services/n/1"), key("services/n/3")),
    );
    etcd.call("/v3/kv/put", &format!("{{\"key\": \"{}\", \"value\": \"aGVsbG8=\"}}", key("services/n/3")));
    etcd.call("/v3/kv/put", &format!("{{\"key\": \"{}\", \"value\": \"aGVsbG8=\"}}", key("what/is/this")));
    for store in &stores {
        until("the deletions", || store.count(SERVICE) == 1).await;
    }
    let [one, other] = stores.each_ref().map(|store| store.changes(SERVICE, done.revision, 10).unwrap());
    assert_eq!(one.changes.len(), 3);
    assert_eq!(facts(&one.changes), facts(&other.changes));
    let again = commit(&*stores[1], vec![put(SERVICE, "n/1", "2", None)]).await.unwrap();
    assert!(again.revision > one.changes[2].revision);
    // An invalid value affects only its own key.
    let taken = commit(&*stores[1], vec![put(SERVICE, "n/3", "2", None)]).await;
    assert!(matches!(taken, Err(CommitError::Conflict { step: 0, actual: Some(_), .. })), "{taken:?}");
    // A server that starts later reads the state from etcd.
    let key = key("services/n/1");
    let seen = stores[0].refresh().await.unwrap();
    etcd.call("/v3/kv/deleterange", &format!("{{\"key\": \"{key}\"}}"));
    let third = connect(&etcd, PREFIX, history()).await;
    assert_eq!(third.count(SERVICE), 1);
    stores[0].refresh().await.unwrap();
    let known = [&stores[0], &third].map(|store| store.changes(SERVICE, seen, 10).unwrap().changes);
    assert_eq!((known[0].len(), facts(&known[0])), (1, facts(&known[1])));
}

#[tokio::test]
async fn a_new_server_replays_the_history_that_etcd_still_has() {
    let Some(etcd) = Etcd::start() else { return };
    let first = connect(&etcd, PREFIX, history()).await;
    let begin = first.revision();
    for name in ["a", "b", "c"] {
        let done = commit(&*first, vec![put(SERVICE, &format!("n/{name}"), "1", None)]).await.unwrap();
        commit(&*first, vec![put(SERVICE, &format!("n/{name}"), "2", Some(done.revision))]).await.unwrap();
    }
    let b = first.get(SERVICE, "n/b").unwrap().revision();
    commit(&*first, vec![remove(SERVICE, "n/b", b)]).await.unwrap();
    let seen = first.changes(SERVICE, begin, 100).unwrap().changes;
    assert_eq!(seen.len(), 7);
    drop(first);
    let second = connect(&etcd, PREFIX, history()).await;
    assert_eq!(facts(&second.changes(SERVICE, begin, 100).unwrap().changes), facts(&seen));
    assert_eq!((second.count(SERVICE), second.metrics().loads), (2, 1));
    let shot = second.snapshot(SERVICE, &Scope::default(), Some(seen[2].revision)).unwrap();
    assert_eq!(shot.objects.len(), 2, "lists of that time, too");
    // The history that etcd has compacted is not available. The rest still is.
    let forgotten = seen[3].revision;
    etcd.call("/v3/kv/compaction", &format!("{{\"revision\": \"{}\"}}", forgotten >> 8));
    let third = connect(&etcd, PREFIX, history()).await;
    assert!(third.changes(SERVICE, seen[2].revision, 100).is_err());
    let after = forgotten | 255;
    assert_eq!(facts(&third.changes(SERVICE, after, 100).unwrap().changes), facts(&seen[4..]));
    let done = commit(&*third, vec![put(SERVICE, "n/d", "1", None)]).await.unwrap();
    assert_eq!(second.refresh().await.unwrap(), done.revision | 255);
    assert_eq!(
        facts(&second.changes(SERVICE, after, 100).unwrap().changes),
        facts(&third.changes(SERVICE, after, 100).unwrap().changes)
    );
}

#[tokio::test]
async fn a_very_large_deletion_starts_an_empty_history() {
    let Some(etcd) = Etcd::start() else { return };
    let store = connect(&etcd, PREFIX, history()).await;
    for part in 0..3 {
        let steps = (0..100).map(|number| put(SERVICE, &format!("n/{part}-{number}"), "1", None)).collect();
        commit(&*store, steps).await.unwrap();
    }
    let seen = store.revision();
    let key = |key: &str| BASE64_STANDARD.encode(format!("{PREFIX}/{key}"));
    etcd.call(
        "/v3/kv/deleterange",
        &format!("{{\"key\": \"{}\", \"range_end\": \"{}\"}}", key("services/"), key("services0")),
    );
    until("the deletions", || store.count(SERVICE) == 0).await;
    assert_eq!(store.metrics().loads, 2);
    assert!(store.changes(SERVICE, seen, 10).is_err());
    // A server that starts after this has no history.
    let next = connect(&etcd, PREFIX, history()).await;
    assert_eq!(next.count(SERVICE), 0);
    assert!(next.changes(SERVICE, seen, 10).is_err());
}

/// Returns true if every thread of a process is stopped (`proc_pid_stat(5)`). A signal takes effect a moment after it
/// is sent.
fn is_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The second field, a name in parentheses, may contain spaces.
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

#[tokio::test]
async fn an_etcd_that_hangs_leaves_a_write_unknown_and_can_be_read() {
    let Some(etcd) = Etcd::start() else { return };
    // Calls to an etcd that hangs take this long. Those to one that runs must take less.
    let short = EtcdOptions { timeout: Duration::from_secs(16), ..options(&etcd, PREFIX) };
    let store = EtcdStore::connect(short, history()).await.unwrap();
    commit(&store, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap();
    let pid = Pid::from_raw(etcd.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    until("etcd has stopped", || is_stopped(etcd.id())).await;
    let outcome = commit(&store, vec![put(SERVICE, "n/b", "1", None)]).await;
    assert!(matches!(outcome, Err(CommitError::Unknown(_))), "{outcome:?}");
    let unread = store.refresh().await.unwrap_err();
    assert!(
        matches!(unread, CommitError::Unreadable(_)) && !unread.to_string().contains("write"),
        "{unread}"
    );
    assert_eq!(store.count(SERVICE), 1);
    assert_eq!(store.metrics().failed, 1);
    kill_process(pid, Signal::CONT).unwrap();
    // The write was sent. Either it was carried out, or it can be retried, perhaps over another connection.
    let begin = Instant::now();
    loop {
        match commit(&store, vec![put(SERVICE, "n/b", "1", None)]).await {
            Ok(_) | Err(CommitError::Conflict { actual: Some(_), .. }) => break,
            Err(CommitError::Unknown(_) | CommitError::Unavailable(_)) if begin.elapsed() < DEADLINE => {}
            Err(error) => panic!("{error}"),
        }
    }
    store.refresh().await.unwrap();
    assert_eq!(store.count(SERVICE), 2);
}

#[tokio::test]
async fn an_etcd_that_is_away_is_reported_without_a_request() {
    let Some(mut etcd) = Etcd::start() else { return };
    let store = EtcdStore::connect(options(&etcd, PREFIX), history()).await.unwrap();
    assert_eq!(store.writable(), Ok(()));
    etcd.kill();
    until("it is reported", || store.writable().is_err_and(|reason| reason.contains("cannot be read"))).await;
    etcd.restart();
    until("it is back", || store.writable().is_ok()).await;
    assert_eq!(store.metrics().loads, 1);
}

#[tokio::test]
async fn another_endpoint_is_used_when_one_is_dead() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::start(etcd.port()).await;
    let endpoints = vec!["http://127.0.0.1:1".into(), proxy.endpoint(), etcd.endpoint()];
    let several = EtcdOptions { endpoints, ..options(&etcd, PREFIX) };
    let store = EtcdStore::connect(several, history()).await.unwrap();
    insist(&store, "n/a").await;
    proxy.cut();
    for number in 0..10 {
        insist(&store, &format!("n/{number}")).await;
    }
    assert_eq!((store.count(SERVICE), store.metrics().loads), (11, 1));
}

#[tokio::test]
async fn a_member_of_three_may_die_and_come_back() {
    let Some(mut three) = Etcd::start_three() else { return };
    let endpoints: Vec<String> = three.iter().map(Etcd::endpoint).collect();
    let several = EtcdOptions { endpoints, ..options(&three[0], PREFIX) };
    let store = Arc::new(EtcdStore::connect(several, history()).await.unwrap());
    let begin = store.revision();
    let follower = tokio::spawn(follow(store.clone(), SERVICE, begin, |seen| seen.len() == 60));
    let mut number = 0;
    let mut write = async |count: usize| {
        for _ in 0..count {
            insist(&*store, &format!("n/{number}")).await;
            number += 1;
        }
    };
    for etcd in &mut three {
        write(10).await;
        etcd.kill();
        write(10).await;
        etcd.restart();
    }
    let seen = timeout(DEADLINE, follower).await.unwrap().unwrap();
    assert_eq!(seen.len(), 60);
    assert_eq!((store.count(SERVICE), store.metrics().loads), (60, 1));
}

#[tokio::test]
async fn an_endpoint_that_hangs_is_left() {
    let Some(etcd) = Etcd::start() else { return };
    let proxy = Proxy::start(etcd.port()).await;
    // Longer than any delay on a busy machine.
    let timeout = Duration::from_secs(16);
    let endpoints = vec![proxy.endpoint(), etcd.endpoint()];
    let several = EtcdOptions { endpoints, timeout, ..options(&etcd, PREFIX) };
    let store = EtcdStore::connect(several, history()).await.unwrap();
    insist(&store, "n/a").await;
    proxy.stall();
    // A read is retried at another server. A write that the watch does not deliver makes the watch move to another
    // server. A call that stays at the server that hangs fails after `timeout`.
    store.refresh().await.unwrap();
    let done = commit(&store, vec![put(SERVICE, "n/b", "1", None)]).await.unwrap();
    assert_eq!(store.get(SERVICE, "n/b").unwrap().revision(), done.revision);
    assert_eq!(store.metrics().loads, 1);
}

#[tokio::test]
async fn old_revisions_are_compacted_by_any_number_of_servers() {
    let Some(etcd) = Etcd::start() else { return };
    let soon = EtcdOptions { compaction: Some(Duration::from_millis(200)), ..options(&etcd, PREFIX) };
    let store = Arc::new(EtcdStore::connect(soon.clone(), history()).await.unwrap());
    let other = EtcdStore::connect(soon, history()).await.unwrap();
    let first = insist(&*store, "n/a").await.unwrap();
    let key = BASE64_STANDARD.encode(format!("{PREFIX}/head"));
    let old = format!("{{\"key\": \"{key}\", \"revision\": \"{}\"}}", (first >> 8) - 1);
    let mut number = 0;
    let begin = Instant::now();
    while !etcd.ask("/v3/kv/range", &old).1.contains("has been compacted") {
        assert!(begin.elapsed() < DEADLINE, "nothing was compacted");
        number += 1;
        insist(&*store, &format!("n/{number}")).await;
    }
    other.refresh().await.unwrap();
    assert_eq!(other.count(SERVICE), store.count(SERVICE));
}

#[tokio::test]
async fn commits_without_an_etcd_are_unavailable() {
    let Some(mut etcd) = Etcd::start() else { return };
    let store = EtcdStore::connect(options(&etcd, PREFIX), history()).await.unwrap();
    etcd.kill();
    // The first commit may have used a connection whose failure was not yet detected.
    let transaction = || Transaction { steps: vec![put(SERVICE, "n/a", "1", None)] };
    let _ = store.commit(transaction()).await;
    let outcome = store.commit(transaction()).await;
    assert!(matches!(outcome, Err(CommitError::Unavailable(_))), "{outcome:?}");
    let short = EtcdOptions { timeout: Duration::from_secs(4), ..options(&etcd, PREFIX) };
    let error = EtcdStore::connect(short, history()).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::Etcd { endpoints, .. } if endpoints.contains("127.0.0.1")),
        "{error}"
    );
}
