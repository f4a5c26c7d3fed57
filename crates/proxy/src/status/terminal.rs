//! The terminal of the live view: another screen without a cursor, keys that come at once, and everything restored at the
//! end, also after a panic.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::{Mutex, Once, PoisonError};

use portolan_status::live::{Line, Look};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// Columns and lines if the terminal does not know.
const USUAL_SIZE: (usize, usize) = (80, 24);
/// Shows another screen and hides the cursor (xterm's private modes 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and the former screen.
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
/// No control character has this function (`_POSIX_VDISABLE`).
const NO_KEY: u8 = 0;

/// What the terminal was like, while the live view uses it.
static FORMER: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal while the live view uses it. It is restored when this is dropped.
pub(super) struct Terminal {
    has_colours: bool,
}

impl Terminal {
    /// Takes over the terminal of the process.
    ///
    /// # Errors
    /// Standard input and output are not a terminal, or it does not accept the settings.
    pub(super) fn enter() -> io::Result<Self> {
        let (stdin, mut stdout) = (io::stdin(), io::stdout());
        if !stdin.is_terminal() || !stdout.is_terminal() {
            let text = "--watch needs a terminal; leave it out, or give the pod one (kubectl exec -it)";
            return Err(io::Error::other(text));
        }
        let former = tcgetattr(stdin.as_fd())?;
        let mut settings = former.clone();
        settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // A stopped or killed view would leave the terminal as it is. Ctrl-C comes as a signal, which is handled.
        settings.special_codes[SpecialCodeIndex::VSUSP] = NO_KEY;
        settings.special_codes[SpecialCodeIndex::VQUIT] = NO_KEY;
        *FORMER.lock().unwrap_or_else(PoisonError::into_inner) = Some(former);
        restore_at_panic();
        // From here on a drop restores.
        let terminal =
            Self { has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
        tcsetattr(stdin.as_fd(), OptionalActions::Now, &settings)?;
        stdout.write_all(ENTER.as_bytes())?;
        stdout.flush()?;
        Ok(terminal)
    }

    /// Returns columns and lines.
    pub(super) fn size() -> (usize, usize) {
        match tcgetwinsize(io::stdout().as_fd()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Shows lines in the place of the former ones.
    pub(super) fn show(&self, lines: &[Line]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(drawn(lines, self.has_colours).as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns what draws lines from the upper left corner. Nothing is cleared first, so that the screen does not flicker.
fn drawn(lines: &[Line], has_colours: bool) -> String {
    let mut text = String::from("\x1b[H");
    for (index, Line { look, text: line }) in lines.iter().enumerate() {
        // A line break behind the last line would move the screen.
        text.push_str(if index > 0 { "\r\n" } else { "" });
        let code = match (look, has_colours) {
            (Look::Plain, _) => "0",
            (Look::Good, true) => "1;32",
            (Look::Bad, true) => "1;31",
            (Look::Head | Look::Good | Look::Bad, _) => "1",
        };
        // Writing to a String does not fail.
        let _ = write!(text, "\x1b[{code}m{line}\x1b[0m\x1b[K");
    }
    text.push_str("\x1b[J");
    text
}

/// Restores the terminal if the live view uses it.
fn restore() {
    let former = FORMER.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(former) = former else { return };
    // The terminal may be gone.
    let mut stdout = io::stdout();
    let _ = stdout.write_all(LEAVE.as_bytes()).and_then(|()| stdout.flush());
    let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &former);
}

/// Restores the terminal before the text of a panic. A panic aborts a released binary, without drops.
fn restore_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            former(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn lines_are_drawn_over_the_former_ones() {
        let line = |look, text: &str| Line { look, text: text.into() };
        let lines = [line(Look::Bad, "bad"), line(Look::Plain, "x")];
        assert_eq!(drawn(&lines, true), "\x1b[H\x1b[1;31mbad\x1b[0m\x1b[K\r\n\x1b[0mx\x1b[0m\x1b[K\x1b[J");
        assert!(drawn(&lines, false).contains("\x1b[1mbad"), "without colours");
    }

    #[test]
    fn a_panic_restores_the_terminal() {
        let test = std::env::current_exe().unwrap();
        let inner = format!("{} --exact --ignored --nocapture", test.display());
        let inner = format!(
            "stty rows 24 cols 80; stty -a; {inner} status::terminal::tests::panics_on_the_screen; stty -a"
        );
        let output = Command::new("script").args(["-qec", &inner, "/dev/null"]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let (entered, panicked) = (shown.find(ENTER), shown.find("the view has a fault"));
        let left = shown.find(LEAVE);
        assert!(entered.is_some() && entered < left && left < panicked, "{shown:?}");
        let settings: Vec<&str> = shown.lines().filter(|line| line.contains("icanon")).collect();
        assert!(settings.len() == 2 && settings[0] == settings[1], "{shown:?}");
        assert!(settings[0].contains(" icanon") && !settings[0].contains("-icanon"), "{shown:?}");
        assert_eq!(shown.matches("susp = ^Z").count(), 2, "{shown:?}");
    }

    #[test]
    #[ignore = "the test above runs it in a terminal"]
    fn panics_on_the_screen() {
        let _terminal = Terminal::enter().unwrap();
        panic!("the view has a fault");
    }
}
