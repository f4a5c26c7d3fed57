//! The [`Dataplane`] of the iptables mode: runs the programs of one family and keeps track of the kernel's state.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;

use portolan_model::{Change, Forwarding, ServicePortName, Settings};

use super::counters::Counters;
use super::fixed::{CANARY, JUMPS};
use super::removal::Removal;
use super::rule::Table;
use super::{Meter, Options, Pieces, Planner, Programs, Rules, Variant, Writers};
use crate::dataplane::{Chains, Commit, Dataplane, Error, HealthCheckPort};
use crate::latest::Latest;

/// Service ports in one transaction of a full load through the front end of nftables. Its time for a transaction
/// grows with the square of the rules in it, but each transaction has a fixed cost, too: in a cluster of 10,000
/// Services, half of this number takes longer.
const PIECE: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// The data plane that programs the Services of one family as chains and rules of iptables.
#[derive(Debug)]
pub struct Iptables {
    programs: Programs,
    planner: Planner,
    meter: Arc<Meter>,
    counters: Counters,
    removal: Option<PendingRemoval>,
    state: State,
    /// Health-check node ports that have not been passed to the planner.
    health_checks: Latest<(Arc<str>, Arc<str>), HealthCheckPort>,
}

/// A removal in progress.
#[derive(Debug)]
enum PendingRemoval {
    /// Another thread lists the chains.
    Planned(JoinHandle<Result<Removal, Error>>),
    /// This thread removes chains, part by part.
    Parts(Removal),
    /// Another thread removes everything. The older iptables copies whole tables for each transaction, so one restore
    /// does it all.
    Whole(JoinHandle<Result<(), Error>>),
}

/// How the kernel's state relates to the planner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has been loaded yet: changes are only stored.
    Waiting,
    /// The kernel is in sync with the planner.
    InSync,
    /// A restore failed, settings changed, or another program changed the rules: a full load is needed.
    Unknown,
}

impl Iptables {
    /// Creates a data plane for the network namespace of the thread that will call it. Changes nothing in the kernel.
    pub fn new(programs: Programs, settings: Settings, options: Options) -> Self {
        let planner = Planner::new(settings, options);
        Self {
            programs,
            planner,
            meter: Arc::default(),
            counters: Counters::default(),
            removal: None,
            state: State::Waiting,
            health_checks: Latest::default(),
        }
    }

    /// Continues counting in `meter`, that of the former data plane.
    #[must_use]
    pub fn with_meter(mut self, meter: Arc<Meter>) -> Self {
        self.meter = meter;
        self
    }

    /// Returns the meter, which any thread may read.
    pub fn meter(&self) -> Arc<Meter> {
        self.meter.clone()
    }

    /// Returns the processes that write for this data plane, where the kernel notifies of changes by other programs.
    pub fn writers(&self) -> Option<Writers> {
        (self.programs.variant() == Variant::Nft).then(|| self.programs.writers())
    }

    /// Sets the options. The next load writes them.
    pub fn set_options(&mut self, options: Options) {
        let settings = self.planner.settings().clone();
        self.set(settings, options);
    }

    /// Notes that another program has changed the tables. The next commit is a full load.
    pub fn mark_unknown(&mut self) {
        if self.state == State::InSync {
            self.state = State::Unknown;
        }
    }

    fn marks_are_there(&self) -> Result<bool, Error> {
        for table in [Table::Mangle, Table::Filter, Table::Nat] {
            if !self.programs.has_chain(table, CANARY)? {
                return Ok(false);
            }
        }
        let marks = self.planner.marks();
        let marks = marks.iter().map(|rule| (rule.table, rule.chain, rule.text.as_str()));
        let jumps = JUMPS.iter().map(|jump| (jump.table, jump.from, jump.rule));
        for (table, chain, rule) in marks.chain(jumps) {
            if !self.programs.has_rule(table, chain, rule)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn set(&mut self, settings: Settings, options: Options) {
        let Options { count_invalid, count_localhost, .. } = *self.planner.options();
        let options = Options { count_invalid, count_localhost, ..options };
        if *self.planner.settings() != settings || *self.planner.options() != options {
            self.planner.configure(settings, options);
            self.mark_unknown();
        }
    }

    fn restore_text(&self, text: &str) -> Result<Commit, Error> {
        restore(&self.programs, &self.meter, Kind::Partial, |out| out.write_str(text))
    }

    /// Reads a save, writes every chain that is missing or differs, and removes chains of Services that are gone.
    fn load(&mut self) -> Result<Commit, Error> {
        self.abandon_removal();
        self.ensure_counters()?;
        let present = self.programs.present()?;
        let pieces = match self.programs.variant() {
            Variant::Nft => Pieces::Of(PIECE),
            // The older iptables copies whole tables for each transaction.
            Variant::Legacy => Pieces::One,
        };
        let planner = &mut self.planner;
        let write = |mut out: &mut dyn fmt::Write| planner.full(&present, pieces, &mut out);
        let mut commit = restore(&self.programs, &self.meter, Kind::Full, write)?;
        commit.full = true;
        self.state = State::InSync;
        Ok(commit)
    }

    /// Carries out the next part of a removal over netlink. Another thread lists the chains first, because that takes
    /// a second in a large cluster.
    fn remove_part(&mut self, kept: Option<Chains>) -> Result<bool, Error> {
        let family = self.planner.settings().family;
        let plan = move || Removal::plan(family, &|table: &str, chain: &str| is_kept(kept, table, chain));
        let removal = match self.removal.take() {
            Some(PendingRemoval::Parts(removal)) => removal,
            Some(PendingRemoval::Planned(thread)) if !thread.is_finished() => {
                self.removal = Some(PendingRemoval::Planned(thread));
                return Ok(true);
            }
            Some(PendingRemoval::Planned(thread)) => match thread.join() {
                Ok(removal) => removal?,
                Err(_) => plan()?,
            },
            _ => match std::thread::Builder::new().name("removal".into()).spawn(plan) {
                Ok(thread) => {
                    self.removal = Some(PendingRemoval::Planned(thread));
                    return Ok(true);
                }
                Err(_) => plan()?,
            },
        };
        self.step(removal, kept)
    }

    fn step(&mut self, mut removal: Removal, kept: Option<Chains>) -> Result<bool, Error> {
        let is_more = removal.step(&|table: &str, chain: &str| is_kept(kept, table, chain))?;
        // After a failure the chains are listed again, because there may be others to remove.
        self.removal = is_more.then_some(PendingRemoval::Parts(removal));
        Ok(is_more)
    }

    fn remove_in_thread(&mut self, kept: Option<Chains>) -> Result<bool, Error> {
        match &self.removal {
            Some(PendingRemoval::Whole(thread)) if !thread.is_finished() => Ok(true),
            Some(_) => self.end_removal().map(|()| false),
            None => {
                let (programs, meter) = (self.programs.clone(), self.meter.clone());
                let thread = std::thread::Builder::new().name("removal".into());
                match thread.spawn(move || remove_all(&programs, &meter, kept)) {
                    Ok(thread) => self.removal = Some(PendingRemoval::Whole(thread)),
                    Err(_) => return remove_all(&self.programs, &self.meter, kept).map(|()| false),
                }
                Ok(true)
            }
        }
    }

    /// Stops a removal and logs its failure. The result does not matter for the load that follows: it reads the
    /// tables.
    fn abandon_removal(&mut self) {
        if let Err(error) = self.end_removal() {
            tracing::warn!(%error, "the removal of the rules had failed");
        }
    }

    /// Drops a removal. Waits for the end of one that cannot be stopped.
    fn end_removal(&mut self) -> Result<(), Error> {
        match self.removal.take() {
            Some(PendingRemoval::Whole(thread)) => thread.join().unwrap_or(Ok(())),
            _ => Ok(()),
        }
    }

    fn ensure_counters(&mut self) -> Result<(), Error> {
        let usable = self.counters.ensure(&self.programs, &self.meter)?;
        let (settings, options) = (self.planner.settings().clone(), self.planner.options().clone());
        let options = Options { count_invalid: usable.invalid, count_localhost: usable.localhost, ..options };
        self.planner.configure(settings, options);
        Ok(())
    }

    fn record_outcome(&mut self, outcome: Result<Commit, Error>) -> Result<Commit, Error> {
        if outcome.is_ok() {
            self.meter.has(self.planner.rules());
        } else {
            self.mark_unknown();
        }
        outcome.map(|commit| Commit { refused: self.planner.refused().collect(), ..commit })
    }
}

impl Dataplane for Iptables {
    fn mode(&self) -> &'static str {
        "iptables"
    }

    fn place(&self) -> &'static str {
        match self.programs.variant() {
            Variant::Nft => "iptables-nft",
            Variant::Legacy => "iptables-legacy",
        }
    }

    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let health_checks = self.health_checks.take();
        match self.state {
            State::Waiting => {
                self.planner.remember(changes, &health_checks);
                Ok(Commit::default())
            }
            State::InSync => {
                let text = self.planner.plan(changes, &health_checks);
                let outcome = if text.is_empty() { Ok(Commit::default()) } else { self.restore_text(&text) };
                self.record_outcome(outcome)
            }
            State::Unknown => {
                self.planner.remember(changes, &health_checks);
                let outcome = self.load();
                self.record_outcome(outcome)
            }
        }
    }

    /// Compares all chains and writes those that differ.
    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        let health_checks = self.health_checks.take();
        self.planner.remember(changes, &health_checks);
        self.mark_unknown();
        let outcome = self.load();
        if outcome.is_err() {
            // A load must follow, even if none was done before.
            self.state = State::Unknown;
        }
        self.record_outcome(outcome)
    }

    fn open_health_check_ports(&mut self, health_checks: &[HealthCheckPort]) -> bool {
        for check in health_checks {
            self.health_checks.insert((check.namespace.clone(), check.service.clone()), check.clone());
        }
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

    /// Returns true for the older iptables: the kernel does not notify of changes to its tables.
    fn needs_checks(&self) -> bool {
        self.programs.variant() == Variant::Legacy
    }

    /// Returns true if the tables have the canaries, the jumps, and in each shared chain its fixed rules, or else one rule of
    /// a Service. A flush of any chain but those of single Services removes one of these. Other rules of Services are not
    /// checked.
    fn is_intact(&mut self) -> Result<bool, Error> {
        let intact = self.marks_are_there()?;
        if !intact {
            self.mark_unknown();
        }
        Ok(intact)
    }

    /// Removes the chains of this mode. `KUBE-FIREWALL` stays, because kubelet shares it.
    fn remove(&mut self) -> Result<(), Error> {
        self.mark_unknown();
        self.meter.has(Rules::default());
        match self.programs.variant() {
            Variant::Nft => {
                let removal = Removal::plan(self.planner.settings().family, &|_: &str, _: &str| false)?;
                let mut is_more = self.step(removal, None)?;
                while is_more {
                    is_more = self.remove_part(None)?;
                }
                Ok(())
            }
            Variant::Legacy => {
                self.abandon_removal();
                remove_all(&self.programs, &self.meter, None)
            }
        }
    }

    fn remove_part(&mut self) -> Result<bool, Error> {
        self.retire(None)
    }

    fn chains(&self) -> Option<Chains> {
        Some(self.programs.chains(self.planner.settings().family))
    }

    fn retire(&mut self, kept: Option<Chains>) -> Result<bool, Error> {
        let own = self.programs.chains(self.planner.settings().family);
        let kept = kept.filter(|kept| (own.variant, own.family) == (kept.variant, kept.family));
        self.mark_unknown();
        self.meter.has(Rules::default());
        match self.programs.variant() {
            Variant::Nft => self.remove_part(kept),
            Variant::Legacy => self.remove_in_thread(kept),
        }
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.planner.forwardings())
    }
}

fn remove_all(programs: &Programs, meter: &Meter, kept: Option<Chains>) -> Result<(), Error> {
    let text = programs.present()?.removal(|table, chain| is_kept(kept, table, chain));
    if !text.is_empty() {
        restore(programs, meter, Kind::Full, |out| out.write_str(&text))?;
    }
    Ok(())
}

fn is_kept(kept: Option<Chains>, table: &str, chain: &str) -> bool {
    kept.is_some_and(|kept| (kept.uses)(table, chain))
}

/// What a restore writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Everything that is missing or differs.
    Full,
    /// A change.
    Partial,
}

fn restore(
    programs: &Programs,
    meter: &Meter,
    kind: Kind,
    mut write: impl FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> Result<Commit, Error> {
    let mut counts = Counts::default();
    let outcome = programs.await_lock(meter).and_then(|()| {
        programs.restore(|out| {
            // The text may be written a second time, to find a line. The counts start again then.
            let mut counted =
                Counted { out, counts: Counts::default(), line: Line::Start, table: Table::Mangle };
            write(&mut counted)?;
            counts = counted.counts;
            Ok(())
        })
    });
    let kernel = outcome.inspect_err(|_| meter.failed(kind == Kind::Partial))?;
    meter.wrote(counts.rules);
    Ok(Commit { kernel, ..counts.commit })
}

#[derive(Debug, Default)]
struct Counts {
    commit: Commit,
    rules: Rules,
}

/// Counts the lines that it passes on.
struct Counted<'a> {
    out: &'a mut dyn fmt::Write,
    counts: Counts,
    line: Line,
    table: Table,
}

/// The place of the next byte in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Start,
    /// After the `*` before the name of a table.
    Table,
    /// After the `-` before an operation.
    Operation,
    Rest,
}

impl Counted<'_> {
    fn byte(&mut self, byte: u8) {
        let Counts { commit, rules } = &mut self.counts;
        let mut next = Line::Rest;
        match (self.line, byte) {
            (_, b'\n') => next = Line::Start,
            (Line::Start, b'*') => next = Line::Table,
            (Line::Start, b':') => commit.objects += 1,
            (Line::Start, b'-') => {
                commit.elements += 1;
                next = Line::Operation;
            }
            (Line::Table, b'm') => self.table = Table::Mangle,
            (Line::Table, b'f') => self.table = Table::Filter,
            (Line::Table, b'n') => self.table = Table::Nat,
            (Line::Operation, b'A' | b'I') => rules.add(self.table, 1),
            _ => {}
        }
        self.line = next;
    }
}

impl fmt::Write for Counted<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.byte(byte));
        self.counts.commit.bytes += text.len();
        self.out.write_str(text)
    }
}
