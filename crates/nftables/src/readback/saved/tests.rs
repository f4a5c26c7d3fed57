//! Files of a real table's elements.

use std::os::unix::fs::PermissionsExt as _;

use portolan_engine::Driven;
use portolan_engine::dataplane::Commit;
use portolan_engine::drift::generation;
use portolan_model::Settings;
use portolan_model::world::Edited;
use portolan_sock::namespace::in_new_network_namespace;
use portolan_sock::{Protocol, Socket};
use portolan_wire::nftables::{Family as WireFamily, IfExists, NftTable, Transaction};
use tempfile::TempDir;

use super::super::super::dataplane::Nftables;
use super::super::super::element::{Data, Key};
use super::super::super::layout::TRANSLATE;
use super::super::{self as readback, View};
use super::*;

/// A table with random Services, in a network namespace of its own, and the folder for its file.
struct Saving {
    settings: Settings,
    nftables: Driven<Nftables>,
    edited: Edited,
    socket: Socket,
    folder: TempDir,
}

impl Saving {
    fn new(family: Family, seed: u64) -> Self {
        let settings = Settings { counters: seed % 2 == 1, ..Settings::plain(family) };
        let folder = tempfile::tempdir().unwrap();
        let saved = SavedElements::in_folder(folder.path(), family);
        let nftables = Nftables::open(settings.clone()).unwrap().with_saved(Some(saved));
        let mut this = Self {
            nftables: Driven::new(settings.clone(), nftables),
            settings,
            edited: Edited::new(seed, 40),
            socket: Socket::open(Protocol::Netfilter).unwrap(),
            folder,
        };
        let first = this.edited.first().changes;
        this.apply(first);
        this.nftables.resync().unwrap();
        this
    }

    fn apply(&mut self, changes: Vec<portolan_model::Change>) {
        let family = self.settings.family;
        let of_family: Vec<_> = changes.into_iter().filter(|change| change.family == family).collect();
        self.nftables.apply(&of_family).unwrap();
    }

    fn edit(&mut self) {
        let changes = self.edited.edit(5).changes;
        self.apply(changes);
    }

    fn place(&self) -> FamilyTable {
        TRANSLATE.place(self.settings.family)
    }

    fn saved(&self) -> SavedElements {
        SavedElements::in_folder(self.folder.path(), self.settings.family)
    }

    /// Saves the elements at the end of a run. Returns the generation of the ruleset.
    fn leave(&mut self) -> u32 {
        let generation = generation(&mut self.socket).unwrap();
        self.nftables.leave(generation);
        generation
    }

    fn take(&mut self) -> Option<ElementRows> {
        let generation = generation(&mut self.socket).unwrap();
        self.saved().take(self.place(), generation)
    }

    /// Starts another process with the same objects.
    fn start(&self) -> Commit {
        let nftables = Nftables::open(self.settings.clone()).unwrap().with_saved(Some(self.saved()));
        let mut nftables = Driven::new(self.settings.clone(), nftables);
        nftables.apply(&self.nftables.table().all().forwardings).unwrap();
        nftables.resync().unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = self.folder.path().read_dir().unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn in_namespace(test: impl FnOnce() + Send) {
    in_new_network_namespace(test).expect("this test needs root");
}

fn listed(rows: &Rows) -> Vec<(Key, Data, Option<u64>)> {
    rows.iter().map(|row| (row.key, row.data, row.comment)).collect()
}

#[test]
fn a_file_has_the_elements_that_the_kernel_has() {
    for (seed, family) in (0..12).flat_map(|seed| Family::BOTH.map(|family| (seed, family))) {
        in_namespace(|| {
            let mut saving = Saving::new(family, seed);
            let mut elements = 0;
            for _ in 0..5 {
                saving.edit();
                saving.leave();
                let saved = saving.take().expect("a file for this generation");
                let place = saving.place();
                let view: View = readback::read(&mut saving.socket, place).unwrap();
                for set in READ_BY_KEY {
                    let in_kernel = view.rows.get(&set).map(listed).unwrap_or_default();
                    assert_eq!(listed(&saved[&set]), in_kernel, "{set:?}, seed {seed}");
                    elements += in_kernel.len();
                }
            }
            assert!(elements > 50, "{elements}");
        });
    }
}

#[test]
fn a_start_uses_a_file_once_and_writes_nothing() {
    in_namespace(|| {
        let mut saving = Saving::new(Family::Ipv4, 1);
        let generation = saving.leave();
        assert_eq!(saving.names(), ["nftables-ipv4.elements"]);
        let commit = saving.start();
        assert_eq!((commit.elements, commit.objects), (0, 0), "{:?}", commit.messages);
        assert_eq!(saving.names(), [""; 0]);
        assert!(saving.saved().take(saving.place(), generation).is_none());

        // What is in the file counts, as long as nothing has been committed.
        saving.leave();
        let path = saving.saved().path;
        let mut bytes = fs::read(&path).unwrap();
        // After the identity: whether elements count, the number of the set, the key.
        let first_data =
            identity_of(&saving, generation).len() + 2 + readback::choice_key(1, 0).as_slice().len();
        bytes[first_data] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(saving.start().elements > 0, "the file is used");
    });
}

fn identity_of(saving: &Saving, generation: u32) -> Vec<u8> {
    Identity::of(generation).unwrap().bytes(saving.place())
}

#[test]
fn a_file_does_not_count_after_a_commit_of_another_program() {
    in_namespace(|| {
        let mut saving = Saving::new(Family::Ipv6, 2);
        saving.leave();
        let mut transaction = Transaction::begin(saving.socket.next_sequence(16), None);
        let family = WireFamily::IPV4;
        transaction.new_table(&NftTable::new(family, "other"), IfExists::Fail);
        transaction.delete_table(family, "other");
        saving.socket.commit(&transaction.finish().unwrap()).unwrap();
        assert!(saving.take().is_none());
        assert_eq!(saving.names(), [""; 0], "it never counts again");

        // Nor is one written for a generation that has passed.
        let before = generation(&mut saving.socket).unwrap();
        while generation(&mut saving.socket).unwrap() == before {
            saving.edit();
        }
        saving.nftables.leave(before);
        assert_eq!(saving.names(), [""; 0]);
    });
}

#[test]
fn a_file_counts_for_one_family_namespace_and_boot() {
    in_namespace(|| {
        let mut saving = Saving::new(Family::Ipv4, 3);
        let generation = saving.leave();
        let place = saving.place();
        let bytes = fs::read(&saving.saved().path).unwrap();
        let identity = Identity::of(generation).unwrap();
        let read = |identity: &Identity, place| {
            read_elements((&bytes[..], 0), &identity.bytes(place), place).unwrap()
        };
        assert!(read(&identity, place).is_some());
        assert!(read(&identity, FamilyTable { family: Family::Ipv6, ..place }).is_none());
        let others = [
            Identity { generation: generation + 1, ..identity.clone() },
            Identity { namespace: identity.namespace + 1, ..identity.clone() },
            Identity { boot: [b'0'; BOOT_LENGTH], ..identity.clone() },
        ];
        for other in others {
            assert!(read(&other, place).is_none(), "{other:?}");
        }
    });
}

#[test]
fn damaged_files_and_those_of_others_are_refused() {
    in_namespace(|| {
        let mut saving = Saving::new(Family::Ipv4, 4);
        let generation = saving.leave();
        let (place, path) = (saving.place(), saving.saved().path);
        let (bytes, head) = (fs::read(&path).unwrap(), identity_of(&saving, generation));
        for length in (0..bytes.len()).step_by(7) {
            assert!(read_elements((&bytes[..length], 1 << 40), &head, place).is_err(), "{length} bytes");
        }
        let damaged = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            read_elements((&bytes[..], 0), &head, place).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(damaged(head.len() + 1, 4).unwrap_err(), "it has an unknown set");
        assert_eq!(damaged(bytes.len() - 1, 1).unwrap_err(), "it has another number of elements");

        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(saving.saved().take(place, generation).is_none());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let elsewhere = saving.folder.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(saving.saved().take(place, generation).is_none());
        fs::remove_file(&path).unwrap();
        fs::rename(&elsewhere, &path).unwrap();
        assert!(saving.saved().take(place, generation).is_some());
    });
}

#[test]
fn a_file_that_was_not_completed_is_replaced() {
    in_namespace(|| {
        let mut saving = Saving::new(Family::Ipv4, 5);
        let new = saving.saved().unfinished();
        fs::write(&new, "half").unwrap();
        saving.leave();
        assert!(!new.exists() && saving.take().is_some());

        let folder = saving.folder.path().join("its own");
        let saved = SavedElements::in_folder(&folder, Family::Ipv4);
        saved.write(saving.place(), 1, false, |_| Ok(())).unwrap();
        assert!(saved.path.exists(), "the folder is created");
        fs::write(saved.unfinished(), "half").unwrap();
        saved.remove().unwrap();
        assert_eq!(folder.read_dir().unwrap().count(), 0);
        fs::remove_dir(folder).unwrap();
        let fails = |write: &mut dyn FnMut(&Element) -> io::Result<()>| {
            let _ = write;
            Err(io::Error::from(ErrorKind::StorageFull))
        };
        assert!(saving.saved().write(saving.place(), 1, false, fails).is_err());
        assert_eq!(saving.names(), [""; 0]);
    });
}
