//! The [`Dataplane`] of the iptables mode: runs the programs of one family and keeps track of the kernel's state.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_model::Settings;

use super::counters::Counters;
use super::features::{Features, Needs};
use super::fixed::{CANARY, JUMPS};
use super::name::declared;
use super::removal::Removal;
use super::removal_thread::{Outcome, Permit, RemovalThread};
use super::rule::{IptablesTable, Rule};
use super::saved::saved;
use super::{IptablesOptions, Meter, Pieces, Planner, Programs, Rules, Variant};
use portolan_engine::dataplane::{
    About, Claims, Commit, Condition, Dataplane, Error, Removal as Progress, Takeover,
};
use portolan_engine::drift::Own;
use portolan_engine::table::{Changes, Table as Wanted};

/// The tables that this mode writes to.
const TABLES: [IptablesTable; 3] = [IptablesTable::Mangle, IptablesTable::Filter, IptablesTable::Nat];

/// Service ports in one transaction of a full load through the front end of nftables. Its time for a transaction
/// grows with the square of the rules in it, but each transaction has a fixed cost, too: in a cluster of 10,000
/// Services, half of this number takes longer.
const PIECE: NonZeroUsize = NonZeroUsize::new(100).unwrap();

/// Returns in how many transactions a full load writes the chains of Service ports.
pub(super) const fn pieces(variant: Variant) -> Pieces {
    match variant {
        Variant::Nft => Pieces::Of(PIECE),
        // The older iptables copies whole tables for each transaction.
        Variant::Legacy => Pieces::One,
    }
}

/// The data plane that programs the Services of one family as chains and rules of iptables.
#[derive(Debug)]
pub struct Iptables {
    programs: Programs,
    planner: Planner,
    meter: Arc<Meter>,
    counters: Counters,
    features: Features,
    removal: Option<PendingRemoval>,
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
    Whole(RemovalThread<Error>),
}

impl Iptables {
    /// Creates a data plane for the network namespace of the thread that will call it. Changes nothing in the kernel.
    pub fn new(programs: Programs, settings: Settings, options: IptablesOptions) -> Self {
        let planner = Planner::new(settings, options);
        Self {
            programs,
            planner,
            meter: Arc::default(),
            counters: Counters::default(),
            features: Features::default(),
            removal: None,
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

    /// Returns the chains of this data plane, for [`DriftWatch`](portolan_engine::drift::DriftWatch). `None` if the kernel does not
    /// notify of changes.
    pub fn own(&self) -> Option<Own> {
        let family = self.planner.settings().family;
        (self.programs.variant() == Variant::Nft).then(|| Own::new(family, self.programs.writers()))
    }

    fn marks_are_there(&self, wanted: &Wanted) -> Result<bool, Error> {
        let marks = self.planner.marks(wanted);
        match self.programs.variant() {
            Variant::Nft => self.are_asked_for(&marks),
            Variant::Legacy => self.are_saved(&marks),
        }
    }

    /// Asks for each rule. The front end of nftables reads only the chain of the rule.
    fn are_asked_for(&self, marks: &[Rule]) -> Result<bool, Error> {
        for table in TABLES {
            if !self.programs.has_chain(table, CANARY)? {
                return Ok(false);
            }
        }
        let marks = marks.iter().map(|rule| (rule.table, rule.chain, rule.text.as_str()));
        let jumps = JUMPS.iter().map(|jump| (jump.table, jump.from, jump.rule));
        for (table, chain, rule) in marks.chain(jumps) {
            if !self.programs.has_rule(table, chain, rule)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks for the rules in a save of each table. To answer for one rule, the older iptables reads the whole table, too.
    fn are_saved(&self, marks: &[Rule]) -> Result<bool, Error> {
        let family = self.planner.settings().family;
        for table in TABLES {
            let marks = marks.iter().filter(|rule| rule.table == table);
            let marks = marks.map(|rule| format!("{} {}", rule.chain, saved(family, &rule.text)));
            let jumps = JUMPS.iter().filter(|jump| jump.table == table);
            let jumps = jumps.map(|jump| format!("{} {}", jump.from, jump.rule));
            let mut missing: HashSet<String> = marks.chain(jumps).collect();
            let mut has_canary = false;
            self.programs.save(&["-t", table.name()], |line| {
                has_canary |= line.strip_prefix(':').and_then(declared) == Some(CANARY);
                if let Some(rule) = line.strip_prefix("-A ").filter(|_| !missing.is_empty()) {
                    // A save prints two spaces before the name of a counter.
                    missing.remove(rule.trim_end().replace("  ", " ").as_str());
                }
            })?;
            if !has_canary || !missing.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn restore_text(&self, text: &str) -> Result<Commit, Error> {
        restore(&self.programs, &self.meter, Kind::Partial, |out| out.write_str(text))
    }

    /// Reads a save, writes every chain that is missing or differs, and removes chains of Services that are gone.
    fn load(&mut self, wanted: &Wanted) -> Result<Commit, Error> {
        self.abandon_removal();
        self.ensure_counters()?;
        if !self.features.are_complete() {
            self.features.forget_failures();
            self.ensure_features(Needs::of(wanted.iter().map(|(_, forwarding)| forwarding)))?;
        }
        let present = self.programs.present()?;
        let pieces = pieces(self.programs.variant());
        let planner = &mut self.planner;
        let write = |mut out: &mut dyn fmt::Write| planner.full(wanted, &present, pieces, &mut out);
        let mut commit = restore(&self.programs, &self.meter, Kind::Full, write)?;
        commit.full = true;
        Ok(commit)
    }

    /// Carries out the next part of a removal over netlink. Another thread lists the chains first, because that takes
    /// a second in a large cluster.
    fn remove_over_netlink(&mut self, kept: Option<Claims>) -> Result<bool, Error> {
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

    fn step(&mut self, mut removal: Removal, kept: Option<Claims>) -> Result<bool, Error> {
        let is_more = removal.step(&|table: &str, chain: &str| is_kept(kept, table, chain))?;
        // After a failure the chains are listed again, because there may be others to remove.
        self.removal = is_more.then_some(PendingRemoval::Parts(removal));
        Ok(is_more)
    }

    /// Starts a thread that removes everything, or looks whether it has ended. A thread that was suspended is followed by another
    /// one.
    fn remove_in_thread(&mut self, kept: Option<Claims>) -> Result<bool, Error> {
        match self.removal.take() {
            Some(PendingRemoval::Whole(thread)) if !thread.is_finished() => {
                self.removal = Some(PendingRemoval::Whole(thread));
                Ok(true)
            }
            Some(PendingRemoval::Whole(thread)) => Ok(thread.join()? == Outcome::Withdrawn),
            _ => {
                let (programs, meter) = (self.programs.clone(), self.meter.clone());
                match RemovalThread::start(move |permit| remove_all(&programs, &meter, kept, permit)) {
                    Ok(thread) => self.removal = Some(PendingRemoval::Whole(thread)),
                    Err(_) => {
                        return remove_all(&self.programs, &self.meter, kept, &Permit::default())
                            .map(|_| false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Stops a removal and logs its failure. The result does not matter for the load that follows: it reads the
    /// tables.
    fn abandon_removal(&mut self) {
        if let Some(PendingRemoval::Whole(thread)) = self.removal.take()
            && let Err(error) = thread.join()
        {
            tracing::warn!(%error, "the removal of the rules had failed");
        }
    }

    fn ensure_counters(&mut self) -> Result<(), Error> {
        let usable = self.counters.ensure(&self.programs, &self.meter)?;
        let (settings, options) = (self.planner.settings().clone(), self.planner.options().clone());
        let options =
            IptablesOptions { count_invalid: usable.invalid, count_localhost: usable.localhost, ..options };
        self.planner.configure(settings, options);
        Ok(())
    }

    /// Tries what rules need that come now. No rule that is there needed what was not tried, so the rules that a change
    /// replaces stay the same.
    fn ensure_features(&mut self, needs: Needs) -> Result<(), Error> {
        self.features.ensure(needs, &self.programs, &self.meter)?;
        let (settings, options) = (self.planner.settings().clone(), self.planner.options().clone());
        self.planner.configure(settings, self.features.options(options));
        Ok(())
    }

    fn record_outcome(&mut self, outcome: Result<Commit, Error>) -> Result<Commit, Error> {
        if outcome.is_ok() {
            self.meter.has(self.planner.rules());
        }
        outcome.map(|commit| Commit { refused: self.planner.refused().collect(), ..commit })
    }

    fn claims(&self) -> Claims {
        self.programs.claims(self.planner.settings().family)
    }
}

impl Dataplane for Iptables {
    fn about(&self) -> About {
        let variant = self.programs.variant();
        About {
            place: variant.place(),
            // The kernel does not notify of changes to the tables of the older iptables.
            is_notified: variant == Variant::Nft,
            claims: Some(self.claims()),
            ..About::of("iptables")
        }
    }

    fn apply(&mut self, table: &Wanted, changes: &Changes) -> Result<Commit, Error> {
        if !self.features.are_complete() {
            let new = changes.forwardings.iter().filter_map(|change| change.new.as_deref());
            self.ensure_features(Needs::of(new))?;
        }
        let text = self.planner.plan(table, changes);
        let outcome = if text.is_empty() { Ok(Commit::default()) } else { self.restore_text(&text) };
        self.record_outcome(outcome)
    }

    /// Compares all chains and writes those that differ.
    fn compare(&mut self, table: &Wanted, changes: &Changes) -> Result<Commit, Error> {
        self.planner.follow(changes);
        let options = self.planner.options().clone();
        self.planner.configure(table.settings().clone(), options);
        let outcome = self.load(table);
        self.record_outcome(outcome)
    }

    /// The rules are intact if the tables have the canaries, the jumps, and in each shared chain its fixed rules, or else one rule of
    /// a Service. A flush of any chain but those of single Services removes one of these. Other rules of Services are not
    /// checked.
    fn check(&mut self, table: &Wanted) -> Result<Condition, Error> {
        Ok(if self.marks_are_there(table)? { Condition::Intact } else { Condition::Changed })
    }

    /// Removes the chains of this mode. `KUBE-FIREWALL` stays, because kubelet shares it.
    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Progress, Error> {
        let kept = takeover.kept.filter(|kept| kept.are_where(&self.claims()));
        self.meter.has(Rules::default());
        let is_more = match self.programs.variant() {
            Variant::Nft => self.remove_over_netlink(kept)?,
            Variant::Legacy => self.remove_in_thread(kept)?,
        };
        Ok(if is_more { Progress::Continues(Duration::ZERO) } else { Progress::Done })
    }

    /// A thread that lists chains writes nothing. What is kept is looked at in each later part.
    fn suspend_removal(&mut self) {
        if let Some(PendingRemoval::Whole(thread)) = &self.removal {
            thread.withdraw();
        }
    }
}

fn remove_all(
    programs: &Programs,
    meter: &Meter,
    kept: Option<Claims>,
    permit: &Permit,
) -> Result<Outcome, Error> {
    let text = programs.present()?.removal(|table, chain| is_kept(kept, table, chain));
    if !text.is_empty() {
        // A suspension waits while the thread holds its permission. So the thread waits for the lock of other programs before it.
        await_lock(programs, meter, Kind::Full)?;
        let write = || restore_now(programs, meter, Kind::Full, |out| out.write_str(&text));
        let Some(outcome) = permit.write(write) else { return Ok(Outcome::Withdrawn) };
        outcome?;
    }
    Ok(Outcome::Removed)
}

fn is_kept(kept: Option<Claims>, table: &str, chain: &str) -> bool {
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
    write: impl FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> Result<Commit, Error> {
    await_lock(programs, meter, kind)?;
    restore_now(programs, meter, kind, write)
}

fn await_lock(programs: &Programs, meter: &Meter, kind: Kind) -> Result<(), Error> {
    Ok(programs.await_lock(meter).inspect_err(|_| meter.failed(kind == Kind::Partial))?)
}

fn restore_now(
    programs: &Programs,
    meter: &Meter,
    kind: Kind,
    mut write: impl FnMut(&mut dyn fmt::Write) -> fmt::Result,
) -> Result<Commit, Error> {
    let mut counts = Counts::default();
    let outcome = programs.restore(|out| {
        // The text may be written a second time, to find a line. The counts start again then.
        let mut counted = Counted {
            out,
            counts: Counts::default(),
            line: Line::Start,
            table: IptablesTable::Mangle,
            text: String::new(),
        };
        write(&mut counted)?;
        counts = counted.counts;
        Ok(())
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
    table: IptablesTable,
    /// The start of a line, while there is room for messages.
    text: String,
}

/// Returns true for a line of a restore that changes something, or names the table.
fn is_message(line: &str) -> bool {
    line.starts_with(['*', ':', '-'])
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
            (Line::Table, b'm') => self.table = IptablesTable::Mangle,
            (Line::Table, b'f') => self.table = IptablesTable::Filter,
            (Line::Table, b'n') => self.table = IptablesTable::Nat,
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
        if !self.counts.commit.messages.has_more() {
            self.text.push_str(text);
            // What follows the last end of a line is the start of another.
            let end = self.text.rfind('\n').map_or(0, |at| at.saturating_add(1));
            let whole = self.text.get(..end).unwrap_or_default();
            self.counts.commit.messages.extend(whole.lines().filter(|line| is_message(line)));
            self.text.drain(..end);
        }
        self.out.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Family;

    use super::*;
    use crate::Present;
    use crate::planner::tests::example::{cluster_ip, put};
    use crate::planner::tests::planner;

    /// Returns the number of transactions of the nat table in the full load of this many Service ports.
    fn transactions(variant: Variant, ports: u8) -> usize {
        let service = |number: u8| {
            let forwarding = cluster_ip(&format!("172.30.1.{number}"), 80, &["10.180.1.1:80"]);
            put(&format!("s{number}"), "", forwarding)
        };
        let services: Vec<_> = (0..ports).map(service).collect();
        let text = planner(Family::Ipv4, &services).full(&Present::default(), pieces(variant));
        text.lines().filter(|line| *line == "*nat").count()
    }

    /// The last transaction has the rules that lead to the chains of Service ports.
    #[test]
    fn only_the_front_end_of_nftables_gets_the_chains_in_pieces() {
        assert_eq!([100, 101, 250].map(|ports| transactions(Variant::Nft, ports)), [1 + 1, 2 + 1, 3 + 1]);
        assert_eq!([100, 101, 250].map(|ports| transactions(Variant::Legacy, ports)), [1; 3]);
    }
}
