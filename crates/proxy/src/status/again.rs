//! `status --watch` without a live view: prints the state again and again.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use portolan_web::ServerAddress;

use super::{NOT_IN_SYNC, StatusOptions, show, status_of};

/// The time between two states.
const PERIOD: Duration = Duration::from_secs(5);

/// Prints the state every [`PERIOD`] until the process is ended or its output is closed. If the agent does not answer, the
/// reason is printed, and the agent is asked again. Returns the exit status of the last state.
///
/// # Errors
/// The output cannot be written.
pub(super) fn run(options: &StatusOptions, place: &ServerAddress) -> anyhow::Result<ExitCode> {
    loop {
        let (shown, status) = match show(options, place) {
            Ok((shown, true)) => (shown, ExitCode::SUCCESS),
            Ok((shown, false)) => (shown, ExitCode::from(NOT_IN_SYNC)),
            Err(error) => (format!("No answer: {error:#}\n"), status_of(&error)),
        };
        let mut stdout = io::stdout().lock();
        match writeln!(stdout, "{shown}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(status),
            written => written?,
        }
        drop(stdout);
        std::thread::sleep(PERIOD);
    }
}
