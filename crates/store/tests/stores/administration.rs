//! What administrators of an etcd decide: its users, its quota, and what else is in it.

use std::time::{Duration, Instant};

use base64::{Engine, prelude::BASE64_STANDARD};
use futures::future::{join, join_all};
use portolan_store::{CommitError, Credentials, EtcdOptions, EtcdStore, OpenError, Store};

use crate::{
    servers::{PREFIX, history, insist, through, until},
    support::{SERVICE, commit, etcd::Etcd, options, proxy::Proxy, put, remove},
};

/// The calls that give etcd the user `root`, and require one from then on.
const ROOT: [(&str, &str); 4] = [
    ("/v3/auth/user/add", r#"{"name": "root", "password": "secret"}"#),
    ("/v3/auth/role/add", r#"{"name": "root"}"#),
    ("/v3/auth/user/grant", r#"{"user": "root", "role": "root"}"#),
    ("/v3/auth/enable", "{}"),
];

#[tokio::test]
async fn an_etcd_with_users_is_used_as_one_of_them() {
    let Some(etcd) = Etcd::start() else { return };
    for (path, body) in ROOT {
        etcd.call(path, body);
    }
    let error = EtcdStore::connect(options(&etcd, PREFIX), history()).await.unwrap_err();
    assert!(error.to_string().contains("user name is empty"), "{error}");
    let user = |password: &str| Some(Credentials { name: "root".into(), password: password.into() });
    let wrong = EtcdOptions { credentials: user("wrong"), ..options(&etcd, PREFIX) };
    let error = EtcdStore::connect(wrong, history()).await.unwrap_err();
    assert!(error.to_string().contains("authentication failed"), "{error}");
    let right = EtcdOptions { credentials: user("secret"), ..options(&etcd, PREFIX) };
    assert!(!format!("{right:?}").contains("secret"));
    let store = EtcdStore::connect(right, history()).await.unwrap();
    insist(&store, "n/a").await;
    assert_eq!(store.count(SERVICE), 1);
}

#[tokio::test]
async fn credentials_are_used_once_etcds_authentication_is_on() {
    let Some(etcd) = Etcd::start() else { return };
    let credentials = Some(Credentials { name: "root".into(), password: "secret".into() });
    let with = EtcdOptions { credentials, ..options(&etcd, PREFIX) };
    let store = EtcdStore::connect(with, history()).await.unwrap();
    commit(&store, vec![put(SERVICE, "n/a", "1", None)]).await.unwrap();
    store.refresh().await.unwrap();
    assert_eq!(logins(&etcd), 1, "without authentication, one login is enough");
    for (path, body) in ROOT {
        etcd.call(path, body);
    }
    commit(&store, vec![put(SERVICE, "n/b", "1", None)]).await.unwrap();
    assert_eq!(logins(&etcd), 2);
    store.refresh().await.unwrap();
    assert_eq!((store.count(SERVICE), store.writable()), (2, Ok(())));
    let token = etcd.token("root", "secret");
    etcd.call_as(&token, "/v3/auth/disable", "{}");
    commit(&store, vec![put(SERVICE, "n/c", "1", None)]).await.unwrap();
    assert_eq!(store.count(SERVICE), 3);
}

/// Returns how many logins etcd has processed, from its metrics.
fn logins(etcd: &Etcd) -> u32 {
    let metrics = etcd.ask("/metrics", "").1;
    let processed = metrics.lines().filter(|line| {
        line.starts_with("grpc_server_handled_total{") && line.contains("grpc_method=\"Authenticate\"")
    });
    let counts = processed.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
    counts.sum()
}

#[tokio::test]
async fn a_change_of_etcds_users_renews_the_token() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&secret, "a secret").unwrap();
    let kind = format!("jwt,sign-method=HS256,ttl=1h,priv-key={}", secret.path().display());
    let Some(etcd) = Etcd::start_with("http", &["--auth-token".into(), kind]) else { return };
    for (path, body) in ROOT {
        etcd.call(path, body);
    }
    let credentials = Some(Credentials { name: "root".into(), password: "secret".into() });
    let with = EtcdOptions { credentials, ..options(&etcd, PREFIX) };
    let store = EtcdStore::connect(with, history()).await.unwrap();
    insist(&store, "n/a").await;
    let token = etcd.token("root", "secret");
    // etcd refuses tokens from before this change.
    etcd.call_as(&token, "/v3/auth/user/add", r#"{"name": "other", "password": "other"}"#);
    store.refresh().await.unwrap();
    commit(&store, vec![put(SERVICE, "n/b", "1", None)]).await.unwrap();
    assert_eq!((store.count(SERVICE), store.writable()), (2, Ok(())));
    // Several calls at once are refused, and all are repeated.
    for round in 0..5 {
        let body = format!(r#"{{"name": "other{round}", "password": "other"}}"#);
        let token = etcd.token("root", "secret");
        etcd.call_as(&token, "/v3/auth/user/add", &body);
        let refreshes = join_all((0..20).map(|_| store.refresh()));
        let commits = join_all(
            (0..20)
                .map(|number| commit(&store, vec![put(SERVICE, &format!("n/{round}-{number}"), "1", None)])),
        );
        let (done, committed) = join(refreshes, commits).await;
        for refresh in done {
            refresh.unwrap();
        }
        for commit in committed {
            commit.unwrap();
        }
    }
    assert_eq!((store.count(SERVICE), store.writable()), (102, Ok(())));
}

/// etcd opens the watch of a user who may not read the range, and cancels it in its first message.
#[tokio::test]
async fn an_etcd_that_can_be_read_and_not_watched_is_reported_until_it_can_be_watched() {
    let Some(etcd) = Etcd::start() else { return };
    for (path, body) in ROOT.iter().take(3) {
        etcd.call(path, body);
    }
    let encode = |key: &str| BASE64_STANDARD.encode(key);
    let (all, end) = (encode(&format!("{PREFIX}/")), encode(&format!("{PREFIX}0")));
    let range = format!(r#""key": "{all}", "range_end": "{end}""#);
    let grant = format!(r#"{{"name": "some", "perm": {{"permType": "READWRITE", {range}}}}}"#);
    let head = encode(&format!("{PREFIX}/head"));
    let only_head = format!(r#"{{"name": "some", "perm": {{"permType": "READWRITE", "key": "{head}"}}}}"#);
    etcd.call("/v3/auth/user/add", r#"{"name": "some", "password": "some"}"#);
    etcd.call("/v3/auth/role/add", r#"{"name": "some"}"#);
    etcd.call("/v3/auth/role/grant", &grant);
    etcd.call("/v3/auth/role/grant", &only_head);
    etcd.call("/v3/auth/user/grant", r#"{"user": "some", "role": "some"}"#);
    etcd.call("/v3/auth/enable", "{}");
    let proxy = Proxy::start(etcd.port()).await;
    let credentials = Some(Credentials { name: "some".into(), password: "some".into() });
    let store = EtcdStore::connect(EtcdOptions { credentials, ..through(&proxy) }, history()).await.unwrap();
    let root = etcd.token("root", "secret");
    let revoke = format!(r#"{{"role": "some", {range}}}"#);
    etcd.call_as(&root, "/v3/auth/role/revoke", &revoke);
    // An open watch goes on.
    proxy.cut();
    proxy.mend();
    until("it is reported", || store.writable().is_err_and(|reason| reason.contains("followed"))).await;
    // Reads succeed. That does not say that changes arrive. The probe reads once a second.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        store.refresh().await.unwrap();
        assert!(store.writable().is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    etcd.call_as(&root, "/v3/auth/role/grant", &grant);
    until("it is followed", || store.writable().is_ok()).await;
    insist(&store, "n/a").await;
    assert_eq!((store.count(SERVICE), store.metrics().loads), (1, 1));
}

#[tokio::test]
async fn objects_are_deleted_from_a_full_etcd() {
    let quota = ["--quota-backend-bytes".to_owned(), (4 << 20).to_string()];
    let Some(etcd) = Etcd::start_with("http", &quota) else { return };
    let store = EtcdStore::connect(options(&etcd, PREFIX), history()).await.unwrap();
    let mut number = 0;
    let full = loop {
        let large = put(SERVICE, &format!("n/{number}"), &"x".repeat(500_000), None);
        match commit(&store, vec![large]).await {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
        assert!(number < 100, "etcd is never full");
    };
    assert!(full.to_string().contains("database space exceeded"), "{full}");
    // etcd may have applied it: concurrent writes exceed the quota after they were accepted.
    assert!(matches!(full, CommitError::Unknown(_)), "{full}");
    store.refresh().await.unwrap();
    assert!(store.count(SERVICE) >= number, "all that was confirmed");
    let before = store.count(SERVICE);
    let first = store.get(SERVICE, "n/0").unwrap().revision();
    commit(&store, vec![remove(SERVICE, "n/0", first)]).await.unwrap();
    assert_eq!(store.count(SERVICE), before - 1);
    assert!(store.writable().is_err());
}

#[tokio::test]
async fn a_newer_layout_and_a_foreign_prefix_are_refused() {
    let Some(etcd) = Etcd::start() else { return };
    for (prefix, value) in [("/newer", "2"), ("/foreign", "hello")] {
        let (key, value) = (BASE64_STANDARD.encode(format!("{prefix}/head")), BASE64_STANDARD.encode(value));
        etcd.call("/v3/kv/put", &format!("{{\"key\": \"{key}\", \"value\": \"{value}\"}}"));
        let error = EtcdStore::connect(options(&etcd, prefix), history()).await.unwrap_err();
        match prefix {
            "/newer" => assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error}"),
            _ => assert!(error.to_string().contains("in use by something else"), "{error}"),
        }
    }
}
