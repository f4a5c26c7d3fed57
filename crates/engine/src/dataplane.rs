//! The trait that every data plane implements, and the values that it takes and returns.
//!
//! A data plane programs one family in one mode. Its owner, the [engine](crate), has the wanted state
//! ([`Table`]), knows whether the kernel has it, and keeps the time. So a data plane needs no copy of the table, no
//! state machine and no clock. It keeps what it must know of the kernel's state: names, numbers, sockets.
//!
//! ```text
//!         Table, Changes                        messages
//!  engine ───────────────> Dataplane: plan ───────────────> kernel
//!         <─────────────── Commit, Error  <── what it has ─
//! ```
//!
//! What the owner guarantees:
//!
//! - The first call is [`Dataplane::compare`] or [`Dataplane::remove_part`]. Before the complete wanted state is known,
//!   there is no call.
//! - [`Dataplane::apply`], [`Dataplane::check`] and [`Dataplane::collect`] are called only in sync: the last
//!   comparison succeeded, no commit or collection failed after it, and no drift is known. Otherwise the next call is
//!   [`Dataplane::compare`].
//! - `table` is the wanted state, with `changes` applied. `changes` is the difference between the table of the previous
//!   call of `apply` or `compare`, whether it succeeded or not, and this one. For the first call, that is the whole table,
//!   or nothing if the data plane [starts from the table](About::starts_from_table). Each `old` is exact.
//! - Changes that arrive during a comparison are offered to it ([`Meanwhile`]). Those that it takes are in the table of the
//!   next call.
//! - `apply` is called with the settings of the last comparison. After new settings the next call is `compare`.
//! - After the first [`Dataplane::remove_part`] there is no other call but [`Dataplane::suspend_removal`], and none after
//!   [`Dataplane::leave`].
//!
//! It must not know a mode, the API server or time.

use std::sync::Arc;
use std::time::Duration;

use portolan_model::{Family, ServicePortName};

pub use crate::messages::Messages;
use crate::table::{Changes, Table};

/// What a commit wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    /// Number of element operations written. 0 means that the kernel already had every element.
    pub elements: usize,
    /// Number of other objects written: tables, chains, rules, sets.
    pub objects: usize,
    /// Bytes sent to the kernel.
    pub bytes: usize,
    /// The first of what was written.
    pub messages: Messages,
    /// Time that the kernel took, from the first byte sent to the last reply read.
    pub kernel: Duration,
    /// True if everything was read back and compared.
    pub full: bool,
    /// Service ports that could not be programmed, with the reason.
    pub refused: Vec<Refusal>,
}

impl Commit {
    /// Adds the counts of another transaction.
    pub fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.messages.add(&other.messages);
        self.kernel += other.kernel;
    }
}

/// A Service port that could not be programmed, or only in part. All others were programmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The Service port.
    pub name: Arc<ServicePortName>,
    /// The reason, and what to do about it.
    pub reason: &'static str,
    /// How much of the Service port is missing.
    pub extent: Extent,
}

/// How much of a Service port could not be programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Clients may not reach it at all.
    Whole,
    /// Clients reach it, but not every endpoint is used.
    Endpoints,
}

impl Refusal {
    /// Returns the refusal of a whole Service port.
    pub const fn whole(name: Arc<ServicePortName>, reason: &'static str) -> Self {
        Self { name, reason, extent: Extent::Whole }
    }
}

/// Why a data plane failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a transaction.
    #[error(transparent)]
    Commit(#[from] portolan_sock::CommitError),
    /// A netlink socket failed.
    #[error(transparent)]
    Socket(#[from] portolan_sock::SocketError),
    /// Something failed that only one mode has, such as a program that it runs. See [`Error::of_mode`].
    #[error(transparent)]
    Mode(Box<dyn std::error::Error + Send + Sync>),
    /// The kernel lacks a feature. The text names it and says how to get it.
    #[error("this kernel cannot run the {mode} mode: {missing}")]
    Unsupported {
        /// The mode, as in configuration files.
        mode: &'static str,
        /// The missing feature.
        missing: String,
    },
    /// Other programs kept changing the rules while they were read.
    #[error(
        "what the {mode} mode reads changed {attempts} times while it was being compared; trying again later"
    )]
    Contended {
        /// The mode, as in configuration files.
        mode: &'static str,
        /// Number of attempts.
        attempts: u32,
        /// True if nothing was found to be different, nothing was written, and there were no changes. So the data plane still
        /// writes changes without a comparison.
        is_unchanged: bool,
    },
}

impl Error {
    /// Returns an error that only one mode has.
    pub fn of_mode(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Mode(Box::new(error))
    }

    /// Returns the error that the mode gave to [`Error::of_mode`], if it is of this type.
    pub fn mode_error<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Mode(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

/// Longest time that a packet may take from the hook that translates or captures it to the hook where it leaves,
/// pauses of a (virtual) processor included. Rules that such packets still need are kept this long after another data
/// plane has taken over.
pub const TRANSIT_TIME: Duration = Duration::from_millis(300);

/// The mode of a data plane, and where its rules are. It stays the same as long as the data plane exists.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// The mode, as in configuration files.
    pub mode: &'static str,
    /// Where the rules are, for modes that have a choice (such as the two iptables implementations); otherwise the mode.
    /// If two data planes of one family have the same place, the later one updates the rules of the former, and none are
    /// removed between them.
    pub place: &'static str,
    /// True if the kernel notifies of changes by other programs. Otherwise the rules are checked periodically with
    /// [`Dataplane::check`].
    pub is_notified: bool,
    /// The names that the data plane uses where other modes have names, too.
    pub claims: Option<Claims>,
    /// True if the first comparison goes through the table and needs no changes, which are empty then, also those of
    /// health-check node ports. With them, every Service port would be in memory twice.
    pub starts_from_table: bool,
}

impl About {
    /// Returns the description of a data plane whose place is named after its mode, which shares no names, and of whose
    /// changes the kernel notifies.
    pub const fn of(mode: &'static str) -> Self {
        Self { mode, place: mode, is_notified: true, claims: None, starts_from_table: false }
    }
}

/// Names of chains that a data plane uses where other modes have chains, too. Modes share some names, so the removal of
/// one mode's rules must leave the chains that the active mode uses.
#[derive(Debug, Clone, Copy)]
pub struct Claims {
    /// Where the chains are, such as one of the kernel's two iptables.
    pub place: &'static str,
    /// The family of the chains.
    pub family: Family,
    /// Returns true for a chain of a table that the data plane uses.
    pub uses: fn(table: &str, chain: &str) -> bool,
}

impl Claims {
    /// Returns true if the claims are about the same place and family.
    pub fn are_where(&self, other: &Self) -> bool {
        (self.place, self.family) == (other.place, other.family)
    }
}

/// How far a collection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collection {
    /// Nothing is left to remove.
    Done,
    /// There is more to remove, a second later.
    Continues,
}

/// What a quick check finds of the rules in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// They are as they were written, and as they should be.
    Intact,
    /// They are as they were written, but should be others: something else than the table has changed that they depend on, such as
    /// the addresses of the node. Everything is compared.
    Outdated,
    /// Another program has changed them: drift. Everything is compared.
    Changed,
}

/// What has taken over from a data plane that is to be removed.
#[derive(Debug, Clone, Copy)]
pub struct Takeover<'a> {
    /// What is wanted of the active data plane. Empty at a clean-up.
    pub table: &'a Table,
    /// The claims of the active data plane.
    pub kept: Option<Claims>,
    /// The time since the first call. Connections that drain end when it exceeds their time to drain.
    pub elapsed: Duration,
}

/// How far a removal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Nothing is left.
    Done,
    /// The next part follows, no sooner than after this wait.
    Continues(Duration),
}

/// Changes that arrive while a data plane compares everything. A comparison of a large table takes seconds, and a packet
/// should not go to a removed endpoint for as long.
pub trait Meanwhile {
    /// Returns the changes that have arrived since the last call, or `None` if there are none. `old` is the state after the
    /// changes returned before, and at first that of the table. They belong to the table from now on: the next call of the
    /// data plane has them in its table, and not in its changes.
    fn arrived(&mut self) -> Option<Changes>;

    /// Says that the kernel has the changes returned last. If it is not called, the comparison has to write them.
    fn written(&mut self, commit: Commit);
}

/// No changes arrive.
#[derive(Debug, Clone, Copy, Default)]
pub struct Undisturbed;

impl Meanwhile for Undisturbed {
    fn arrived(&mut self) -> Option<Changes> {
        None
    }

    fn written(&mut self, _commit: Commit) {}
}

/// A data plane for one IP family. See the [module](self) for what its owner guarantees.
pub trait Dataplane {
    /// Returns the mode, the place and the names.
    fn about(&self) -> About;

    /// Writes the changes, as one transaction if the kernel has transactions. What packets on their way may look for comes in an
    /// earlier one, or goes in a later one.
    ///
    /// The cost must be that of the changes. Service ports that cannot be programmed are left out and listed in
    /// [`Commit::refused`]; they are no error. A data plane that cannot write only the changes may compare everything,
    /// and says so with [`Commit::full`].
    ///
    /// # Errors
    /// The kernel may have none or some of the changes. What it had of other Service ports is as before.
    fn apply(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error>;

    /// Reads what the kernel has, whatever it is, and writes the difference to `table`, so that the kernel has `table`
    /// and nothing else of this mode.
    ///
    /// If the kernel has everything, nothing may be written. If it has nothing, everything takes effect at once, or each
    /// Service port as a whole. Sets [`Commit::full`].
    ///
    /// # Errors
    /// The kernel may have a part. What it had and still should have goes on working. It is called again later.
    fn compare(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error>;

    /// Does the same as [`Dataplane::compare`], and writes changes that arrive meanwhile before it is complete. At its end
    /// the kernel has them, too. A data plane whose comparison is short does not ask for them, and they follow it.
    ///
    /// # Errors
    /// See [`Dataplane::compare`].
    fn compare_and_follow(
        &mut self,
        table: &Table,
        changes: &Changes,
        _meanwhile: &mut dyn Meanwhile,
    ) -> Result<Commit, Error> {
        self.compare(table, changes)
    }

    /// Returns whether the rules in the kernel are as they should be, as far as a quick check shows. Called only if the kernel
    /// does not notify of changes ([`About::is_notified`]).
    fn check(&mut self, _table: &Table) -> Result<Condition, Error> {
        Ok(Condition::Intact)
    }

    /// Removes what only deleted Services needed and [`Dataplane::apply`] left, in a short piece of work. Called some
    /// seconds after commits.
    fn collect(&mut self) -> Result<Collection, Error> {
        Ok(Collection::Done)
    }

    /// Keeps what the next start can use, outside of the kernel. Called last, when the process ends in sync and the rules stay.
    /// `generation` is that of the ruleset at which no drift was known. If the ruleset has another one, a program may have changed
    /// the rules.
    fn leave(&mut self, _table: &Table, _generation: u32) {}

    /// Removes a part of everything that carries this data plane's name, short enough to run between two commits of
    /// another data plane. Called after another data plane has taken over, or at a clean-up, also for what an earlier
    /// process left.
    ///
    /// The first part removes the rules that translate or capture packets. Rules that packets on their way still need
    /// stay for [`TRANSIT_TIME`]. Chains that the active data plane claims are not removed.
    ///
    /// # Errors
    /// Something is left. It is called again later.
    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Removal, Error>;

    /// Says that another data plane is about to compare, which may have the same place or claim the same chains. What it finds in
    /// the kernel has to stay. So nothing may be removed from the return of this call to the next [`Dataplane::remove_part`], which
    /// tells what is kept from then on. A data plane that removes something only within `remove_part` has nothing to do.
    fn suspend_removal(&mut self) {}
}

impl<D: Dataplane + ?Sized> Dataplane for Box<D> {
    fn about(&self) -> About {
        (**self).about()
    }

    fn apply(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        (**self).apply(table, changes)
    }

    fn compare(&mut self, table: &Table, changes: &Changes) -> Result<Commit, Error> {
        (**self).compare(table, changes)
    }

    fn compare_and_follow(
        &mut self,
        table: &Table,
        changes: &Changes,
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<Commit, Error> {
        (**self).compare_and_follow(table, changes, meanwhile)
    }

    fn check(&mut self, table: &Table) -> Result<Condition, Error> {
        (**self).check(table)
    }

    fn collect(&mut self) -> Result<Collection, Error> {
        (**self).collect()
    }

    fn leave(&mut self, table: &Table, generation: u32) {
        (**self).leave(table, generation);
    }

    fn remove_part(&mut self, takeover: &Takeover<'_>) -> Result<Removal, Error> {
        (**self).remove_part(takeover)
    }

    fn suspend_removal(&mut self) {
        (**self).suspend_removal();
    }
}
