//! Kernel settings in files, under `/proc/sys` and `/sys`: each is read first, and written only if it differs.
//!
//! Input: a list of wanted settings. Output: the settings that were written, and those that could not be. The caller
//! decides whether a wrong setting is fatal.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// The folder of sysctls.
const PROC_SYS: &str = "/proc/sys/";

/// One setting, and the value that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The file, such as `/proc/sys/net/ipv4/ip_forward`.
    pub path: &'static str,
    /// The wanted value.
    pub value: u64,
    /// Whether a higher value is accepted.
    pub bound: Bound,
    /// Another file of the same setting, to be written if the first one cannot be.
    pub instead: Option<&'static str>,
}

/// The accepted values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The wanted value only.
    Exactly,
    /// The wanted value and every higher one.
    AtLeast,
}

impl Wanted {
    /// Returns a setting with one accepted value.
    pub const fn exactly(path: &'static str, value: u64) -> Self {
        Self { path, value, bound: Bound::Exactly, instead: None }
    }

    /// Returns the name of the setting, as sysctl has it.
    pub fn name(&self) -> String {
        self.path.strip_prefix(PROC_SYS).map_or_else(|| self.path.to_owned(), |name| name.replace('/', "."))
    }

    /// Returns the command that sets the value on the node.
    pub fn command(&self) -> String {
        match self.path.strip_prefix(PROC_SYS) {
            Some(_) => format!("sysctl -w {}={}", self.name(), self.value),
            None => format!("echo {} > {}", self.value, self.path),
        }
    }

    /// Returns true if the present value is accepted. A setting that cannot be read is not, so that the write returns the
    /// reason.
    fn is_right(&self, present: Option<&str>) -> bool {
        let Some(present) = present else { return false };
        match self.bound {
            Bound::Exactly => present == self.value.to_string(),
            Bound::AtLeast => present.parse::<u64>().is_ok_and(|present| present >= self.value),
        }
    }
}

/// A setting that a start of the proxy writes, and the kernel's default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartValue {
    /// The setting, with the value that a start writes.
    pub written: Wanted,
    /// The kernel's default in a new network namespace.
    pub default: u64,
}

/// A setting that could not be written.
#[derive(Debug)]
pub struct Refused {
    /// The setting and its wanted value.
    pub wanted: Wanted,
    /// The present value; `None` if it cannot be read.
    pub present: Option<String>,
    /// The error of the write.
    pub source: io::Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, present, source } = self;
        let present = present.as_deref().unwrap_or("not readable");
        let command = wanted.command();
        write!(f, "{}: wanted {}, is {present} ({source}); run `{command}`", wanted.path, wanted.value)
    }
}

/// The result for a list of settings.
#[derive(Debug, Default)]
pub struct AppliedSettings {
    /// Settings that were written because they had another value.
    pub written: Vec<Wanted>,
    /// Settings that could not be written.
    pub refused: Vec<Refused>,
}

/// The files of a host: below `/`, or below a folder that takes its place.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl Host {
    /// Creates a host whose `/` is this folder.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Writes settings that differ, in order. An error does not stop the remaining settings.
    pub fn apply(&self, settings: &[Wanted]) -> AppliedSettings {
        let mut outcome = AppliedSettings::default();
        for &wanted in settings {
            let write = |path| self.write(path, &wanted.value.to_string());
            match self.make_right(wanted, write) {
                Some(Ok(())) => outcome.written.push(wanted),
                Some(Err(refused)) => outcome.refused.push(refused),
                None => {}
            }
        }
        outcome
    }

    /// Returns the settings that [`Host::apply`] would write, each with its present value. Leaves out those that cannot
    /// be read, and those whose value is no number.
    pub fn pending(&self, settings: &[Wanted]) -> Vec<(Wanted, u64)> {
        let pending = |&wanted: &Wanted| {
            let present = self.read(wanted.path)?;
            (!wanted.is_right(Some(&present))).then_some((wanted, present.parse().ok()?))
        };
        settings.iter().filter_map(pending).collect()
    }

    /// Returns true if a setting has exactly this value.
    pub fn has(&self, wanted: &Wanted) -> bool {
        self.read(wanted.path).is_some_and(|value| value == wanted.value.to_string())
    }

    /// Returns the settings that differ and that this process may not write. Changes nothing.
    pub fn refusals(&self, settings: &[Wanted]) -> Vec<Refused> {
        let open = |path: &str| self.open(path).map(drop);
        let refused = |&wanted: &Wanted| self.make_right(wanted, open)?.err();
        settings.iter().filter_map(refused).collect()
    }

    /// Writes a setting if it differs. Returns `None` if it does not.
    fn make_right(
        &self,
        wanted: Wanted,
        write: impl Fn(&'static str) -> io::Result<()>,
    ) -> Option<Result<(), Refused>> {
        let present = self.read(wanted.path);
        if wanted.is_right(present.as_deref()) {
            return None;
        }
        let written = write(wanted.path).or_else(|source| match wanted.instead.map(&write) {
            Some(Ok(())) => Ok(()),
            _ => Err(Refused { wanted, present, source }),
        });
        Some(written)
    }

    /// Returns the content of a file without surrounding white space; `None` if it cannot be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.file(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Does the same, and tells a file that is not there (`None`) from one that cannot be read.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn read_if_there(&self, path: &str) -> io::Result<Option<String>> {
        match std::fs::read_to_string(self.file(path)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes to an existing file.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        io::Write::write_all(&mut self.open(path)?, value.as_bytes())
    }

    /// Opens an existing file for writing. Opening the file of a setting changes nothing.
    fn open(&self, path: &str) -> io::Result<std::fs::File> {
        std::fs::OpenOptions::new().write(true).open(self.file(path))
    }

    /// Returns the names in a folder; none if it cannot be read.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.file(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn file(&self, path: &str) -> PathBuf {
        self.root.join(Path::new(path).strip_prefix("/").unwrap_or(Path::new(path)))
    }
}
