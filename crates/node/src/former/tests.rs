use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
const LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
const NAMESPACE: u64 = 7;

/// A host in a temporary folder, with two folders for former values.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn new(boot: &str, settings: &[(&str, &str)]) -> Self {
        let node = Self { folder: tempfile::tempdir().expect("a scratch folder") };
        node.set(BOOT, boot);
        for (path, value) in settings {
            node.set(path, value);
        }
        node
    }

    fn set(&self, path: &str, value: &str) {
        let file = self.folder.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
        fs::write(file, value).expect("a file");
    }

    fn host(&self) -> Host {
        Host::below(self.folder.path())
    }

    fn folders(&self) -> Vec<PathBuf> {
        ["run", "state"].map(|name| self.folder.path().join(name)).into()
    }

    fn former(&self) -> Former {
        Former::new(self.folders(), &self.host(), Ok(NAMESPACE))
    }

    fn plan(&self) -> Plan {
        let known = |path: &str, value| {
            let path = [FORWARD, LOCALNET].into_iter().find(|known| *known == path)?;
            Some(Wanted::exactly(path, value))
        };
        plan(&self.former().read().changes, &self.host(), known, |_| None)
    }
}

fn change(path: &str, former: u64, written: u64) -> Change {
    Change { path: path.to_owned(), former, written }
}

#[test]
fn the_oldest_value_of_this_boot_is_kept_in_every_folder() {
    let node = Node::new("first", &[(FORWARD, "1\n")]);
    assert_eq!(node.former().read(), Remembered::default());
    node.former().add(vec![change(FORWARD, 5, 6)]).expect("folders");
    node.former().add(vec![change(FORWARD, 6, 1), change(LOCALNET, 0, 1)]).expect("folders");
    let wanted = [change(FORWARD, 5, 1), change(LOCALNET, 0, 1)];
    assert_eq!(node.former().read().changes, wanted);
    for folder in node.folders() {
        let one = Former::new(vec![folder], &node.host(), Ok(NAMESPACE));
        assert_eq!(one.read().changes, wanted);
    }
    node.set(BOOT, "second");
    assert_eq!(node.former().read(), Remembered::default(), "a boot resets the settings");
    node.former().add(Vec::new()).expect("folders");
    assert_eq!(node.former().read(), Remembered { is_known: true, ..Remembered::default() });
}

#[test]
fn a_folder_that_was_emptied_is_filled_from_the_other_one() {
    let node = Node::new("boot", &[]);
    node.former().add(vec![change(FORWARD, 0, 1)]).expect("folders");
    for emptied in node.folders() {
        fs::remove_dir_all(&emptied).expect("a folder");
        node.former().add(vec![change(FORWARD, 1, 2)]).expect("folders");
        let one = Former::new(vec![emptied], &node.host(), Ok(NAMESPACE));
        assert_eq!(one.read().changes, [change(FORWARD, 0, 2)]);
    }
}

#[test]
fn other_namespaces_have_other_files() {
    let node = Node::new("boot", &[]);
    let other = Former::new(node.folders(), &node.host(), Ok(NAMESPACE + 1));
    other.add(vec![change(FORWARD, 0, 1)]).expect("folders");
    assert_eq!(node.former().read(), Remembered::default());
    node.former().add(Vec::new()).expect("folders");
    assert_eq!(node.former().remove(), Vec::<String>::new());
    assert_eq!(other.read().changes.len(), 1, "only its own file is removed");
    assert_eq!(other.remove(), Vec::<String>::new());
    for folder in node.folders() {
        let count =
            fs::read_dir(&folder).expect("the folder stays, as an administrator may have made it").count();
        assert_eq!(count, 0, "{}", folder.display());
    }
}

#[test]
fn one_folder_is_enough_and_none_is_an_error() {
    let node = Node::new("boot", &[]);
    let missing = node.folder.path().join("no/such");
    let with = |folders| Former::new(folders, &node.host(), Ok(NAMESPACE));
    with(vec![missing.clone(), node.folders().remove(0)]).add(Vec::new()).expect("one folder");
    let error = with(vec![missing.clone()]).add(Vec::new()).expect_err("no folder").to_string();
    assert_eq!(error, format!("{}: No such file or directory (os error 2)", missing.display()));
    assert_eq!(with(Vec::new()).add(Vec::new()).expect_err("no folder").to_string(), "no folder is given");
    // A file without a namespace could be used in another one.
    let nameless = Former::new(node.folders(), &node.host(), Err("no such option".to_owned()));
    let error = nameless.add(Vec::new()).expect_err("no namespace").to_string();
    assert_eq!(error, "this network namespace has no number: no such option");
    let unknown_boot = Former::new(node.folders(), &Host::below(missing), Ok(NAMESPACE));
    let error = unknown_boot.add(Vec::new()).expect_err("no boot").to_string();
    assert_eq!(error, "/proc/sys/kernel/random/boot_id cannot be read");
}

#[test]
fn a_file_that_cannot_be_used_is_reported_and_replaced() {
    let node = Node::new("boot", &[]);
    node.former().add(vec![change(FORWARD, 0, 1)]).expect("folders");
    let path = node.folders().remove(0).join(node.former().name());
    fs::write(&path, "{\"boot\": 3").expect("a file");
    let found = node.former().read();
    assert_eq!(found.changes, [change(FORWARD, 0, 1)], "the other folder has it");
    assert!(found.faults.len() == 1 && found.faults.iter().all(|fault| fault.contains("kernel-settings-7")));
    node.former().add(Vec::new()).expect("folders");
    assert_eq!(node.former().read().faults, Vec::<String>::new());
    fs::write(&path, "").expect("a file");
    assert_eq!(node.former().read().faults, Vec::<String>::new(), "the end of a power failure");
}

#[test]
fn unchanged_content_is_not_written() {
    let node = Node::new("boot", &[]);
    node.former().add(vec![change(FORWARD, 0, 1)]).expect("folders");
    let path = node.folders().remove(0).join(node.former().name());
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o644);
    let written = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("a file"));
    let first = written(&path);
    node.former().add(vec![change(FORWARD, 9, 1)]).expect("folders");
    assert_eq!(written(&path), first);
    node.former().add(vec![change(FORWARD, 9, 2)]).expect("folders");
    assert_ne!(written(&path), first, "a file is replaced as a whole");
}

#[test]
fn settings_are_put_back_unless_another_program_changed_them() {
    let node = Node::new("boot", &[(FORWARD, "1\n"), (LOCALNET, "1\n")]);
    let unknown = change("/proc/sys/kernel/core_pattern", 0, 1);
    let gone = change("/proc/sys/net/gone", 0, 1);
    let changes = vec![change(FORWARD, 0, 1), change(LOCALNET, 0, 1), unknown, gone];
    node.former().add(changes).expect("folders");
    let restored = |path| Restored { wanted: Wanted::exactly(path, 0), written: 1 };
    assert_eq!(node.plan().restored, [restored(LOCALNET), restored(FORWARD)]);
    node.set(FORWARD, "2\n");
    node.set(LOCALNET, "0\n");
    let plan = node.plan();
    assert_eq!(plan.restored, [], "one has its former value");
    let [kept] = plan.unrestored.as_slice() else { panic!("{plan:?}") };
    assert_eq!((kept.wanted.path, kept.present.as_str()), (FORWARD, "2"));
    assert_eq!(kept.reason, "another program changed it after the agent had written 1");
}

proptest! {
    #[test]
    fn any_content_is_read_or_refused(content in prop::collection::vec(any::<u8>(), 0..200)) {
        let former = Former { boot: "boot".to_owned(), namespace: NAMESPACE, ..Former::default() };
        let _ = former.parse(&content);
    }

    #[test]
    fn what_is_written_is_read(settings in prop::collection::vec((".*", any::<u64>(), any::<u64>()), 0..9)) {
        let former = Former { boot: "boot".to_owned(), namespace: NAMESPACE, ..Former::default() };
        let settings: Vec<Change> =
            settings.into_iter().map(|(path, former, written)| Change { path, former, written }).collect();
        let document = Document { boot: "boot".to_owned(), namespace: NAMESPACE, settings: settings.clone() };
        let text = serde_json::to_vec(&document).expect("JSON");
        prop_assert_eq!(former.parse(&text), Ok(Some(settings)));
    }
}
