use std::{fs, os::unix::fs::symlink, process::Command, time::Duration};

use portolan_api::{Api, ApiConfig, DeleteOptions, Target};
use portolan_schema::json::json;
use portolan_testkit::Log;
use tokio::{sync::watch, task::JoinHandle, time};

use super::*;
use crate::namespaces::Namespaces;

/// Virtual seconds that a change may take. The folder is read by another thread, which needs real time.
const PATIENCE: usize = 7200;

fn api() -> Arc<Api> {
    Arc::new(Api::new(&ApiConfig::default()))
}

fn service(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]{more}}}\n"
    )
}

/// Follows a folder until the end of the test.
async fn follow(api: &Arc<Api>, folder: &Path) -> (JoinHandle<()>, watch::Sender<bool>) {
    let follower = Follower::start(Arc::clone(api), folder.to_owned()).await.unwrap();
    let (stop, stopping) = watch::channel(false);
    (tokio::spawn(follower.run(stopping)), stop)
}

fn has(api: &Api, name: &str) -> bool {
    api.store().get(Resource::Service, &format!("default/{name}")).is_some()
}

fn service_target(name: &str) -> Target<'_> {
    Target { resource: Resource::Service, namespace: "default", name }
}

/// Waits on paused time.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..PATIENCE {
        if is_so() {
            return;
        }
        step().await;
    }
    panic!("not so: {what}");
}

/// Lets a second of paused time pass. The thread that reads the folder needs real time.
async fn step() {
    std::thread::sleep(Duration::from_millis(1));
    time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_others_always_delete_comes_back_less_and_less_often() {
    let (api, folder) = (api(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("a.yaml"), service("a", "")).unwrap();
    fs::write(folder.path().join("b.yaml"), service("b", "")).unwrap();
    let _running = follow(&api, folder.path()).await;
    let mut deletions = 0;
    // At once, and after 1, 2, 4, 8, 16, 32, 60, 60 ... seconds.
    for _ in 0..600 {
        while has(&api, "a") {
            api.delete_with(service_target("a"), &DeleteOptions::default()).await.unwrap();
            deletions += 1;
            assert!(deletions < 30, "{deletions} deletions");
            // The follower may write it again.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        }
        step().await;
    }
    assert!(deletions > 1, "{deletions} deletions");
    // Another object comes back at once, and this one when the other client has ended.
    api.delete_with(service_target("b"), &DeleteOptions::default()).await.unwrap();
    until("b", || has(&api, "b")).await;
    until("a", || has(&api, "a")).await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_retried_while_the_store_changes() {
    let (api, folder) = (api(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("a.yaml"), service("a", "").replace("name: a", "name: a, namespace: shop"))
        .unwrap();
    let _running = follow(&api, folder.path()).await;
    let namespace = Target { resource: Resource::Namespace, namespace: "", name: "shop" };
    api.delete_with(namespace, &DeleteOptions::default()).await.unwrap();
    let busy = Arc::clone(&api);
    let writes = tokio::spawn(async move {
        for number in 0..u64::MAX {
            let number = number.to_string();
            busy.apply(json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "busy", "annotations": {"number": number}}, "spec": {"ports": [{"port": 80}]}}))
                .await
                .unwrap();
            time::sleep(Duration::from_millis(300)).await;
        }
    });
    // The Namespace goes, with its object, after the first attempt to write the object again.
    let service = || api.store().get(Resource::Service, "shop/a");
    let before = service().unwrap().revision();
    let target = Target { resource: Resource::Service, namespace: "shop", name: "a" };
    api.delete_with(target, &DeleteOptions::default()).await.unwrap();
    for _ in 0..20 {
        step().await;
    }
    let emptying = tokio::spawn(Namespaces::new(&api).run());
    until("the object is back", || service().is_some_and(|it| it.revision() > before)).await;
    emptying.abort();
    writes.abort();
}

#[tokio::test(start_paused = true)]
async fn what_other_objects_prevent_is_retried() {
    let (api, folder) = (api(), tempfile::tempdir().unwrap());
    let other = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "other"},
        "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]}});
    api.apply(other).await.unwrap();
    fs::write(folder.path().join("a.yaml"), service("a", ", clusterIP: 10.96.0.77")).unwrap();
    let _running = follow(&api, folder.path()).await;
    assert!(!has(&api, "a"));
    api.delete_with(service_target("other"), &DeleteOptions::default()).await.unwrap();
    until("the address is free", || has(&api, "a")).await;
}

/// inotify reports nothing for these.
#[tokio::test(start_paused = true)]
async fn changes_behind_links_are_noticed() {
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let at = |name: &str| parent.path().join(name);
    for (folder, name) in [("v1", "one"), ("v2", "two")] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("a.yaml"), service(name, "")).unwrap();
    }
    symlink("../target", at("v1").join("link.yaml")).unwrap();
    symlink("v1", at("manifests")).unwrap();
    let _running = follow(&api, &at("manifests")).await;
    assert!(has(&api, "one"));
    // The file could not be read.
    fs::write(at("target"), service("linked", "")).unwrap();
    until("the target exists", || has(&api, "linked")).await;
    fs::write(at("target"), service("changed", "")).unwrap();
    until("the target has changed", || has(&api, "changed") && !has(&api, "linked")).await;
    symlink("v2", at("next")).unwrap();
    fs::rename(at("next"), at("manifests")).unwrap();
    until("the folder is another one", || has(&api, "two") && !has(&api, "one") && !has(&api, "changed"))
        .await;
    fs::write(at("v2").join("b.yaml"), service("three", "")).unwrap();
    until("the other folder is followed", || has(&api, "three")).await;
}

/// Reads the folder each time that is due, as if nothing were reported, until the object is there. Returns the times before
/// the readings.
async fn read_until_there(follower: &mut Follower, api: &Api, name: &str) -> Vec<Duration> {
    let mut waits = Vec::new();
    while !has(api, name) {
        assert!(waits.len() < 10, "{name} is not there after {waits:?}");
        waits.push(follower.due() - Instant::now());
        time::advance(*waits.last().unwrap()).await;
        let contents = follower.read_confirmed(false).await.unwrap();
        follower.sync(contents).await;
        follower.plan_reading();
    }
    waits
}

#[tokio::test(start_paused = true)]
async fn a_change_that_inotify_does_not_report_is_read_after_30_seconds_and_has_to_stay_for_another() {
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, target) = (parent.path().join("manifests"), parent.path().join("target"));
    fs::create_dir(&folder).unwrap();
    symlink(&target, folder.join("link.yaml")).unwrap();
    fs::write(&target, service("a", "")).unwrap();
    let mut follower = Follower::start(Arc::clone(&api), folder).await.unwrap();
    assert!(follower.events.is_some() && has(&api, "a"));
    for name in ["b", "c"] {
        fs::write(&target, service(name, "")).unwrap();
        assert_eq!(read_until_there(&mut follower, &api, name).await, [30, 1].map(Duration::from_secs));
    }
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_goes_keeps_its_objects_and_is_found_again() {
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, aside) = (parent.path().join("manifests"), parent.path().join("aside"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), service("a", "")).unwrap();
    let _running = follow(&api, &folder).await;
    fs::rename(&folder, &aside).unwrap();
    for _ in 0..300 {
        step().await;
    }
    assert!(has(&api, "a"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("b.yaml"), service("b", "")).unwrap();
    until("the new folder is followed", || has(&api, "b") && !has(&api, "a")).await;
}

/// As at a boot where a mount is late.
#[tokio::test(start_paused = true)]
async fn a_folder_that_is_missing_at_the_start_keeps_its_objects_and_is_read_when_it_comes() {
    let (log, _guard) = Log::listen();
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, aside) = (parent.path().join("manifests"), parent.path().join("aside"));
    assert!(Follower::start(Arc::clone(&api), folder.clone()).await.is_err(), "nothing of it is stored");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), service("a", "")).unwrap();
    drop(Follower::start(Arc::clone(&api), folder.clone()).await.unwrap());
    fs::rename(&folder, &aside).unwrap();
    fs::write(aside.join("a.yaml"), service("b", "")).unwrap();
    let _running = follow(&api, &folder).await;
    steps(40).await;
    assert!(has(&api, "a") && !has(&api, "b"));
    let errors = log.errors();
    assert!(errors.len() == 1 && errors[0].contains("manifests folder cannot be read"), "{errors:#?}");
    fs::rename(&aside, &folder).unwrap();
    until("the folder is read", || has(&api, "b") && !has(&api, "a")).await;
    fs::write(folder.join("c.yaml"), service("c", "")).unwrap();
    until("the folder is followed", || has(&api, "c")).await;
    assert_eq!(log.errors().len(), 1);
}

/// Waits on paused time for readings of the folder.
async fn steps(number: usize) {
    for _ in 0..number {
        step().await;
    }
}

fn cluster_ip(api: &Api, name: &str) -> String {
    let stored = api.store().get(Resource::Service, &format!("default/{name}")).unwrap().decode();
    stored["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

/// As when the folder is a mount that ends and comes back.
#[tokio::test(start_paused = true)]
async fn an_empty_folder_in_place_of_another_prunes_nothing() {
    let (log, _guard) = Log::listen();
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, aside) = (parent.path().join("manifests"), parent.path().join("aside"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), service("a", "")).unwrap();
    fs::write(folder.join("b.yaml"), service("b", "")).unwrap();
    let (running, _stop) = follow(&api, &folder).await;
    let stored = || ["a", "b"].map(|name| api.store().get(Resource::Service, &format!("default/{name}")));
    let state = || stored().map(|it| it.map(|object| object.revision()));
    let before = state();
    let held = || log.errors().iter().filter(|it| it.contains("manifests folder has no manifest")).count();
    for round in 1..=2 {
        fs::rename(&folder, &aside).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("notes.txt"), "").unwrap();
        until("an error", || held() == round).await;
        steps(40).await;
        fs::remove_dir_all(&folder).unwrap();
        fs::rename(&aside, &folder).unwrap();
        let next = format!("next-{round}");
        fs::write(folder.join(format!("{next}.yaml")), service(&next, "")).unwrap();
        until("the folder is followed again", || has(&api, &next)).await;
        assert_eq!(state(), before);
    }
    assert_eq!(held(), 2, "{:#?}", log.errors());
    // A start that finds an empty folder, and an empty manifest in it.
    running.abort();
    fs::rename(&folder, &aside).unwrap();
    fs::create_dir(&folder).unwrap();
    let _running = follow(&api, &folder).await;
    steps(40).await;
    assert_eq!(state(), before);
    fs::write(folder.join("c.yaml"), "").unwrap();
    until("what is declared no more goes", || !has(&api, "a") && !has(&api, "b")).await;
    assert_eq!(held(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_last_manifest_of_the_same_folder_may_go() {
    let (log, _guard) = Log::listen();
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, aside) = (parent.path().join("manifests"), parent.path().join("aside"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), service("a", "")).unwrap();
    let _running = follow(&api, &folder).await;
    fs::remove_file(folder.join("a.yaml")).unwrap();
    until("the object goes", || !has(&api, "a")).await;
    fs::write(folder.join("b.yaml"), service("b", "")).unwrap();
    until("the next object", || has(&api, "b")).await;
    // The same after the folder was exchanged.
    fs::rename(&folder, &aside).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("b.yaml"), service("c", "")).unwrap();
    until("the new folder is followed", || has(&api, "c") && !has(&api, "b")).await;
    fs::remove_file(folder.join("b.yaml")).unwrap();
    until("the last object goes", || !has(&api, "c")).await;
    assert_eq!(log.errors(), Vec::<String>::new());
}

/// A folder that is copied in place of another is there at once, but for what has to be missing for a while to be pruned.
#[tokio::test(start_paused = true)]
async fn what_another_folder_does_not_have_yet_is_not_pruned() {
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, next) = (parent.path().join("manifests"), parent.path().join("next"));
    for folder in [&folder, &next] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(folder.join("a.yaml"), service("a", "")).unwrap();
    fs::write(folder.join("b.yaml"), service("b", "")).unwrap();
    fs::write(next.join("c.yaml"), service("c", "")).unwrap();
    let mut follower = Follower::start(Arc::clone(&api), folder.clone()).await.unwrap();
    let there = || ["a", "b", "c"].map(|name| has(&api, name));
    fs::rename(&folder, parent.path().join("aside")).unwrap();
    fs::rename(&next, &folder).unwrap();
    for name in ["a", "another"] {
        let contents = follower.read_confirmed(true).await.unwrap();
        follower.sync(contents).await;
        assert_eq!(there(), [true; 3]);
        fs::write(folder.join(format!("{name}.yaml")), service(name, "")).unwrap();
    }
    follower.plan_reading();
    assert_eq!(follower.reread, Instant::now() + SOON);
    // A reading for another reason comes first.
    for (after, is_there) in [(Duration::ZERO, true), (SOON, false)] {
        time::advance(after).await;
        let contents = follower.read_confirmed(false).await.unwrap();
        follower.sync(contents).await;
        assert_eq!(there(), [true, is_there, true]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_of_another_folder_may_have_another_name() {
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let (folder, next) = (parent.path().join("manifests"), parent.path().join("next"));
    for (folder, name) in [(&folder, "a.yaml"), (&next, "b.yaml")] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join(name), service("a", "")).unwrap();
    }
    let mut follower = Follower::start(Arc::clone(&api), folder.clone()).await.unwrap();
    let address = cluster_ip(&api, "a");
    fs::rename(&folder, parent.path().join("aside")).unwrap();
    fs::rename(&next, &folder).unwrap();
    for is_reported in [true, false] {
        let contents = follower.read_confirmed(is_reported).await.unwrap();
        follower.sync(contents).await;
        assert_eq!(follower.complaints().collect::<Vec<_>>(), Vec::<&str>::new());
        assert_eq!(cluster_ip(&api, "a"), address);
        time::advance(SOON).await;
    }
    assert_eq!(follower.folder.files.keys().collect::<Vec<_>>(), [&folder.join("b.yaml")]);
}

/// A document that is to be tried again does not lead to one reading after the other.
#[tokio::test(start_paused = true)]
async fn a_folder_that_is_gone_is_read_at_an_interval() {
    let (api, parent) = (api(), tempfile::tempdir().unwrap());
    let folder = parent.path().join("manifests");
    fs::create_dir(&folder).unwrap();
    // Out of all ranges.
    fs::write(folder.join("a.yaml"), service("a", ", clusterIP: 192.0.2.1")).unwrap();
    let mut follower = Follower::start(api, folder.clone()).await.unwrap();
    let retry = follower.retry.at().expect("a document that is refused");
    fs::remove_dir_all(&folder).unwrap();
    tokio::time::advance(retry - Instant::now() + SOON).await;
    for _ in 0..3 {
        let error = follower.read_confirmed(false).await.unwrap_err();
        follower.complain(&error);
        follower.plan_reading();
        assert_eq!(follower.due(), Instant::now() + SOON);
    }
}

/// How many instances of inotify this user may have in this user namespace.
const INSTANCES: &str = "/proc/sys/user/max_inotify_instances";
/// Set in the process that has a user namespace of its own.
const IN_NAMESPACE: &str = "PORTOLAN_TEST_IN_USER_NAMESPACE";

#[test]
fn without_inotify_the_folder_is_read_at_an_interval() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        return builder.enable_all().start_paused(true).build().unwrap().block_on(without_inotify());
    }
    // Only a process with one thread may enter a user namespace.
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c"])
        .arg(format!("echo 0 >{INSTANCES} && exec \"$@\""))
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "manifests::follow::tests::without_inotify_the_folder_is_read_at_an_interval"])
        .arg("--nocapture")
        .env(IN_NAMESPACE, "1")
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn without_inotify() {
    assert!(inotify::Inotify::init().is_err());
    without_inotify_a_change_is_read_after_5_seconds().await;
    let (api, folder) = (api(), tempfile::tempdir().unwrap());
    fs::write(folder.path().join("a.yaml"), service("a", "")).unwrap();
    let _running = follow(&api, folder.path()).await;
    assert!(has(&api, "a"));
    fs::write(folder.path().join("b.yaml"), service("b", "")).unwrap();
    until("the new file", || has(&api, "b")).await;
    fs::remove_file(folder.path().join("a.yaml")).unwrap();
    until("the removed file", || !has(&api, "a")).await;
    // There is an instance again.
    fs::write(INSTANCES, "1").unwrap();
    until("the folder is watched", || inotify::Inotify::init().is_err()).await;
    fs::write(folder.path().join("c.yaml"), service("c", "")).unwrap();
    until("another file", || has(&api, "c")).await;
}

async fn without_inotify_a_change_is_read_after_5_seconds() {
    let (api, folder) = (api(), tempfile::tempdir().unwrap());
    let mut follower = Follower::start(Arc::clone(&api), folder.path().to_owned()).await.unwrap();
    for name in ["a", "b"] {
        fs::write(folder.path().join(format!("{name}.yaml")), service(name, "")).unwrap();
        assert_eq!(read_until_there(&mut follower, &api, name).await, [5, 1].map(Duration::from_secs));
    }
}
