//! Kernel settings that live in files, under `/proc/sys` and `/sys`: read first, write only what differs.
//!
//! In flows a list of what is wanted; out flows what had to be written and what could not be. Nothing here
//! decides whether a setting that stays wrong is fatal.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Where sysctls are files.
const PROC_SYS: &str = "/proc/sys/";

/// One setting and the value that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The file: `/proc/sys/net/ipv4/ip_forward`.
    pub path: &'static str,
    /// The value.
    pub value: u64,
    /// Whether a higher value is right too.
    pub bound: Bound,
    /// Another file of the same setting, to be written where the first cannot be.
    pub instead: Option<&'static str>,
}

/// Which values are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// This one.
    Exactly,
    /// This one and every higher one.
    AtLeast,
}

impl Wanted {
    /// A setting with one right value.
    pub const fn exactly(path: &'static str, value: u64) -> Self {
        Self { path, value, bound: Bound::Exactly, instead: None }
    }

    /// The command with which an operator sets it on the node.
    pub fn command(&self) -> String {
        match self.path.strip_prefix(PROC_SYS) {
            Some(name) => format!("sysctl -w {}={}", name.replace('/', "."), self.value),
            None => format!("echo {} > {}", self.value, self.path),
        }
    }

    /// A setting that cannot be read counts as different, so that the write says why.
    fn is_right(&self, present: Option<&str>) -> bool {
        let Some(present) = present else { return false };
        match self.bound {
            Bound::Exactly => present == self.value.to_string(),
            Bound::AtLeast => present.parse::<u64>().is_ok_and(|present| present >= self.value),
        }
    }
}

/// A setting that a start of the proxy may have written, and what the kernel has without that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// What a start writes.
    pub written: Wanted,
    /// The kernel's own value in a new network namespace.
    pub default: u64,
}

/// A setting that stays as it is.
#[derive(Debug)]
pub struct Refused {
    /// What it should be.
    pub wanted: Wanted,
    /// What it is, where it can be read.
    pub present: Option<String>,
    /// Why it could not be written.
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

/// What became of a list of settings.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Settings that had another value.
    pub written: Vec<Wanted>,
    /// Settings that could not be made right.
    pub refused: Vec<Refused>,
}

/// The files of a host: below `/`, or below a folder that stands for it.
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
    /// A host whose `/` is this folder.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Makes settings right, in order; one that cannot be does not keep the others from being tried.
    pub fn apply(&self, settings: &[Wanted]) -> Outcome {
        let mut outcome = Outcome::default();
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

    /// Writes the kernel's own value where a setting has the value that a start writes. Another value was written by another
    /// program and stays; a setting that cannot be read is not there.
    pub fn put_back(&self, settings: &[PutBack]) -> Outcome {
        let is_ours = |back: &&PutBack| {
            self.read(back.written.path).is_some_and(|value| value == back.written.value.to_string())
        };
        let wanted: Vec<Wanted> = settings
            .iter()
            .filter(is_ours)
            .map(|back| Wanted::exactly(back.written.path, back.default))
            .collect();
        self.apply(&wanted)
    }

    /// The settings that are not right and that this process may not write. Changes nothing.
    pub fn refusals(&self, settings: &[Wanted]) -> Vec<Refused> {
        let open = |path: &str| self.open(path).map(drop);
        let refused = |&wanted: &Wanted| self.make_right(wanted, open)?.err();
        settings.iter().filter_map(refused).collect()
    }

    /// Nothing where a setting is right, else what became of it.
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

    /// The content of a file without blanks around it, where it can be read.
    pub fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.file(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Writes a file that exists.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        io::Write::write_all(&mut self.open(path)?, value.as_bytes())
    }

    /// A file that exists, to be written. To open the file of a setting changes nothing.
    fn open(&self, path: &str) -> io::Result<std::fs::File> {
        std::fs::OpenOptions::new().write(true).open(self.file(path))
    }

    /// The names in a folder; none where it cannot be read.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.file(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn file(&self, path: &str) -> PathBuf {
        self.root.join(Path::new(path).strip_prefix("/").unwrap_or(Path::new(path)))
    }
}
