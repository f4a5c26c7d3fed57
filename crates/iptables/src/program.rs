//! The iptables programs of one family: finds and runs them.

mod error;
mod pipes;
mod unprinted;

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use portolan_model::Family;

use self::error::{failed, lock_file};
use self::pipes::{complaint, listening, pipe};
use super::present::is_own;
use super::rule::{IptablesTable, words};
use super::{Meter, Present, Writers, lock};
use portolan_engine::dataplane::Claims;

pub use self::error::Error;

/// Seconds for which a program waits for the lock of the older iptables (as in kube-proxy).
const LOCK_WAIT: &str = "5";
/// Longest wait for the lock before a restore.
const LOCK_WAIT_BEFORE: Duration = Duration::from_secs(5);
/// The oldest version that supports `iptables-restore -w` and `MASQUERADE --random-fully`.
const OLDEST: (u32, u32, u32) = (1, 6, 2);
/// Messages of the programs that mean: no such rule, no such chain, or no chain that the rule leads to.
const NOT_FOUND: [&str; 7] = [
    "No chain/target/match by that name",
    "No such file or directory",
    "does a matching rule exist",
    "does not exist",
    // Of a set.
    "doesn't exist",
    "Couldn't load target",
    // iptables-nft 1.8.9, for a missing chain.
    "is incompatible, use 'nft' tool",
];
/// Chains that kubelet creates in the mangle table of the iptables that the node uses.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// One of the kernel's two iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// A front end of nftables.
    Nft,
    /// The older iptables, with tables of its own.
    Legacy,
}

impl Variant {
    /// Returns the place of chains of this variant, see [`Claims::place`].
    pub const fn place(self) -> &'static str {
        match self {
            Self::Nft => "iptables-nft",
            Self::Legacy => "iptables-legacy",
        }
    }

    /// Returns the variant whose chains are at a place.
    pub fn at(place: &str) -> Option<Self> {
        [Self::Nft, Self::Legacy].into_iter().find(|variant| variant.place() == place)
    }
}
/// The programs of one family. They run in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub struct Programs {
    variant: Variant,
    /// The name of the main program, `iptables-nft` for example. `-save` and `-restore` are appended to it.
    name: String,
    /// The path of the lock file; `None` for the usual one.
    lock: Option<PathBuf>,
    writers: Writers,
}

/// Equal if they are the same programs, whatever processes have run.
impl PartialEq for Programs {
    fn eq(&self, other: &Self) -> bool {
        (self.variant, &self.name, &self.lock) == (other.variant, &other.name, &other.lock)
    }
}

impl Eq for Programs {}

impl Programs {
    /// Finds the programs that the node uses: of the variant in which kubelet has left its hint, in either family, or
    /// else those without a suffix.
    pub fn find(family: Family) -> Result<Self, Error> {
        for variant in [Variant::Nft, Variant::Legacy] {
            let has_hint = |family| Self::of(family, variant).is_ok_and(|programs| programs.has_hint(family));
            if Family::BOTH.into_iter().any(has_hint) {
                return Self::of(family, variant);
            }
        }
        Self::named(base(family).to_owned())
    }

    /// Returns the programs of a variant.
    pub fn of(family: Family, variant: Variant) -> Result<Self, Error> {
        let suffix = match variant {
            Variant::Nft => "nft",
            Variant::Legacy => "legacy",
        };
        Self::named(format!("{}-{suffix}", base(family)))
    }

    /// Returns the programs whose rules a reader looks at: those of a variant, or else of each variant that the node has.
    ///
    /// # Errors
    /// The node has no such programs.
    pub fn to_read(family: Family, variant: Option<Variant>) -> Result<Vec<Self>, Error> {
        let found = || Self::find(family);
        if let Some(variant) = variant {
            let of_variant = Self::of(family, variant)
                .or_else(|error| found().ok().filter(|programs| programs.variant == variant).ok_or(error));
            return Ok(vec![of_variant?]);
        }
        let all: Vec<Self> =
            [Variant::Nft, Variant::Legacy].into_iter().filter_map(|it| Self::of(family, it).ok()).collect();
        if all.is_empty() { Ok(vec![found()?]) } else { Ok(all) }
    }

    /// Returns the programs of this name or path. `-save` and `-restore` are appended to it.
    pub fn named(name: String) -> Result<Self, Error> {
        let output = Command::new(&name).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|source| Error::Start { program: name.clone(), source })?;
        let output = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        match version(&output) {
            None => return Err(Error::Version { program: name, output }),
            Some(version) if version < OLDEST => return Err(Error::TooOld { program: name, output }),
            Some(_) => {}
        }
        let variant = if output.contains("nf_tables") { Variant::Nft } else { Variant::Legacy };
        Ok(Self { variant, name, lock: None, writers: Writers::default() })
    }

    /// Returns the same programs for another data plane. [`Programs::writers`] distinguishes the restores of both.
    #[must_use]
    pub fn for_another(&self) -> Self {
        Self { writers: Writers::default(), ..self.clone() }
    }

    /// Uses this file as the lock of the older iptables. In a network namespace that no other program writes to, the
    /// lock need not be that of the whole machine.
    #[must_use]
    pub fn with_lock(self, file: impl Into<PathBuf>) -> Self {
        Self { lock: Some(file.into()), ..self }
    }

    /// Creates the chain by which [`Programs::find`] recognises these programs, as kubelet does. For network namespaces of
    /// trials.
    pub fn leave_hint(&self) -> Result<(), Error> {
        let [hint, _] = HINTS;
        self.restore(|out| writeln!(out, "*mangle\n{hint}- [0:0]\nCOMMIT")).map(|_| ())
    }

    /// Returns the iptables that these programs belong to.
    pub const fn variant(&self) -> Variant {
        self.variant
    }

    /// Returns the chains of this mode that these programs write.
    pub fn claims(&self, family: Family) -> Claims {
        Claims { place: self.variant.place(), family, uses: is_own }
    }

    /// Reads the state of the tables for a full load.
    pub fn present(&self) -> Result<Present, Error> {
        let mut present = Present::default();
        self.save_all(&Present::candidates(), |line| present.line(line))?;
        Ok(present)
    }

    /// Returns the processes that have written restores.
    pub fn writers(&self) -> Writers {
        self.writers.clone()
    }

    /// Waits until no other program holds the lock that a restore needs. The front end of nftables has no lock.
    pub(super) fn await_lock(&self, meter: &Meter) -> Result<(), Error> {
        if self.variant == Variant::Nft {
            return Ok(());
        }
        let wait = lock::wait(self.lock.as_deref(), LOCK_WAIT_BEFORE);
        meter.waited(wait.duration, !wait.is_free);
        if wait.is_free { Ok(()) } else { Err(self.locked()) }
    }

    /// Returns an error if another program holds the lock that a restore needs.
    pub(super) fn lock_is_free(&self) -> Result<(), Error> {
        let is_free =
            self.variant == Variant::Nft || lock::wait(self.lock.as_deref(), Duration::ZERO).is_free;
        if is_free { Ok(()) } else { Err(self.locked()) }
    }

    fn locked(&self) -> Error {
        Error::Locked { program: format!("{}-restore", self.name), message: String::new() }
    }

    /// Runs a restore with the text that `write` writes. `write` may run a second time, to find the line that was
    /// refused, and must write the same text then. Returns how long the restore took.
    pub fn restore(
        &self,
        mut write: impl FnMut(&mut dyn fmt::Write) -> fmt::Result,
    ) -> Result<Duration, Error> {
        let started = Instant::now();
        let program = format!("{}-restore", self.name);
        let mut command = self.command(&program);
        command.args(["-w", LOCK_WAIT, "--noflush", "--counters"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|source| Error::Start { program: program.clone(), source })?;
        // The process has received no input yet, so it has not changed anything.
        self.writers.add(child.id());
        let (input, complaints) = (child.stdin.take(), child.stderr.take());
        let (written, message) =
            listening(complaints, || input.map_or(Ok(()), |input| pipe(input, &mut write)));
        let status = child.wait().map_err(|source| Error::Pipe { program: program.clone(), source })?;
        if !status.success() {
            // If the program failed, its status and message say why. A broken pipe is only a consequence.
            return Err(failed(program, status, message, &mut write));
        }
        written.map_err(|source| Error::Pipe { program, source })?;
        Ok(started.elapsed())
    }

    /// Returns the error for a table that a save left out.
    pub(super) fn unreadable(&self, table: String) -> Error {
        Error::Unreadable { program: format!("{}-save", self.name), table }
    }

    /// Returns true if the rule exists.
    pub(super) fn has_rule(&self, table: IptablesTable, chain: &str, rule: &str) -> Result<bool, Error> {
        let table = table.to_string();
        self.ask(["-C", chain, "-t", &table].into_iter().chain(words(rule)))
    }

    /// Returns true if the chain exists.
    pub(super) fn has_chain(&self, table: IptablesTable, chain: &str) -> Result<bool, Error> {
        self.ask(["-S", chain, "-t", &table.to_string()].into_iter())
    }

    fn ask<'a>(&self, arguments: impl Iterator<Item = &'a str>) -> Result<bool, Error> {
        let program = self.name.clone();
        let mut command = self.command(&program);
        command.args(["-w", LOCK_WAIT]).args(arguments).stdin(Stdio::null());
        let output = command.output().map_err(|source| Error::Start { program: program.clone(), source })?;
        if output.status.success() {
            return Ok(true);
        }
        let message = complaint(&*output.stderr);
        // Other messages, such as that of a lock that is held, do not mean that the rule is missing.
        let is_about_lock = lock_file(&message).is_some();
        if !is_about_lock && NOT_FOUND.iter().any(|text| message.contains(text)) {
            return Ok(false);
        }
        Err(failed(program, output.status, message, &mut |_| Ok(())))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Some(file) = &self.lock {
            command.env(lock::PATH_VARIABLE, file);
        }
        command
    }

    /// Returns true if kubelet has created its chains in the tables of these programs. Reading a table of the older
    /// iptables would create it, so it is read only if it exists.
    fn has_hint(&self, family: Family) -> bool {
        let names = match family {
            Family::Ipv4 => "/proc/thread-self/net/ip_tables_names",
            Family::Ipv6 => "/proc/thread-self/net/ip6_tables_names",
        };
        let is_there =
            || std::fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "mangle"));
        if self.variant == Variant::Legacy && !is_there() {
            return false;
        }
        let mut found = false;
        let saved =
            self.save(&["-t", "mangle"], |line| found |= HINTS.iter().any(|hint| line.starts_with(hint)));
        saved.is_ok() && found
    }

    /// Calls `line` for each line of a save.
    pub fn save(&self, arguments: &[&str], mut line: impl FnMut(&str)) -> Result<(), Error> {
        let program = format!("{}-save", self.name);
        let mut command = self.command(&program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|source| Error::Start { program: program.clone(), source })?;
        let (output, complaints) = (child.stdout.take(), child.stderr.take());
        let (read, message) = listening(complaints, || {
            output.map_or(Ok(()), |output| {
                BufReader::new(output).split(b'\n').try_for_each(|bytes| {
                    line(&String::from_utf8_lossy(&bytes?));
                    Ok(())
                })
            })
        });
        let status = child.wait().map_err(|source| Error::Pipe { program: program.clone(), source })?;
        if !status.success() {
            return Err(failed(program, status, message, &mut |_| Ok(())));
        }
        read.map_err(|source| Error::Pipe { program, source })
    }
}

const fn base(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    }
}

/// Parses the version after the `v`, as in `iptables v1.8.9 (nf_tables)`.
fn version(output: &str) -> Option<(u32, u32, u32)> {
    let word = output.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut numbers = word.split('.').map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("iptables v1.8.9 (nf_tables)"), Some((1, 8, 9)));
        assert_eq!(version("iptables v1.8 (legacy)"), Some((1, 8, 0)));
        assert_eq!(version("busybox"), None);
    }
}
