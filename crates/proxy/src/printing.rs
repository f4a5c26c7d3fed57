//! Prints a report.

use std::io::{self, Write as _};

/// Writes a text to the standard output. A reader that has seen enough and closes it, such as `head`, is no error.
///
/// # Errors
/// The text cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
