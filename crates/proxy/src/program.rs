//! What each binary does around its commands: signals, memory, errors and the exit code.
//!
//! A binary implements [`Program`] for its command line and calls [`main`]. Nothing here knows which commands there are.

use std::ffi::OsString;
use std::process::ExitCode;

/// The command line of a binary.
pub trait Program: Sized {
    /// Parses the arguments. The first one is the name by which the program was called.
    ///
    /// # Errors
    /// The command line is wrong, or asks for the help or the version, which is the text of the error.
    fn from_arguments(arguments: Vec<OsString>) -> Result<Self, clap::Error>;

    /// Returns true if the command runs until a signal stops it and has nothing to finish: it may exit with status 0
    /// at any time.
    fn runs_until_signal(&self) -> bool;

    /// Runs the command. Returns the exit code.
    ///
    /// # Errors
    /// The reason for which the process ends with status 1.
    fn run(self) -> anyhow::Result<ExitCode>;
}

/// The `main` of a binary. Must be called first, before any other thread is started.
pub fn main<P: Program>() -> ExitCode {
    let signals = portolan_sock::signals::hold();
    portolan_sock::memory::configure();
    let program = match P::from_arguments(std::env::args_os().collect()) {
        Ok(program) => program,
        Err(error) => {
            // A failure to print cannot be reported.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    if program.runs_until_signal() {
        signals.end_with_success();
    } else {
        drop(signals);
    }
    match program.run() {
        Ok(code) => code,
        Err(error) if tracing::dispatcher::has_been_set() => {
            tracing::error!("{}", text(&error));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("Error: {}", text(&error));
            ExitCode::FAILURE
        }
    }
}

/// Returns an error and its causes, on one line. The text of many errors has that of their cause, which is then not
/// repeated.
pub fn text(error: &anyhow::Error) -> String {
    let mut all = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if all.is_empty() {
            all = cause;
        } else if !all.contains(&cause) {
            all = format!("{all}: {cause}");
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use anyhow::Context as _;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Whole {
        #[error("--flag: cannot listen: {0}; free the port")]
        Listen(#[from] Error),
        #[error("{0}")]
        Part(#[source] Box<Self>),
    }

    #[test]
    fn each_cause_is_named_once() {
        let listen = || Whole::Part(Box::new(Whole::Listen(ErrorKind::AddrNotAvailable.into())));
        assert_eq!(text(&listen().into()), "--flag: cannot listen: address not available; free the port");
        let outer = Err::<(), _>(listen()).context("no start").unwrap_err();
        assert_eq!(text(&outer), "no start: --flag: cannot listen: address not available; free the port");
        let plain =
            Err::<(), _>(Error::from(ErrorKind::NotFound)).context("a file").context("b").unwrap_err();
        assert_eq!(text(&plain), format!("{plain:#}"));
    }
}
