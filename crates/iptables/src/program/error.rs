//! Why an iptables program failed: reads its exit status and error output, and finds the line that it refused.

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use super::LOCK_WAIT;

/// `XTABLES_RESOURCE_PROBLEM`: the exit status of programs that did not get the lock (`xtables.h`).
const RESOURCE_PROBLEM: i32 = 4;
/// The signal by which the kernel ends programs when memory is short (`signal(7)`).
const SIGKILL: i32 = 9;

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
    /// The file of the lock cannot be opened: no restore can succeed here.
    #[error(
        "{program} cannot open its lock file {file} ({message}); run it as root, make the file and its folder writable for \
         this process (in a pod: mount /run/xtables.lock of the node), or set `mode: nftables`"
    )]
    LockFile {
        /// The program.
        program: String,
        /// The file.
        file: String,
        /// The program's error output.
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
         not have; find them with `nft list ruleset`, and move them into a table of their own"
    )]
    Unreadable {
        /// The program.
        program: String,
        /// The table.
        table: String,
    },
    /// The kernel does not list the chains of a table that the program cannot print.
    #[error("table {table} cannot be listed over netlink: {source}")]
    Netlink {
        /// The table.
        table: String,
        /// The error.
        source: portolan_sock::SocketError,
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

/// Returns the error of a program that has ended with a failure. `write` writes the text of its restore again, if it was a
/// restore.
pub(super) fn failed(
    program: String,
    status: ExitStatus,
    message: String,
    write: &mut dyn FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> Error {
    if let Some(file) = lock_file(&message) {
        return Error::LockFile { program, file: file.to_owned(), message };
    }
    if status.code() == Some(RESOURCE_PROBLEM) && message.contains("holding the xtables lock") {
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

/// Returns the lock file that a program could not open: `can't open lock file /run/xtables.lock: Read-only file system`.
pub(super) fn lock_file(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("can't open lock file ")?;
    rest.split_once(": ").map(|(file, _)| file)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_numbers_are_read() {
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
        let file = end(4, "Fatal: can't open lock file /run/xtables.lock: Read-only file system");
        assert!(file.starts_with("iptables-restore cannot open its lock file /run/xtables.lock ("), "{file}");
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
