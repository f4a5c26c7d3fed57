//! A gate at which programs wait: a FIFO that they read before they run.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use portolan_testkit::{PortolanProcess, eventually};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::PATIENCE;

/// A gate, open at first.
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// Creates a gate in a folder.
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.join("gate"))
    }

    /// Returns a line of a shell script that waits while the gate is shut.
    pub(crate) fn line(&self) -> String {
        let gate = self.0.display();
        // The gate may be removed before it is opened.
        format!("[ ! -p {gate} ] || read -r _ <{gate} || :\n")
    }

    /// Makes every program that starts from now on wait.
    pub(crate) fn hold(&self) {
        mknodat(CWD, &self.0, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    /// Waits until a program waits. It goes on when the file is dropped.
    pub(crate) fn held(&self, proxy: &PortolanProcess) -> File {
        const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();
        let mut held = None;
        // Without a reader, the kernel refuses to open it for writing (fifo(7)).
        let outcome = eventually(PATIENCE, "a program at the gate", || {
            held = OpenOptions::new().write(true).custom_flags(NONBLOCK).open(&self.0).ok();
            held.is_some()
        });
        assert!(outcome.is_ok(), "{}", proxy.output());
        held.unwrap()
    }

    /// Lets the waiting program and all later ones run.
    pub(crate) fn release(&self, held: File) {
        fs::remove_file(&self.0).unwrap();
        drop(held);
    }
}
