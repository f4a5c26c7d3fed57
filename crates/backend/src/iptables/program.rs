//! The iptables programs of one family: which of them, and how they are run.

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
use crate::dataplane::Chains;

/// How long a program waits for the lock of the older iptables, in seconds (as in kube-proxy).
const LOCK_WAIT: &str = "5";
/// As long is waited before a restore.
const LOCK_WAIT_BEFORE: Duration = Duration::from_secs(5);
/// The oldest version that knows all that is asked of it: `iptables-restore -w` and `MASQUERADE --random-fully`.
const OLDEST: (u32, u32, u32) = (1, 6, 2);
/// `XTABLES_RESOURCE_PROBLEM`: how programs end that could not get the lock (`xtables.h`).
const RESOURCE_PROBLEM: i32 = 4;
/// Of what a program complains about, no more than this is kept, in bytes.
const COMPLAINT_MAX: u64 = 4096;
/// By this signal the kernel ends programs where memory is short (`signal(7)`).
const SIGKILL: i32 = 9;
/// By these words programs say that there is no such rule, no such chain, or no chain that a rule leads to.
const NOT_FOUND: [&str; 6] = [
    "No chain/target/match by that name",
    "No such file or directory",
    "does a matching rule exist",
    "does not exist",
    "Couldn't load target",
    // iptables-nft 1.8.9 of a chain that is not there.
    "is incompatible, use 'nft' tool",
];
/// Chains that kubelet makes in the mangle table of the iptables that the node uses.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// Which iptables of the kernel's two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// A front end of nftables.
    Nft,
    /// The older one, with tables of its own.
    Legacy,
}

/// Why a program could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no program of this name, or it cannot be run.
    #[error("cannot run {program}: {source}; install iptables on this node, or choose another proxy mode")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The pipe to or from a program broke.
    #[error("{program}: {source}")]
    Pipe {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody else held the lock.
    #[error(
        "{program} waited {LOCK_WAIT} s for /run/xtables.lock, which another program holds{message}; see `fuser -v \
         /run/xtables.lock` on the node if this goes on"
    )]
    Locked {
        /// The program.
        program: String,
        /// What it wrote, after a colon.
        message: String,
    },
    /// A restore failed, or a program ended otherwise than well.
    #[error("{program} failed ({status}): {message}{}{}", killed(*.status), refused(.lines))]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote.
        message: String,
        /// The line of the restore that it names, with its number, between its neighbours: some versions count one
        /// too many.
        lines: Vec<(usize, String)>,
    },
    /// Before 1.6.2, a restore could not be told to wait for the lock, nor masquerade to random ports.
    #[error("{program} is too old ({output}); install iptables 1.6.2 or newer, or choose another proxy mode")]
    TooOld {
        /// The program.
        program: String,
        /// What it says of itself.
        output: String,
    },
    /// A program's version is not understood.
    #[error("{program} --version printed {output:?}, which has no version in it; is it iptables?")]
    Version {
        /// The program.
        program: String,
        /// What it wrote.
        output: String,
    },
}

/// Nothing but the kernel, where memory is short, ends these programs by this signal.
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

/// The programs of one family. They run in the network namespace of the thread that calls.
#[derive(Debug, Clone)]
pub struct Programs {
    variant: Variant,
    /// `iptables-nft`, for example; `-save` and `-restore` are added to it.
    name: String,
    /// A lock that is not the usual one.
    lock: Option<PathBuf>,
    writers: Writers,
}

/// The same programs, whatever they wrote.
impl PartialEq for Programs {
    fn eq(&self, other: &Self) -> bool {
        (self.variant, &self.name, &self.lock) == (other.variant, &other.name, &other.lock)
    }
}

impl Eq for Programs {}

impl Programs {
    /// Those that the node uses: of the variant in which kubelet left its hint, in whichever family, or else those
    /// without a suffix.
    pub fn find(family: Family) -> Result<Self, Error> {
        for variant in [Variant::Nft, Variant::Legacy] {
            let has_hint = |family| Self::of(family, variant).is_ok_and(|programs| programs.has_hint(family));
            if Family::BOTH.into_iter().any(has_hint) {
                return Self::of(family, variant);
            }
        }
        Self::named(base(family).to_owned())
    }

    /// Those of a variant.
    pub fn of(family: Family, variant: Variant) -> Result<Self, Error> {
        let suffix = match variant {
            Variant::Nft => "nft",
            Variant::Legacy => "legacy",
        };
        Self::named(format!("{}-{suffix}", base(family)))
    }

    /// Those of this name or path, to which `-save` and `-restore` are added.
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

    /// With this file for the lock of the older iptables: where tables are in a network namespace that nobody else
    /// writes to, the lock need not be that of the whole machine.
    #[must_use]
    pub fn with_lock(self, file: impl Into<PathBuf>) -> Self {
        Self { lock: Some(file.into()), ..self }
    }

    /// Which iptables these belong to.
    pub const fn variant(&self) -> Variant {
        self.variant
    }

    /// The chains of this mode that these programs write.
    pub fn chains(&self, family: Family) -> Chains {
        Chains { variant: self.variant, family, uses: is_own }
    }

    /// Reads what a full load has to know.
    pub fn present(&self) -> Result<Present, Error> {
        let mut present = Present::default();
        self.save(&[], |line| present.line(line))?;
        Ok(present)
    }

    /// Those that wrote what was restored.
    pub fn writers(&self) -> Writers {
        self.writers.clone()
    }

    /// Waits until nobody else holds the lock that a restore is going to take; a front end of nftables needs none.
    pub(super) fn await_lock(&self, meter: &Meter) -> Result<(), Error> {
        if self.variant == Variant::Nft {
            return Ok(());
        }
        let wait = lock::wait(self.lock.as_deref(), LOCK_WAIT_BEFORE);
        meter.waited(wait.duration, !wait.is_free);
        if wait.is_free { Ok(()) } else { Err(self.locked()) }
    }

    /// Whether the lock that a restore is going to take is free now.
    pub(super) fn lock_is_free(&self) -> Result<(), Error> {
        let is_free =
            self.variant == Variant::Nft || lock::wait(self.lock.as_deref(), Duration::ZERO).is_free;
        if is_free { Ok(()) } else { Err(self.locked()) }
    }

    fn locked(&self) -> Error {
        Error::Locked { program: format!("{}-restore", self.name), message: String::new() }
    }

    /// Runs a restore that `write` writes. It may be written once more, to name a line that was refused: it has to
    /// be the same then. Answers how long that took.
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
        // It has nothing to write yet.
        self.writers.add(child.id());
        let (input, complaints) = (child.stdin.take(), child.stderr.take());
        let (written, message) =
            listening(complaints, || input.map_or(Ok(()), |input| pipe(input, &mut write)));
        let status = child.wait().map_err(|source| Error::Pipe { program: program.clone(), source })?;
        if !status.success() {
            // A program that ends early says why by its status; that the pipe broke says nothing more.
            return Err(failed(program, status, message, &mut write));
        }
        written.map_err(|source| Error::Pipe { program, source })?;
        Ok(started.elapsed())
    }

    /// Whether a rule is there.
    pub(super) fn has_rule(&self, table: Table, chain: &str, rule: &str) -> Result<bool, Error> {
        let table = table.to_string();
        self.ask(["-C", chain, "-t", &table].into_iter().chain(words(rule)))
    }

    /// Whether a chain is there.
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
        // Anything else, such as a lock that is held, says nothing about the rule.
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

    /// Kubelet makes its chains in the tables of one variant only. A look into those of the older one would make
    /// them, so it is only done where they are.
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

    /// Gives `line` each line of what a save prints.
    pub(crate) fn save(&self, arguments: &[&str], mut line: impl FnMut(&str)) -> Result<(), Error> {
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

/// The numbers after the `v`: `iptables v1.8.9 (nf_tables)`.
fn version(output: &str) -> Option<(u32, u32, u32)> {
    let word = output.split_whitespace().find_map(|word| word.strip_prefix('v'))?;
    let mut numbers = word.split('.').map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?, numbers.next().unwrap_or(0)))
}

/// Does something with a program while what it complains about is read, so that neither waits for the other for ever.
fn listening(
    complaints: Option<ChildStderr>,
    work: impl FnOnce() -> io::Result<()>,
) -> (io::Result<()>, String) {
    std::thread::scope(|scope| {
        let listen = || complaints.map(complaint).unwrap_or_default();
        match std::thread::Builder::new().spawn_scoped(scope, listen) {
            Ok(listener) => (work(), listener.join().unwrap_or_default()),
            // Without the work, the program finds its pipes closed and ends.
            Err(error) => (Err(error), String::new()),
        }
    })
}

/// The beginning of what a program complains about; the rest is read and forgotten, so that it can go on.
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

/// `iptables-restore: line 7 failed`, `line 7: RULE_APPEND failed`, or `Error occurred at line: 7`.
fn line_named(message: &str) -> Option<usize> {
    let mut words = message.split_whitespace().skip_while(|word| word.trim_end_matches(':') != "line");
    words.nth(1)?.trim_end_matches(':').parse().ok()
}

/// Keeps a line of a text, and those before and after it.
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
                // Nothing after it matters.
                return Err(fmt::Error);
            }
            self.current = self.current.saturating_add(1);
        }
        Ok(())
    }
}

/// Text on its way to a program, never all of it in memory.
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
    fn a_lock_that_others_hold_is_told_from_other_ends() {
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
