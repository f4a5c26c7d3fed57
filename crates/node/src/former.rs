//! The values that kernel settings had before the agent changed them, in files, so that a clean-up can put them back.
//!
//! The agent adds a setting before it writes it. Each folder has one file for each network namespace. All folders have
//! the same content: one of them may be read-only, or emptied when a container ends. A file counts until the next boot,
//! which resets the settings. The first value that was added stays: after a restart or a change of the configuration it
//! is still the one from before the first start.
//!
//! [`plan`] compares the files with the kernel. A setting that has neither the former value nor the one that the agent
//! wrote was changed by another program, and is left alone.
//!
//! It must not know which settings the agent writes. Values from a file are only used for settings that the caller names.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sysctl::{Host, Wanted};

#[cfg(test)]
mod tests;

/// Changes with every boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Largest file that is read, in bytes. A file of the agent has some hundred.
const SIZE_MAX: u64 = 64 << 10;

/// A setting that the agent has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file of the setting, such as `/proc/sys/net/ipv4/ip_forward`.
    pub path: String,
    /// The value from before the first change.
    pub former: u64,
    /// The value that the agent wrote last.
    pub written: u64,
}

/// The content of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    /// The boot in which the settings were changed.
    boot: String,
    /// The network namespace whose settings were changed.
    namespace: u64,
    settings: Vec<Change>,
}

/// The files for one network namespace.
#[derive(Debug, Clone, Default)]
pub struct Former {
    folders: Vec<PathBuf>,
    boot: String,
    namespace: u64,
    /// Why nothing is remembered, if that is so.
    unusable: Option<String>,
}

/// What the files have.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// The changed settings, in the order in which they were changed.
    pub changes: Vec<Change>,
    /// True if a file of this boot exists. The agent has not changed settings that it does not have.
    pub is_known: bool,
    /// Files that cannot be used, each with the reason.
    pub faults: Vec<String>,
}

/// No folder could be written.
#[derive(Debug, thiserror::Error)]
#[error("{}", .reasons.join("; "))]
pub struct NotWritten {
    reasons: Vec<String>,
}

impl Former {
    /// Returns the files in `folders` for a network namespace. `namespace` is a number that no other namespace has until
    /// the next boot, or the reason why there is none. Without a number, without folders, or if the host does not say
    /// which boot this is, nothing is remembered.
    pub fn new(folders: Vec<PathBuf>, host: &Host, namespace: Result<u64, String>) -> Self {
        let unusable = |reason| Self { unusable: Some(reason), ..Self::default() };
        match (host.read(BOOT), namespace) {
            _ if folders.is_empty() => unusable("no folder is given".to_owned()),
            (None, _) => unusable(format!("{BOOT} cannot be read")),
            (_, Err(reason)) => unusable(format!("this network namespace has no number: {reason}")),
            (Some(boot), Ok(namespace)) => Self { folders, boot, namespace, unusable: None },
        }
    }

    /// Returns why nothing is remembered. `None` if there are folders for the files.
    pub fn unusable(&self) -> Option<&str> {
        self.unusable.as_deref()
    }

    /// Returns the folders.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Reads the files. If they differ, the first folder that has a setting decides.
    pub fn read(&self) -> Remembered {
        let mut found = Remembered::default();
        for folder in &self.folders {
            let path = folder.join(self.name());
            match read(&path).and_then(|content| self.parse(&content)) {
                Ok(Some(changes)) => {
                    found.is_known = true;
                    add_missing(&mut found.changes, changes);
                }
                Ok(None) => {}
                Err(reason) => found.faults.push(format!("{}: {reason}", path.display())),
            }
        }
        found
    }

    /// Adds changes that are about to be made, and creates the files. A setting that has been changed before keeps its
    /// former value.
    ///
    /// # Errors
    /// Nothing is remembered, because no folder could be written.
    pub fn add(&self, new: Vec<Change>) -> Result<(), NotWritten> {
        let mut changes = self.read().changes;
        for change in new {
            match changes.iter_mut().find(|known| known.path == change.path) {
                Some(known) => known.written = change.written,
                None => changes.push(change),
            }
        }
        self.write(changes)
    }

    /// Replaces the changes in all folders.
    ///
    /// # Errors
    /// No folder could be written.
    pub fn write(&self, settings: Vec<Change>) -> Result<(), NotWritten> {
        let document = Document { boot: self.boot.clone(), namespace: self.namespace, settings };
        let mut reasons: Vec<String> = self.unusable.iter().cloned().collect();
        let text = match serde_json::to_string_pretty(&document) {
            Ok(text) => text + "\n",
            Err(error) => return Err(NotWritten { reasons: vec![error.to_string()] }),
        };
        let mut is_written = false;
        for folder in &self.folders {
            match write(folder, &self.name(), text.as_bytes()) {
                Ok(()) => is_written = true,
                Err(error) => reasons.push(format!("{}: {error}", folder.display())),
            }
        }
        if is_written { Ok(()) } else { Err(NotWritten { reasons }) }
    }

    /// Removes the files. Returns those that could not be removed, each with the reason. The folders stay: an
    /// administrator may have made them for the control socket.
    pub fn remove(&self) -> Vec<String> {
        let mut left = Vec::new();
        for folder in &self.folders {
            let path = folder.join(self.name());
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                left.push(format!("{}: {error}", path.display()));
            }
        }
        left
    }

    fn name(&self) -> String {
        format!("kernel-settings-{}.json", self.namespace)
    }

    /// Returns the changes of a file; `None` if it is empty or of another boot.
    fn parse(&self, content: &[u8]) -> Result<Option<Vec<Change>>, String> {
        if content.is_empty() {
            return Ok(None);
        }
        let document: Document = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let is_ours = document.boot == self.boot && document.namespace == self.namespace;
        Ok(is_ours.then_some(document.settings))
    }
}

fn add_missing(changes: &mut Vec<Change>, more: Vec<Change>) {
    for change in more {
        if !changes.iter().any(|known| known.path == change.path) {
            changes.push(change);
        }
    }
}

/// Reads a file; empty if it does not exist.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(content),
        Err(error) => return Err(error.to_string()),
    };
    file.take(SIZE_MAX).read_to_end(&mut content).map_err(|error| error.to_string())?;
    Ok(content)
}

/// Replaces a file as a whole, if its content differs. Creates the folder, but not its parents.
fn write(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = folder.join(name);
    if fs::read(&path).is_ok_and(|present| present == content) {
        return Ok(());
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    // A former process with this number may have been killed here.
    drop(fs::remove_file(&temporary));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        drop(fs::remove_file(&temporary));
    }
    written
}

/// A setting that is put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// The setting with its former value.
    pub wanted: Wanted,
    /// The value that the agent wrote.
    pub written: u64,
}

/// A setting that stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrestored {
    /// The setting with its former value.
    pub wanted: Wanted,
    /// The present value.
    pub present: String,
    /// Why it stays.
    pub reason: String,
    /// True if a later clean-up can put it back. False if another program changed it.
    pub is_held: bool,
}

/// What a clean-up does with the changed settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The settings that are put back, the last changed first.
    pub restored: Vec<Restored>,
    /// The settings that stay.
    pub unrestored: Vec<Unrestored>,
}

/// Returns what is done with each of `changes`. Settings that have their former value again, or that the kernel no
/// longer has, need nothing. `known` returns the setting at a path with a value, if it is one that the agent writes.
/// `hold` returns why a setting must stay, if it must.
pub fn plan(
    changes: &[Change],
    host: &Host,
    known: impl Fn(&str, u64) -> Option<Wanted>,
    hold: impl Fn(&Wanted) -> Option<String>,
) -> Plan {
    let mut plan = Plan::default();
    for change in changes.iter().rev() {
        let Some(wanted) = known(&change.path, change.former) else { continue };
        let Some(present) = host.read(wanted.path) else { continue };
        if present == change.former.to_string() {
            continue;
        }
        let is_held = present == change.written.to_string();
        let reason = if is_held {
            hold(&wanted)
        } else {
            Some(format!("another program changed it after the agent had written {}", change.written))
        };
        match reason {
            None => plan.restored.push(Restored { wanted, written: change.written }),
            Some(reason) => plan.unrestored.push(Unrestored { wanted, present, reason, is_held }),
        }
    }
    plan
}
