//! The trait that every data plane has, small enough for one that does nothing.

use std::sync::Arc;

use portolan_model::{Change, Forwarding, ServicePortName, Settings};

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
    pub kernel: std::time::Duration,
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

/// One Service port that could not be programmed, while all others were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Which Service port.
    pub name: Arc<ServicePortName>,
    /// Why, and what would mend it.
    pub reason: &'static str,
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
    /// The kernel lacks something; the text names what and how to get it.
    #[error("this kernel cannot run the nftables mode: {missing}")]
    Unsupported {
        /// What is missing.
        missing: String,
    },
    /// Others kept changing the ruleset while it was being read.
    #[error("the nftables ruleset changed {attempts} times while it was being compared; trying again later")]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
}

/// A data plane for one IP family.
///
/// Before the first [`Dataplane::resync`] changes are only remembered: nothing is programmed, and nothing
/// removed, before the complete desired state is known.
pub trait Dataplane {
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

    /// Removes everything that carries this data plane's name.
    fn remove(&mut self) -> Result<(), Error>;

    /// The table as it was last taken in.
    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_>;
}
