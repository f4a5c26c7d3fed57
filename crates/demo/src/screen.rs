//! The output of the demo: a line for each step, and the table of requests. Only on a terminal are there colours and
//! lines that are overwritten.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::Finding;
use super::requests::Row;

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";
const CLEAR_LINE: &str = "\r\x1b[2K";
/// Column at which results are aligned.
const TITLE_WIDTH: usize = 62;

/// The output and its state.
pub(super) struct Screen {
    out: Box<dyn Write>,
    terminal: bool,
    started: Instant,
    steps: usize,
    failures: usize,
    rows: Vec<Row>,
    backends: Vec<Backend>,
}

/// A column of the table.
pub(super) struct Backend {
    pub(super) name: String,
    pub(super) addresses: [std::net::IpAddr; 2],
}

impl Screen {
    pub(super) fn new() -> Self {
        Self::over(Box::new(io::stdout()), io::stdout().is_terminal())
    }

    fn over(out: Box<dyn Write>, terminal: bool) -> Self {
        let started = Instant::now();
        Self { out, terminal, started, steps: 0, failures: 0, rows: Vec::new(), backends: Vec::new() }
    }

    /// Returns true if the output is a terminal.
    pub(super) const fn is_live(&self) -> bool {
        self.terminal
    }

    /// Returns the number of failed steps.
    pub(super) const fn failures(&self) -> usize {
        self.failures
    }

    /// Sets the columns of the table.
    pub(super) fn columns(&mut self, backends: Vec<Backend>) {
        self.backends = backends;
    }

    /// Stores rows for the table.
    pub(super) fn rows(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows);
    }

    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        let text = self.styled(BOLD, text);
        writeln!(self.out, "\n{text}")
    }

    pub(super) fn line(&mut self, text: &dyn Display) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Runs a step and writes its finding. An error of the step ends the demo.
    pub(super) fn step<T>(
        &mut self,
        title: &str,
        work: impl FnOnce() -> anyhow::Result<(T, Finding)>,
    ) -> anyhow::Result<T> {
        if self.terminal {
            write!(self.out, "  ..   {title}")?;
            self.out.flush()?;
        }
        let outcome = work();
        self.steps += 1;
        if self.terminal {
            write!(self.out, "{CLEAR_LINE}")?;
        }
        match outcome {
            Ok((value, finding)) => {
                self.found(title, &finding)?;
                Ok(value)
            }
            Err(error) => {
                self.failures += 1;
                let mark = self.styled(RED, "FAIL");
                writeln!(self.out, "  {mark} {title}")?;
                Err(error.context(title.to_owned()))
            }
        }
    }

    fn found(&mut self, title: &str, finding: &Finding) -> io::Result<()> {
        let result = &finding.result;
        if finding.faults.is_empty() {
            let mark = self.styled(GREEN, "ok");
            return writeln!(self.out, "  {mark}   {title:<TITLE_WIDTH$} {result}");
        }
        self.failures += 1;
        let mark = self.styled(RED, "FAIL");
        writeln!(self.out, "  {mark} {title:<TITLE_WIDTH$} {result}")?;
        finding.faults.iter().take(5).try_for_each(|fault| writeln!(self.out, "         {fault}"))
    }

    /// Writes the table of requests.
    pub(super) fn table(&mut self) -> io::Result<()> {
        self.heading("Requests that each backend answered, and where they came from in its eyes")?;
        let rows = std::mem::take(&mut self.rows);
        self.rows_now(&rows)?;
        self.rows = rows;
        Ok(())
    }

    /// Writes these rows as a table. Returns the number of its lines.
    pub(super) fn rows_now(&mut self, rows: &[Row]) -> io::Result<usize> {
        let mut lines = vec![self.header()];
        lines.extend(rows.iter().map(|row| self.cells(row)));
        let widths = widths(&lines);
        let text = lines.iter().enumerate().map(|(number, cells)| {
            let line = aligned(cells, &widths);
            if number == 0 { self.styled(DIM, &line) } else { line }
        });
        let text: Vec<String> = text.collect();
        text.iter().try_for_each(|line| writeln!(self.out, "  {line}"))?;
        Ok(text.len())
    }

    /// Moves the cursor up by `lines`, to overwrite them.
    pub(super) fn back(&mut self, lines: usize) -> io::Result<()> {
        write!(self.out, "\x1b[{lines}A\x1b[J")
    }

    /// Writes the last line, with the overall result.
    pub(super) fn verdict(&mut self) -> io::Result<()> {
        let (steps, seconds) = (self.steps, self.started.elapsed().as_secs_f64());
        let text = match self.failures {
            0 => self.styled(GREEN, &format!("All {steps} steps went as expected, in {seconds:.1} s.")),
            failures => self.styled(RED, &format!("{failures} of {steps} steps did not go as expected.")),
        };
        writeln!(self.out, "\n{text}")
    }

    fn header(&self) -> Vec<String> {
        let fixed = ["from", "to", "answered"].map(str::to_owned).into_iter();
        let backends = self.backends.iter().map(|backend| backend.name.clone());
        fixed.chain(backends).chain(["seen source".to_owned()]).collect()
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let answered = format!("{}/{}", row.answered(), row.sent);
        let fixed = [row.from.clone(), row.to.clone(), answered].into_iter();
        let hits = self.backends.iter().map(|backend| match row.hits_of(&backend.addresses) {
            0 => "-".to_owned(),
            hits => hits.to_string(),
        });
        fixed.chain(hits).chain([row.seen_sources()]).collect()
    }

    fn styled(&self, style: &str, text: &str) -> String {
        if self.terminal { format!("{style}{text}{RESET}") } else { text.to_owned() }
    }
}

fn widths(lines: &[Vec<String>]) -> Vec<usize> {
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| lines.iter().filter_map(|cells| cells.get(column)).map(String::len).max();
    (0..columns).map(|column| width(column).unwrap_or_default()).collect()
}

fn aligned(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs two steps, the second of which has a fault.
    fn play(terminal: bool) -> (usize, String) {
        let paper = Paper::default();
        let mut screen = Screen::over(Box::new(paper.clone()), terminal);
        let finding = |result: &str, faults: Vec<String>| Finding { result: result.to_owned(), faults };
        screen.step("first", || Ok(((), finding("fine", vec![])))).unwrap();
        screen.step("second", || Ok(((), finding("not fine", vec!["why".to_owned()])))).unwrap();
        screen.verdict().unwrap();
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        (screen.failures(), text)
    }

    #[test]
    fn a_fault_is_shown_and_counts() {
        let (failures, text) = play(false);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let [first, second, why, _, verdict] = lines.as_slice() else { panic!("{text}") };
        assert_eq!(first, &["ok", "first", "fine"]);
        assert_eq!(second, &["FAIL", "second", "not", "fine"]);
        assert_eq!(why, &["why"]);
        assert_eq!(verdict.join(" "), "1 of 2 steps did not go as expected.");
        assert_eq!(failures, 1);
    }

    #[test]
    fn a_step_that_breaks_off_counts() {
        let mut screen = Screen::over(Box::new(io::sink()), false);
        let outcome = screen.step("first", || -> anyhow::Result<((), Finding)> { anyhow::bail!("no") });
        assert_eq!(format!("{:#}", outcome.unwrap_err()), "first: no");
        assert_eq!(screen.failures(), 1);
    }

    #[test]
    fn escape_sequences_are_for_terminals() {
        assert!(!play(false).1.contains('\x1b'));
        assert!(play(true).1.contains(CLEAR_LINE) && play(true).1.contains(RED));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let lines = [vec!["a".to_owned(), "bcd".to_owned()], vec!["ab".to_owned(), "c".to_owned()]];
        let widths = widths(&lines);
        let text: Vec<String> = lines.iter().map(|cells| aligned(cells, &widths)).collect();
        assert_eq!(text, ["a   bcd", "ab  c"]);
    }
}
