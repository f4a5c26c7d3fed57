#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs;
use std::future::Future;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// Upper limit for the time until a change is noticed.
const PATIENCE: Duration = Duration::from_secs(10);

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

async fn changes(watch: &mut FileWatch) {
    tokio::time::timeout(PATIENCE, watch.changed()).await.expect("the change is noticed").unwrap();
}

/// Checks that the pending events report no change, and that a real change is reported after them, so the watch still
/// works.
async fn changes_only_with(watch: &mut FileWatch, content: &str, change: impl FnOnce()) {
    let mut changed = Box::pin(watch.changed());
    let quiet = tokio::time::timeout(Duration::from_millis(50), &mut changed).await;
    assert!(quiet.is_err(), "there is nothing new");
    change();
    tokio::time::timeout(PATIENCE, changed).await.expect("the change is noticed").unwrap();
    assert_eq!(watch.content.as_deref(), Some(content.as_bytes()));
}

#[test]
fn written_in_place_touched_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    run(async {
        let mut watch = FileWatch::open(&path).unwrap();
        fs::write(&path, "two").unwrap();
        changes(&mut watch).await;
        // The same content, another file beside it, another modification time.
        fs::write(&path, "two").unwrap();
        fs::write(folder.path().join("other"), "x").unwrap();
        fs::File::open(&path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        changes_only_with(&mut watch, "three", || {
            fs::write(folder.path().join("new"), "three").unwrap();
            fs::rename(folder.path().join("new"), &path).unwrap();
        })
        .await;
        // The new file can be written in place too.
        fs::write(&path, "four").unwrap();
        changes(&mut watch).await;
    });
}

#[test]
fn a_file_that_is_being_written_counts_when_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    run(async {
        let mut watch = FileWatch::open(&path).unwrap();
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"tw").unwrap();
        changes_only_with(&mut watch, "two", move || file.write_all(b"o").unwrap()).await;
    });
}

#[test]
fn removed_and_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    run(async {
        let mut watch = FileWatch::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        changes_only_with(&mut watch, "two", || fs::write(&path, "two").unwrap()).await;
        fs::rename(&path, folder.path().join("away")).unwrap();
        changes_only_with(&mut watch, "three", || fs::write(&path, "three").unwrap()).await;
    });
}

#[test]
fn a_file_that_becomes_unreadable_is_reported_once_if_it_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut watch = FileWatch::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let reason = watch.changed().await.unwrap_err();
        assert!(reason.contains("No such file"), "{reason}");
        assert!(tokio::time::timeout(REREAD * 5, watch.changed()).await.is_err(), "it was reported");
        assert_eq!(watch.content(), Some(&b"one"[..]));
        // Another reason: what should be a file is a folder.
        fs::create_dir(&path).unwrap();
        let reason = watch.changed().await.unwrap_err();
        assert!(reason.contains("directory"), "{reason}");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "one").unwrap();
        tokio::time::timeout(REREAD * 5, watch.changed()).await.expect("it is readable again").unwrap();
        assert_eq!(watch.content(), Some(&b"one"[..]));
    });
}

/// As on a network file system, where another host writes.
#[test]
fn a_change_without_an_event_is_noticed_when_it_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut watch = FileWatch::open(&path).unwrap();
        // The file stays open, so no event says that its writer has finished.
        let mut file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all(b"two").unwrap();
        let changed = tokio::time::timeout(REREAD * 2, watch.changed()).await;
        changed.expect("the change is noticed").unwrap();
        assert_eq!(watch.content(), Some(&b"two"[..]));
    });
}

#[test]
fn a_file_that_gets_its_permissions_later_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    run(async {
        let mut watch = FileWatch::open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let events = watch.watch.as_mut().unwrap();
        let is_complete = tokio::time::timeout(PATIENCE, events.relevant()).await.unwrap().unwrap();
        assert!(!is_complete, "the file may be half written");
        fs::write(&path, "two").unwrap();
        assert!(tokio::time::timeout(PATIENCE, events.relevant()).await.unwrap().unwrap());
    });
}

#[test]
fn a_mounted_config_map_swaps_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let publish = |version: &str, content: &str| {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("config"), content).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    publish("..1", "one");
    symlink("..data/config", at("config")).unwrap();
    run(async {
        let mut watch = FileWatch::open(&at("config")).unwrap();
        for (version, before, content) in [("..2", "..1", "two"), ("..3", "..2", "three")] {
            publish(version, content);
            changes(&mut watch).await;
            fs::remove_dir_all(at(before)).unwrap();
        }
        publish("..4", "three");
        changes_only_with(&mut watch, "five", || publish("..5", "five")).await;
    });
}

#[test]
fn a_folder_further_up_is_exchanged() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, content) in [("a", "one"), ("next", "two")] {
        fs::create_dir_all(at(name).join("b/c")).unwrap();
        fs::write(at(name).join("b/c/config"), content).unwrap();
    }
    symlink("a/b", at("link")).unwrap();
    run(async {
        for way in ["a/b/c/config", "link/c/config"] {
            let mut watch = FileWatch::open(&at(way)).unwrap();
            fs::rename(at("a"), at("before")).unwrap();
            fs::rename(at("next"), at("a")).unwrap();
            changes(&mut watch).await;
            assert_eq!(watch.content(), Some(fs::read(at(way)).unwrap().as_slice()));
            fs::rename(at("before"), at("next")).unwrap();
        }
    });
}

#[test]
fn links_in_a_circle_end() {
    let folder = tempfile::tempdir().unwrap();
    symlink("b", folder.path().join("a")).unwrap();
    symlink("a", folder.path().join("b")).unwrap();
    let above = folder.path().components().count();
    assert!(way(&folder.path().join("a")).len() <= LINKS + 1 + above);
}

/// How many instances of inotify this user may have in this user namespace.
const INSTANCES: &str = "/proc/sys/user/max_inotify_instances";
/// Set in the process that has a user namespace of its own.
const IN_NAMESPACE: &str = "PORTOLAN_TEST_IN_USER_NAMESPACE";

#[test]
fn without_inotify_the_file_is_read_at_an_interval() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return without_inotify();
    }
    // Only a process with one thread may enter a user namespace.
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c"])
        .arg(format!("echo 0 >{INSTANCES} && exec \"$@\""))
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "file::tests::without_inotify_the_file_is_read_at_an_interval", "--nocapture"])
        .env(IN_NAMESPACE, "1")
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn without_inotify() {
    let error = Inotify::init().unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::MFILE), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, "one").unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut watch = FileWatch::open(&path).unwrap();
        assert_eq!(watch.content(), Some(&b"one"[..]));
        changes_only_with(&mut watch, "two", || fs::write(&path, "two").unwrap()).await;
    });
    // Half of a change is not reported.
    runtime.block_on(async {
        let mut watch = FileWatch::open(&path).unwrap();
        let mut changed = Box::pin(watch.changed());
        fs::write(&path, "th").unwrap();
        assert!(tokio::time::timeout(RETRY * 3 / 2, &mut changed).await.is_err(), "read once");
        fs::write(&path, "three").unwrap();
        tokio::time::timeout(RETRY * 4, changed).await.expect("the change is noticed").unwrap();
        assert_eq!(watch.content(), Some(&b"three"[..]));
    });
    // There is an instance again: the watch notices what the interval would notice later.
    runtime.block_on(async {
        let mut watch = FileWatch::open(&path).unwrap();
        fs::write(INSTANCES, "1").unwrap();
        fs::write(&path, "four").unwrap();
        tokio::time::timeout(RETRY * 2, watch.changed()).await.expect("the change is noticed").unwrap();
        assert!(watch.watch.is_some());
    });
}
