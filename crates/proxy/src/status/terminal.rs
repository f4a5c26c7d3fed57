//! The terminal of the live view, by ratatui: another screen without a cursor, keys that come at once, and everything
//! restored at the end, also after a panic.

use std::io::{self, IsTerminal as _};
use std::sync::Once;

use portolan_status::live::{Line, Look};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::style::{Color, Style};
use ratatui::text::{Line as StyledLine, Text};
use tokio::sync::mpsc;

/// Columns and lines if the terminal does not know.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// What the operator did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    /// A key that ends the view.
    Quit,
    /// The terminal has another size.
    Resized,
}

/// The terminal while the live view uses it. It is restored when this is dropped.
pub(super) struct Terminal {
    terminal: DefaultTerminal,
    has_colours: bool,
}

/// Returns true if standard input and output are a terminal.
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

impl Terminal {
    /// Takes over the terminal of the process.
    ///
    /// # Errors
    /// The terminal does not accept the settings.
    pub(super) fn enter() -> io::Result<Self> {
        show_cursor_at_panic();
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Self { terminal, has_colours })
    }

    /// Returns columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match self.terminal.size() {
            Ok(size) if size.width > 0 && size.height > 0 => (size.width.into(), size.height.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Shows lines in the place of the former ones.
    pub(super) fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        let text = styled(lines, self.has_colours);
        self.terminal.draw(|frame| frame.render_widget(text, frame.area()))?;
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = ratatui::try_restore();
    }
}

/// Starts a thread that reads keys and changes of the size until the terminal or the process ends.
pub(super) fn inputs() -> io::Result<mpsc::Receiver<Input>> {
    let (sender, receiver) = mpsc::channel(16);
    let read = move || {
        while let Ok(event) = event::read() {
            // A send fails when the view has ended.
            if input(&event).is_some_and(|input| sender.blocking_send(input).is_err()) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("keys".into()).spawn(read)?;
    Ok(receiver)
}

/// Returns what an event means: `q`, Ctrl-C and Ctrl-D end the view. In raw mode, Ctrl-C is a key and no signal.
fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Resize(..) => Some(Input::Resized),
        Event::Key(KeyEvent { code: KeyCode::Char(key), modifiers, kind: KeyEventKind::Press, .. }) => {
            let is_control = modifiers.contains(KeyModifiers::CONTROL);
            let ends = if is_control { matches!(key, 'c' | 'd') } else { matches!(key, 'q' | 'Q') };
            ends.then_some(Input::Quit)
        }
        _ => None,
    }
}

/// Returns the lines with their colours; without colours, what would have one is bold.
fn styled(lines: &[Line], has_colours: bool) -> Text<'_> {
    let style = |look: Look| match (look, has_colours) {
        (Look::Plain, _) => Style::new(),
        (Look::Good, true) => Style::new().bold().fg(Color::Green),
        (Look::Bad, true) => Style::new().bold().fg(Color::Red),
        (Look::Head | Look::Good | Look::Bad, _) => Style::new().bold(),
    };
    lines.iter().map(|line| StyledLine::styled(line.text.as_str(), style(line.look))).collect()
}

/// Shows the cursor before the text of a panic. A panic aborts a released binary, without drops. ratatui restores the rest.
fn show_cursor_at_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = execute!(io::stdout(), Show);
            former(panic);
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn lines_are_drawn_over_the_former_ones() {
        let line = |look, text: &str| Line { look, text: text.into() };
        let mut terminal = ratatui::Terminal::new(TestBackend::new(5, 2)).unwrap();
        for (lines, shown) in [
            (vec![line(Look::Bad, "bad"), line(Look::Plain, "xyz")], ["bad  ", "xyz  "]),
            (vec![line(Look::Good, "ab")], ["ab   ", "     "]),
        ] {
            terminal.draw(|frame| frame.render_widget(styled(&lines, true), frame.area())).unwrap();
            let cells = terminal.backend().buffer().content();
            let rows: Vec<String> =
                cells.chunks(5).map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect();
            assert_eq!(rows, shown);
            let colour = if lines[0].look == Look::Bad { Color::Red } else { Color::Green };
            assert_eq!(cells[0].fg, colour);
        }
        let plain = styled(&[line(Look::Bad, "bad")], false).lines[0].style;
        assert_eq!(plain, Style::new().bold(), "without colours");
    }

    #[test]
    fn keys_that_end_the_view() {
        let key = |key, modifiers| input(&Event::Key(KeyEvent::new(KeyCode::Char(key), modifiers)));
        for (ending, modifiers) in [
            ('q', KeyModifiers::NONE),
            ('Q', KeyModifiers::SHIFT),
            ('c', KeyModifiers::CONTROL),
            ('d', KeyModifiers::CONTROL),
        ] {
            assert_eq!(key(ending, modifiers), Some(Input::Quit), "{ending}");
        }
        assert_eq!(key('c', KeyModifiers::NONE), None);
        assert_eq!(key('q', KeyModifiers::CONTROL), None);
        assert_eq!(input(&Event::Resize(80, 24)), Some(Input::Resized));
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
        // The other screen (xterm's private mode 1049), and the cursor (25).
        let [entered, hidden, left, visible, panicked] =
            ["\x1b[?1049h", "\x1b[?25l", "\x1b[?1049l", "\x1b[?25h", "the view has a fault"]
                .map(|text| shown.find(text));
        assert!(entered.is_some() && entered < hidden && hidden < left, "{shown:?}");
        assert!(left < visible && visible < panicked, "{shown:?}");
        let settings: Vec<&str> = shown.lines().filter(|line| line.contains("icanon")).collect();
        assert!(settings.len() == 2 && settings[0] == settings[1], "{shown:?}");
        assert!(settings[0].contains(" icanon") && !settings[0].contains("-icanon"), "{shown:?}");
    }

    #[test]
    #[ignore = "the test above runs it in a terminal"]
    fn panics_on_the_screen() {
        let mut terminal = Terminal::enter().unwrap();
        terminal.show(&[Line::default()]).unwrap();
        panic!("the view has a fault");
    }
}
