//! What the agent's log says of a fault: the lines that [`Required::of`] returns, and no flood of lines.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use portolan_testkit::{PortolanProcess, eventually};

use crate::common::{COMPLETE, PATIENCE};
use crate::fault::Fault;

/// Lines about one thing that may follow a fault, and one more for each second. The agent waits longer after each failure, so
/// even a fault that goes on causes far fewer. An agent that tries again without a wait writes thousands.
const LINES: u64 = 30;

const STARTS: &str = "] \"starting\" ";
const RELOADED: &str = "] \"the changed configuration is in use\" ";
const INTERRUPTED: &str = "] \"watch interrupted\" ";
/// The ends of such a line: an empty list that is held, and a watch from a revision that the server does not have.
const NOT_BELIEVED: &str = "it is not believed yet";
const EXPIRED: &str = "the API server ended the watch with 410";
const SERVICES: &str = " kind=\"Service\" ";
const SLICES: &str = " kind=\"EndpointSlice\" ";
const IPV4: &str = " family=\"IPv4\" ";
const IPV6: &str = " family=\"IPv6\" ";

/// Messages of the lines about rules that other programs have removed: about the repair, or about a commit that met the damage first.
const REMOVED: [&str; 2] = [
    "] \"another program had changed our table; mended\" ",
    "] \"the commit failed; what was programmed stays, trying again\" ",
];

/// What the log of an agent must say of a fault.
#[derive(Debug)]
pub(crate) struct Required {
    /// The parts of each line.
    lines: &'static [&'static [&'static str]],
    /// True if it must say that rules were missing.
    removed: bool,
}

impl Required {
    /// Returns what the log of an agent in this mode must say of a fault. It need not say anything of a fault that the agent may not
    /// notice, such as an API server that is back before the agent asks again, or that does not concern its work, such as a pause.
    pub(crate) fn of(fault: Fault, mode: &str) -> Self {
        let removed = match fault {
            Fault::Flush | Fault::Damage => true,
            // In iptables mode the rule may be in a chain that no Service needs, and that is removed later.
            Fault::OneRule => mode == "nftables",
            _ => false,
        };
        Self { lines: lines(fault, mode), removed }
    }

    fn is_said(&self, log: &str) -> bool {
        self.lines.iter().all(|parts| says(log, parts))
            && (!self.removed || REMOVED.iter().any(|message| log.contains(message)))
    }
}

/// Returns the parts of each line that the log must have.
fn lines(fault: Fault, mode: &str) -> &'static [&'static [&'static str]] {
    match fault {
        Fault::Kill(_) | Fault::Restart(_) => &[&[STARTS]],
        Fault::Switch(other) if other != mode => &[&[RELOADED, "mode"], &[COMPLETE, IPV4], &[COMPLETE, IPV6]],
        Fault::Reset | Fault::CutOff | Fault::BrokenOff => &[&[INTERRUPTED]],
        Fault::Emptied => &[&[INTERRUPTED, SERVICES, NOT_BELIEVED], &[INTERRUPTED, SLICES, NOT_BELIEVED]],
        Fault::RolledBack => &[&[INTERRUPTED, SERVICES, EXPIRED], &[INTERRUPTED, SLICES, EXPIRED]],
        _ => &[],
    }
}

/// The parts of the output of the agent that runs.
pub(crate) struct Log {
    /// Its length when it was judged last.
    judged: usize,
    /// When that was.
    since: Instant,
    /// Its length when the fault began.
    begin: usize,
}

impl Log {
    pub(crate) fn start() -> Self {
        Self { judged: 0, since: Instant::now(), begin: 0 }
    }

    /// Checks the rest of the log of an agent that has ended, and follows another one from its start.
    pub(crate) fn follow_another(&mut self, ended: &PortolanProcess) {
        self.judge_number(&"before the start of another agent", ended);
        *self = Self::start();
    }

    /// Notes that a fault begins. What the agent must say of it comes later.
    pub(crate) fn fault_begins(&mut self, agent: &PortolanProcess) {
        self.begin = agent.output().len();
    }

    /// Waits until the log has what is required since the fault began, and checks that it has none too often since it was judged last.
    /// Returns its warnings and errors, counted by what they are about.
    pub(crate) fn judge(
        &mut self,
        fault: Fault,
        required: &Required,
        agent: &PortolanProcess,
    ) -> BTreeMap<String, u64> {
        let is_said = || required.is_said(&agent.output()[self.begin..]);
        let outcome = eventually(PATIENCE, "lines of the log", is_said);
        let output = agent.output();
        assert!(outcome.is_ok(), "{fault}: not in the log: {required:?}\n{output}");
        self.judge_number(&fault, agent)
    }

    /// Checks that the log has no line too often since it was judged last. Returns its warnings and errors, counted by what they
    /// are about.
    fn judge_number(&mut self, when: &dyn fmt::Display, agent: &PortolanProcess) -> BTreeMap<String, u64> {
        let output = agent.output();
        let new = &output[self.judged..];
        let at_most = LINES + self.since.elapsed().as_secs();
        let counts = count(new.lines());
        let flood: Vec<_> = counts.iter().filter(|(_, count)| **count > at_most).collect();
        assert!(flood.is_empty(), "{when}: more than {at_most} times in the log: {flood:?}\n{output}");
        (self.judged, self.since) = (output.len(), Instant::now());
        count(new.lines().filter(|line| line.starts_with(['W', 'E'])))
    }
}

/// Returns true if a line has all of these parts.
fn says(log: &str, parts: &[&str]) -> bool {
    log.lines().any(|line| parts.iter().all(|part| line.contains(*part)))
}

fn count<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines {
        *counts.entry(about(line)).or_default() += 1;
    }
    counts
}

/// Returns what a line is about: its message, and the collection or the family that it names. The rest may differ each time.
fn about(line: &str) -> String {
    let Some((_, text)) = line.split_once("] \"") else { return line.to_owned() };
    let mut about = text.split('"').next().unwrap_or(text).to_owned();
    for field in [" kind=\"", " family=\""] {
        let value = text.split_once(field).and_then(|(_, rest)| rest.split('"').next());
        about.extend(value.into_iter().flat_map(|value| [" ", value]));
    }
    about
}
