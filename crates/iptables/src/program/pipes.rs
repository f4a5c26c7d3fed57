//! The pipes to and from an iptables program: none of them may fill while nothing reads it.

use std::fmt;
use std::io::{self, BufWriter, Read, Write as _};
use std::process::{ChildStderr, ChildStdin};

/// Number of bytes of a program's error output that are kept.
const COMPLAINT_MAX: u64 = 4096;

/// Runs `work` while another thread reads the program's error output, so that the program and `work` cannot block
/// each other. Returns the result of `work` and the error output.
pub(super) fn listening(
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
pub(super) fn complaint(mut stream: impl Read) -> String {
    let mut kept = Vec::new();
    let _ = stream.by_ref().take(COMPLAINT_MAX).read_to_end(&mut kept);
    let _ = io::copy(&mut stream, &mut io::sink());
    String::from_utf8_lossy(&kept).trim().to_owned()
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

/// Passes the text that `write` writes to a program.
pub(super) fn pipe(
    input: ChildStdin,
    write: &mut dyn FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> io::Result<()> {
    let mut pipe = Pipe { input: BufWriter::with_capacity(1 << 16, input), error: None };
    if write(&mut pipe).is_err() {
        return Err(pipe.error.unwrap_or_else(|| io::Error::other("the restore could not be written")));
    }
    pipe.input.flush()
}
