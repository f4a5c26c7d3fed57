//! The trait that every data plane implements. It is small enough for a data plane that does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family, Forwarding, ServicePortName, Settings};

use crate::iptables::Variant;

/// What a commit wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commit {
    /// Number of element operations written. 0 means that the kernel already had every element.
    pub elements: usize,
    /// Number of other objects written: tables, chains, rules, sets.
    pub objects: usize,
    /// Bytes sent to the kernel.
    pub bytes: usize,
    /// Time that the kernel took, from the first byte sent to the last reply read.
    pub kernel: Duration,
    /// True if everything was read back and compared.
    pub full: bool,
    /// Service ports that could not be programmed, with the reason.
    pub refused: Vec<Refusal>,
}

impl Commit {
    /// Adds the counts of another transaction.
    pub(crate) fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.kernel += other.kernel;
    }
}

/// A change of a Service's `healthCheckNodePort`, on which its health check server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckPort {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// The port, or `None` if the Service has none.
    pub port: Option<u16>,
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
    pub(crate) const fn whole(name: Arc<ServicePortName>, reason: &'static str) -> Self {
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
    /// An iptables program failed or is not installed.
    #[error(transparent)]
    Iptables(#[from] crate::iptables::Error),
    /// IPVS virtual servers, or the ipsets and rules that belong to them, could not be read or written.
    #[error(transparent)]
    Ipvs(#[from] crate::ipvs::Error),
    /// A data plane outside this crate failed.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
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
    },
}

/// Longest time that a packet may take from the hook that translates or captures it to the hook where it leaves,
/// pauses of a (virtual) processor included. Rules that such packets still need are kept this long after another data
/// plane has taken over.
pub(crate) const TRANSIT_TIME: Duration = Duration::from_millis(300);

/// The iptables chains that a data plane uses. Modes share chain names, so the removal of one mode's rules must know
/// which chains the active mode uses.
#[derive(Debug, Clone, Copy)]
pub struct Chains {
    /// The kernel's iptables implementation that holds the chains.
    pub variant: Variant,
    /// The family of the chains.
    pub family: Family,
    /// Returns true for a chain of a table (in the sense of iptables) that the data plane uses.
    pub uses: fn(table: &str, chain: &str) -> bool,
}

/// A data plane for one IP family.
///
/// Before the first [`Dataplane::resync`] changes are only stored. Nothing is programmed and nothing is removed
/// before the complete desired state is known.
pub trait Dataplane {
    /// Returns the mode, as in configuration files.
    fn mode(&self) -> &'static str;

    /// Returns where the rules are, for modes that have a choice (such as the two iptables implementations). If two
    /// data planes of one family have the same place, the later one updates the rules of the former, and none are
    /// removed between them.
    fn place(&self) -> &'static str {
        self.mode()
    }

    /// Applies changes as one transaction. After an error the changes stay stored, and the next call of any method
    /// that commits compares everything.
    fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error>;

    /// Applies changes, reads back what the kernel has, and writes only the difference.
    fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error>;

    /// Runs [`Dataplane::compare`] without changes.
    fn resync(&mut self) -> Result<Commit, Error> {
        self.compare(&[])
    }

    /// Sets the health-check node ports of changed Services. Returns true if rules must be written to open or close
    /// them. Modes that do not filter traffic to the node return false.
    fn open_health_check_ports(&mut self, _health_checks: &[HealthCheckPort]) -> bool {
        false
    }

    /// Sets new settings. The next [`Dataplane::resync`] programs them.
    fn configure(&mut self, settings: Settings);

    /// Removes what only deleted Services needed. Returns true if there is more to remove, a second later.
    fn collect(&mut self) -> Result<bool, Error>;

    /// Returns true if [`Dataplane::collect`] has something to remove.
    fn needs_collection(&self) -> bool;

    /// Returns true if the kernel does not notify this mode of changes by other programs. Its rules are then checked
    /// periodically with [`Dataplane::is_intact`].
    fn needs_checks(&self) -> bool {
        false
    }

    /// Returns true if the rules written are still in the kernel, as far as a quick check shows. Otherwise everything
    /// is compared.
    fn is_intact(&mut self) -> Result<bool, Error> {
        Ok(true)
    }

    /// Removes everything that carries this data plane's name.
    fn remove(&mut self) -> Result<(), Error>;

    /// Runs [`Dataplane::remove`] in parts, each short enough to run between two commits of another data plane.
    /// Returns true if there is more to remove. The first part removes the rules that translate or capture packets.
    fn remove_part(&mut self) -> Result<bool, Error> {
        self.remove().map(|()| false)
    }

    /// Returns the iptables chains that this data plane uses, or `None` if it uses none.
    fn chains(&self) -> Option<Chains> {
        None
    }

    /// Runs [`Dataplane::remove_part`] after a data plane of another place has taken over. Chains in `kept`, which
    /// the active data plane uses, are not removed. After an error it is called again.
    fn retire(&mut self, _kept: Option<Chains>) -> Result<bool, Error> {
        self.remove_part()
    }

    /// Returns when [`Dataplane::retire`] is to be called again, or `None` if it need not wait.
    fn next_attempt(&self) -> Option<Instant> {
        None
    }

    /// Returns the forwarding table, with all changes applied or stored so far.
    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_>;
}
