//! The trait that every data plane has, small enough for one that does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family, Forwarding, ServicePortName, Settings};

use crate::iptables::Variant;

/// What a commit did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    /// Element operations written. Zero means that the kernel had everything already.
    pub elements: usize,
    /// Other objects written: tables, chains, rules, sets.
    pub objects: usize,
    /// Bytes sent to the kernel.
    pub bytes: usize,
    /// Kernel time of the commit: from the first byte sent to the last answer read.
    pub kernel: Duration,
    /// Whether everything was read back and compared.
    pub full: bool,
    /// Service ports that could not be programmed, with the reason.
    pub refused: Vec<Refusal>,
}

impl Commit {
    /// Counts another transaction in.
    pub(crate) fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.kernel += other.kernel;
    }
}

/// The `healthCheckNodePort` of a Service, on which its health check server answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckPort {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// Its port now, if it has one.
    pub port: Option<u16>,
}

/// One Service port that could not be programmed, or not wholly, while all others were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which Service port.
    pub name: Arc<ServicePortName>,
    /// Why, and what would mend it.
    pub reason: &'static str,
    /// How much of it is missing.
    pub extent: Extent,
}

/// How much of a Service port could not be programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Clients may not reach it at all.
    Whole,
    /// Clients reach it; not every endpoint is used.
    Endpoints,
}

impl Refusal {
    /// Of a whole Service port.
    pub(crate) const fn whole(name: Arc<ServicePortName>, reason: &'static str) -> Self {
        Self { name, reason, extent: Extent::Whole }
    }
}

/// Why a data plane could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a transaction.
    #[error(transparent)]
    Commit(#[from] portolan_sock::CommitError),
    /// A netlink socket failed.
    #[error(transparent)]
    Socket(#[from] portolan_sock::SocketError),
    /// An iptables program failed, or is not there.
    #[error(transparent)]
    Iptables(#[from] crate::iptables::Error),
    /// Virtual servers, or what belongs to them, could not be read or written.
    #[error(transparent)]
    Ipvs(#[from] crate::ipvs::Error),
    /// A data plane outside this crate failed.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// The kernel lacks something; the text names what and how to get it.
    #[error("this kernel cannot run the {mode} mode: {missing}")]
    Unsupported {
        /// The mode, as configurations spell it.
        mode: &'static str,
        /// What is missing.
        missing: String,
    },
    /// Others kept changing what was being read.
    #[error(
        "what the {mode} mode reads changed {attempts} times while it was being compared; trying again later"
    )]
    Contended {
        /// The mode, as configurations spell it.
        mode: &'static str,
        /// How often it was tried.
        attempts: u32,
    },
}

/// How long a packet may need from where it is led in to where it leaves, pauses of a (virtual) processor included. What such
/// a packet still needs stays for so long when another data plane is in force.
pub(crate) const PASSAGE: Duration = Duration::from_millis(300);

/// Chains of iptables that a data plane uses. Modes share names of chains, so whoever removes the rules of another mode
/// has to know them.
#[derive(Debug, Clone, Copy)]
pub struct Chains {
    /// Which of the kernel's two iptables they are in.
    pub variant: Variant,
    /// Their family.
    pub family: Family,
    /// Whether a chain of a table (as iptables calls it) is one of them.
    pub uses: fn(table: &str, chain: &str) -> bool,
}

/// A data plane for one IP family.
///
/// Before the first [`Dataplane::resync`] changes are only remembered: nothing is programmed, and nothing
/// removed, before the complete desired state is known.
pub trait Dataplane {
    /// The mode, as configurations spell it.
    fn mode(&self) -> &'static str;

    /// Where its rules are, for modes that have a choice. Of two data planes of one family and place, the later one goes
    /// on with what the former wrote: nothing is removed between them.
    fn place(&self) -> &'static str {
        self.mode()
    }

    /// Takes changes in and commits them as one transaction. After an error the changes are remembered; the
    /// next call compares everything, whichever it is.
    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error>;

    /// Takes changes in, reads back what the kernel has and writes only the difference.
    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error>;

    /// [`Dataplane::compare`] without changes.
    fn resync(&mut self) -> Result<Commit, Error> {
        self.compare(&[])
    }

    /// Takes in which health check ports there are, each where it changed. Says whether the next commit has to do
    /// something for them: not where whoever reaches the node reaches them.
    fn let_in(&mut self, _health_checks: &[HealthCheckPort]) -> bool {
        false
    }

    /// Takes new settings; the next [`Dataplane::resync`] programs them.
    fn configure(&mut self, settings: Settings);

    /// Removes what only former Services needed. Says whether there is more to remove a second later.
    fn collect(&mut self) -> Result<bool, Error>;

    /// Whether [`Dataplane::collect`] has something to do.
    fn needs_collection(&self) -> bool;

    /// Whether nobody tells when others change its rules, so that [`Dataplane::is_intact`] has to be asked from time to
    /// time.
    fn needs_checks(&self) -> bool {
        false
    }

    /// Whether what it wrote is still there, as far as that can be told quickly. After a no, everything is compared.
    fn is_intact(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    /// Removes everything that carries this data plane's name.
    fn remove(&mut self) -> Result<(), Error>;

    /// [`Dataplane::remove`] in parts, each short enough to stand between two commits of another data plane. Says
    /// whether there is more to remove. The first part takes away what leads packets in.
    fn remove_some(&mut self) -> Result<bool, Error> {
        self.remove().map(|()| false)
    }

    /// Chains of iptables that it uses, where it uses any.
    fn chains(&self) -> Option<Chains> {
        None
    }

    /// [`Dataplane::remove_some`], now that a data plane of another place does the work: what that one uses (`kept`)
    /// stays. After an error it is called again.
    fn give_way(&mut self, _kept: Option<Chains>) -> Result<bool, Error> {
        self.remove_some()
    }

    /// When [`Dataplane::give_way`] has something to do again, where it waits for a while.
    fn way_due(&self) -> Option<Instant> {
        None
    }

    /// The table as it was last taken in.
    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_>;
}
