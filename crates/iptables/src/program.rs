//! The iptables programs of one family: finds and runs them.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use portolan_model::Family;

use super::present::is_own;
use super::rule::{Table, words};
use super::{Meter, Present, Writers, lock};
use portolan_engine::dataplane::Claims;

/// Seconds for which a program waits for the lock of the older iptables (as in kube-proxy).
const LOCK_WAIT: &str = "5";
/// Longest wait for the lock before a restore.
const LOCK_WAIT_BEFORE: Duration = Duration::from_secs(5);
/// The oldest version that supports `iptables-restore -w` and `MASQUERADE --random-fully`.
const OLDEST: (u32, u32, u32) = (1, 6, 2);
/// `XTABLES_RESOURCE_PROBLEM`: the exit status of programs that did not get the lock (`xtables.h`).
const RESOURCE_PROBLEM: i32 = 4;
/// Number of bytes of a program's error output that are kept.
const COMPLAINT_MAX: u64 = 4096;
/// The signal by which the kernel ends programs when memory is short (`signal(7)`).
const SIGKILL: i32 = 9;
/// Messages of the programs that mean: no such rule, no such chain, or no chain that the rule leads to.
const NOT_FOUND: [&str; 6] = [
    "No chain/target/match by that name",
    "No such file or directory",
    "does a matching rule exist",
    "does not exist",
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

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program does not exist or cannot be run.
    #[error("cannot run {program}: {source}; install iptables on this node, or choose another proxy mode")]
    Start {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The pipe to or from a program broke.
    #[error("{program}: {source}")]
    Pipe {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another program held the lock.
    #[error(
        "{program} waited {LOCK_WAIT} s for /run/xtables.lock, which another program holds{message}; see `fuser -v \
         /run/xtables.lock` on the node if this goes on"
    )]
    Locked {
        /// The program.
        program: String,
        /// The program's error output, after a colon.
        message: String,
    },
    /// A restore failed, or a program ended with an error.
    #[error("{program} failed ({status}): {message}{}{}", killed(*.status), refused(.lines))]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The program's error output.
        message: String,
        /// The line of the restore that the program names, with its number and its neighbours: some versions count
        /// one line too many.
        lines: Vec<(usize, String)>,
    },
    /// A table has rules that the program cannot print, so its chains cannot be read.
    #[error(
        "{program} cannot print the {table} table, because another program has written rules into it that iptables does \
         not have; find them with `nft list ruleset` and remove them"
    )]
    Unreadable {
        /// The program.
        program: String,
        /// The table.
        table: String,
    },
    /// The program is older than 1.6.2: its restore cannot wait for the lock, nor masquerade to random ports.
    #[error("{program} is too old ({output}); install iptables 1.6.2 or newer, or choose another proxy mode")]
    TooOld {
        /// The program.
        program: String,
        /// Its output for `--version`.
        output: String,
    },
    /// The output for `--version` has no version.
    #[error("{program} --version printed {output:?}, which has no version in it; is it iptables?")]
    Version {
        /// The program.
        program: String,
        /// Its output.
        output: String,
    },
}

impl From<Error> for portolan_engine::Error {
    fn from(error: Error) -> Self {
        Self::of_mode(error)
    }
}

/// Returns a hint for programs that were ended by SIGKILL: only the kernel does that, when memory is short.
fn killed(status: ExitStatus) -> &'static str {
    if status.signal() == Some(SIGKILL) {
        "was it ended for lack of memory? see `dmesg` on the node, and raise the memory limit"
    } else {
        ""
    }
}

fn refused(lines: &[(usize, String)]) -> String {
    let texts: Vec<String> =
        lines.iter().map(|(number, text)| format!("; line {number} is {text:?}")).collect();
    texts.concat()
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
        self.save(&[], |line| present.line(line))?;
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
    pub(super) fn has_rule(&self, table: Table, chain: &str, rule: &str) -> Result<bool, Error> {
        let table = table.to_string();
        self.ask(["-C", chain, "-t", &table].into_iter().chain(words(rule)))
    }

    /// Returns true if the chain exists.
    pub(super) fn has_chain(&self, table: Table, chain: &str) -> Result<bool, Error> {
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
        if NOT_FOUND.iter().any(|text| message.contains(text)) {
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

/// Runs `work` while another thread reads the program's error output, so that the program and `work` cannot block
/// each other. Returns the result of `work` and the error output.
fn listening(
    complaints: Option<ChildStderr>,
    work: impl FnOnce() -> io::Result<()>,
) -> (io::Result<()>, String) {
    std::thread::scope(|scope| {
        let listen = || complaints.map(complaint).unwrap_or_default();
        match std::thread::Builder::new().spawn_scoped(scope, listen) {
            Ok(listener) => (work(), listener.join().unwrap_or_default()),
            // `work` does not run, so the program finds its pipes closed and ends.
            Err(error) => (Err(error), String::new()),
        }
    })
}

/// Returns the beginning of a program's error output. Reads and drops the rest, so that the program does not block.
fn complaint(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    let _ = stream.by_ref().take(COMPLAINT_MAX).read_to_end(&mut kept);
    let _ = io::copy(&mut stream, &mut io::sink());
    String::from_utf8_lossy(&kept).trim().to_owned()
}

fn failed(
    program: String,
    status: ExitStatus,
    message: String,
    write: &mut dyn FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> Error {
    if status.code() == Some(RESOURCE_PROBLEM)
        && (message.contains("xtables lock") || message.contains("xtables.lock"))
    {
        return Error::Locked { program, message: format!(": {message}") };
    }
    let mut lines = Vec::new();
    if let Some(number) = line_named(&message) {
        let mut finder = Finder { number, current: 1, lines: Vec::new(), line: String::new() };
        let _ = write(&mut finder);
        lines = finder.lines;
    }
    Error::Failed { program, status, message, lines }
}

/// Finds the line number in `iptables-restore: line 7 failed`, `line 7: RULE_APPEND failed`, or `Error occurred at
/// line: 7`.
fn line_named(message: &str) -> Option<usize> {
    let mut words = message.split_whitespace().skip_while(|word| word.trim_end_matches(':') != "line");
    words.nth(1)?.trim_end_matches(':').parse().ok()
}

/// Keeps one line of a text, and the lines before and after it.
struct Finder {
    number: usize,
    current: usize,
    lines: Vec<(usize, String)>,
    line: String,
}

impl fmt::Write for Finder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let wanted = self.current.abs_diff(self.number) <= 1;
            if character != '\n' {
                if wanted {
                    self.line.push(character);
                }
                continue;
            }
            if wanted {
                self.lines.push((self.current, std::mem::take(&mut self.line)));
            }
            if self.current > self.number {
                // The rest of the text is not needed.
                return Err(fmt::Error);
            }
            self.current = self.current.saturating_add(1);
        }
        Ok(())
    }
}

/// Passes text on to a program. Never holds all of it in memory.
struct Pipe {
    input: BufWriter<ChildStdin>,
    error: Option<io::Error>,
}

impl fmt::Write for Pipe {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.input.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}

fn pipe(input: ChildStdin, write: &mut dyn FnMut(&mut dyn fmt::Write) -> fmt::Result) -> io::Result<()> {
    let mut pipe = Pipe { input: BufWriter::with_capacity(1 << 16, input), error: None };
    if write(&mut pipe).is_err() {
        return Err(pipe.error.unwrap_or_else(|| io::Error::other("the restore could not be written")));
    }
    pipe.input.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_lines() {
        assert_eq!(version("iptables v1.8.9 (nf_tables)"), Some((1, 8, 9)));
        assert_eq!(version("iptables v1.8 (legacy)"), Some((1, 8, 0)));
        assert_eq!(version("busybox"), None);
        assert_eq!(line_named("iptables-legacy-restore: line 7 failed"), Some(7));
        assert_eq!(
            line_named("iptables-nft-restore: \nline 3: CHAIN_DEL failed (Device or resource busy)"),
            Some(3)
        );
        assert_eq!(line_named("Chain 'X' does not exist\nError occurred at line: 4\nTry"), Some(4));
        assert_eq!(line_named("cannot open shared object"), None);
    }

    #[test]
    fn a_held_lock_is_distinguished_from_other_failures() {
        let end = |code: i32, message: &str| {
            let status = ExitStatus::from_raw(code << 8);
            failed("iptables-restore".to_owned(), status, message.to_owned(), &mut |_| Ok(())).to_string()
        };
        let locked = end(4, "Another app is currently holding the xtables lock. Stopped waiting after 5s.");
        assert!(locked.starts_with("iptables-restore waited 5 s for /run/xtables.lock"), "{locked}");
        assert!(end(4, "line 3: RULE_APPEND failed").contains("exit status: 4"));
        assert!(end(1, "cannot open the xtables lock").contains("exit status: 1"));
    }

    #[test]
    fn a_program_that_was_killed_may_have_lacked_memory() {
        let end = |status: i32| {
            let status = ExitStatus::from_raw(status);
            failed("iptables-restore".to_owned(), status, String::new(), &mut |_| Ok(())).to_string()
        };
        assert!(end(9).contains("raise the memory limit"), "{}", end(9));
        assert!(!end(15).contains("memory") && !end(1 << 8).contains("memory"));
    }

    #[test]
    fn the_line_that_was_refused_is_found() {
        let write = |out: &mut dyn fmt::Write| {
            out.write_str("*nat\n-A ")?;
            out.write_str("X\nCOM")?;
            out.write_str("MIT\n")
        };
        for (number, expected) in [
            (1, &[(1, "*nat"), (2, "-A X")][..]),
            (2, &[(1, "*nat"), (2, "-A X"), (3, "COMMIT")]),
            (4, &[(3, "COMMIT")]),
            (9, &[]),
        ] {
            let mut finder = Finder { number, current: 1, lines: Vec::new(), line: String::new() };
            let _ = write(&mut finder);
            let lines: Vec<_> = finder.lines.iter().map(|(number, line)| (*number, line.as_str())).collect();
            assert_eq!(lines, expected);
        }
    }
}
