//! Tests that the removal of a replaced data plane leaves what other data planes of the same tables find there.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use portolan_engine::dataplane::Dataplane as _;
use portolan_iptables::{Programs, Variant};
use portolan_model::Family;
use portolan_testkit::eventually;

use super::example::{ipv4, settings};
use super::kernel::{in_namespace, save};
use super::load::{driven, programs};
use super::wrapped::wrapped;

/// Longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(180);

/// Programs of the older iptables. Each save waits until it is released.
struct Slow {
    directory: PathBuf,
    programs: Programs,
}

impl Slow {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("portolan-slow-save-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let at = directory.display();
        assert!(Command::new("mkfifo").arg(directory.join("gate")).status().unwrap().success());
        let save = format!(
            "[ \"$*\" = --version ] || {{ echo begun >> {at}/saves; read -r _ < {at}/gate; }}\n\
             exec iptables-legacy-save \"$@\""
        );
        Self { programs: wrapped(&directory, Variant::Legacy, "-save", &save), directory }
    }

    fn path(&self, name: &str) -> impl AsRef<Path> {
        self.directory.join(name)
    }

    /// Returns the number of saves that have begun.
    fn saves(&self) -> usize {
        fs::read_to_string(self.path("saves")).unwrap_or_default().lines().count()
    }

    /// Lets one save go on, which has begun or begins soon.
    fn release(&self) {
        let mut gate = OpenOptions::new().write(true).open(self.path("gate")).unwrap();
        gate.write_all(b"\n").unwrap();
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A removal begins anew only after the thread of the suspended one has ended.
#[test]
fn a_removal_that_is_suspended_writes_nothing_and_begins_anew() {
    let slow = Slow::new();
    in_namespace(|| {
        let (family, variant) = (Family::Ipv4, Variant::Legacy);
        let mut active = driven(programs(variant), settings(family));
        active.apply(&ipv4()).unwrap();
        active.resync().unwrap();
        let loaded = save(family, variant);
        let mut former = driven(slow.programs.clone(), settings(family));
        assert!(former.remove_part(None).unwrap());
        former.suspend_removal();
        assert_eq!(active.resync().unwrap().elements, 0, "it finds everything");
        slow.release();
        let begins = || former.remove_part(active.about().claims).unwrap() && slow.saves() == 2;
        eventually(PATIENCE, "another thread reads a save", begins).unwrap();
        assert_eq!(save(family, variant), loaded);

        slow.release();
        let ends = || !former.remove_part(active.about().claims).unwrap();
        eventually(PATIENCE, "the removal ends", ends).unwrap();
        assert_eq!(save(family, variant), loaded, "all of it is kept now");
    });
}
