//! The edge of the iptables data plane: the programs of one family, and what is known of the kernel.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use portolan_model::{Change, Forwarding, ServicePortName, Settings};

use super::fixed::{CANARY, JUMPS, nat_last};
use super::rule::Table;
use super::{Options, Pieces, Planner, Programs, Variant};
use crate::dataplane::{Commit, Dataplane, Error, HealthCheckPort};

/// Service ports in one transaction of a load by the front end of nftables, whose time for a transaction grows with the
/// square of the rules in it. Each transaction has a cost of its own, too: in a cluster of 10,000 Services, half of this
/// takes longer.
const PIECE: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// Services of one family as chains and rules of iptables.
#[derive(Debug)]
pub struct Iptables {
    programs: Programs,
    planner: Planner,
    state: State,
    /// Those that the planner does not know yet.
    health_checks: Vec<HealthCheckPort>,
}

/// What is known of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has been loaded yet: changes are only remembered.
    Waiting,
    /// The kernel has what the planner says.
    InStep,
    /// A restore failed, or settings changed: all has to be loaded.
    Unknown,
}

impl Iptables {
    /// For the network namespace of the thread that will call. Changes nothing.
    pub fn new(programs: Programs, settings: Settings, options: Options) -> Self {
        let planner = Planner::new(settings, options);
        Self { programs, planner, state: State::Waiting, health_checks: Vec::new() }
    }

    /// Takes in other options; the next load writes them.
    pub fn set_options(&mut self, options: Options) {
        let settings = self.planner.settings().clone();
        self.set(settings, options);
    }

    /// Says that somebody else changed the tables.
    pub fn suspect(&mut self) {
        if self.state == State::InStep {
            self.state = State::Unknown;
        }
    }

    /// Whether the tables still have what a flush, or a removal of our chains or of what leads to them, would take
    /// along. Single rules of Services are not looked for. After a no, the next commit writes everything.
    pub fn is_intact(&mut self) -> Result<bool, Error> {
        let intact = self.marks_are_there()?;
        if !intact {
            self.suspect();
        }
        Ok(intact)
    }

    fn marks_are_there(&self) -> Result<bool, Error> {
        for table in [Table::Mangle, Table::Filter, Table::Nat] {
            if !self.programs.has_chain(table, CANARY)? {
                return Ok(false);
            }
        }
        let last = nat_last(self.planner.context());
        let last = last.iter().map(|rule| (rule.table, rule.chain, rule.text.as_str()));
        let jumps = JUMPS.iter().map(|jump| (jump.table, jump.from, jump.rule));
        for (table, chain, rule) in last.chain(jumps) {
            if !self.programs.has_rule(table, chain, rule)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn set(&mut self, settings: Settings, options: Options) {
        if *self.planner.settings() != settings || *self.planner.options() != options {
            self.planner.configure(settings, options);
            self.suspect();
        }
    }

    fn restore_text(&self, text: &str) -> Result<Commit, Error> {
        restore(&self.programs, |out| out.write_str(text))
    }

    /// Writes everything that is not there, and removes chains of Services that are no more.
    fn load(&mut self) -> Result<Commit, Error> {
        let present = self.programs.present()?;
        let pieces = match self.programs.variant() {
            Variant::Nft => Pieces::Of(PIECE),
            // It copies whole tables for each transaction.
            Variant::Legacy => Pieces::One,
        };
        let planner = &mut self.planner;
        let mut commit = restore(&self.programs, |mut out| planner.full(&present, pieces, &mut out))?;
        commit.full = true;
        self.state = State::InStep;
        Ok(commit)
    }

    fn noting_failure(&mut self, outcome: Result<Commit, Error>) -> Result<Commit, Error> {
        if outcome.is_err() {
            self.suspect();
        }
        outcome.map(|commit| Commit { refused: self.planner.refused().collect(), ..commit })
    }
}

impl Dataplane for Iptables {
    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let health_checks = std::mem::take(&mut self.health_checks);
        match self.state {
            State::Waiting => {
                self.planner.remember(changes, &health_checks);
                Ok(Commit::default())
            }
            State::InStep => {
                let text = self.planner.plan(changes, &health_checks);
                let outcome = if text.is_empty() { Ok(Commit::default()) } else { self.restore_text(&text) };
                self.noting_failure(outcome)
            }
            State::Unknown => {
                self.planner.remember(changes, &health_checks);
                let outcome = self.load();
                self.noting_failure(outcome)
            }
        }
    }

    /// Chains are compared, and written where they differ.
    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let health_checks = std::mem::take(&mut self.health_checks);
        self.planner.remember(changes, &health_checks);
        self.suspect();
        let outcome = self.load();
        if outcome.is_err() {
            // From here on there is something to be loaded.
            self.state = State::Unknown;
        }
        self.noting_failure(outcome)
    }

    fn let_in(&mut self, health_checks: &[HealthCheckPort]) -> bool {
        self.health_checks.extend_from_slice(health_checks);
        !self.health_checks.is_empty()
    }

    fn configure(&mut self, settings: Settings) {
        let options = self.planner.options().clone();
        self.set(settings, options);
    }

    fn collect(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn needs_collection(&self) -> bool {
        false
    }

    /// What kubelet shares stays.
    fn remove(&mut self) -> Result<(), Error> {
        let text = self.programs.present()?.removal();
        if !text.is_empty() {
            self.restore_text(&text)?;
        }
        self.suspect();
        Ok(())
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.planner.forwardings())
    }
}

fn restore(
    programs: &Programs,
    mut write: impl FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> Result<Commit, Error> {
    let mut commit = Commit::default();
    let outcome = programs.restore(|out| {
        // Written again, it is counted again.
        let mut counted = Counted { out, commit: Commit::default(), at_start: true };
        write(&mut counted)?;
        commit = counted.commit;
        Ok(())
    });
    commit.kernel = outcome?;
    Ok(commit)
}

/// Counts what passes.
struct Counted<'a> {
    out: &'a mut dyn fmt::Write,
    commit: Commit,
    at_start: bool,
}

impl fmt::Write for Counted<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.at_start {
                self.commit.elements += usize::from(byte == b'-');
                self.commit.objects += usize::from(byte == b':');
            }
            self.at_start = byte == b'\n';
        }
        self.commit.bytes += text.len();
        self.out.write_str(text)
    }
}
