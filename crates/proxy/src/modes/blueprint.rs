//! The options from which data planes are created, and what they are created with.

use std::sync::Arc;

use portolan_engine::Boxed;
use portolan_engine::Error;
use portolan_engine::drift::Own;
use portolan_iptables::{Meter, Programs};
use portolan_model::catalog::PerFamily;
use portolan_model::{Family, Settings};
use portolan_nftables::Reading;
use portolan_node::config::{Configuration, Mode};

use super::affinity::FullLists;
use super::{RelayCounters, Relays, ipvs, nftables, userspace};
use crate::node_settings::KernelSettings;
use crate::settings;

/// The options from which a mode creates a family's data plane.
pub(super) trait PlaneOptions {
    /// Returns true if the data plane calls programs of iptables. Their rules are in kube-proxy's chains.
    fn calls_programs(&self) -> bool {
        false
    }

    /// Returns true if the programs load rules for each endpoint. This may take more memory than the process may have.
    fn loads_each_endpoint(&self) -> bool {
        false
    }

    /// Returns true if packets go to a relay.
    fn captures(&self) -> bool {
        false
    }

    /// See [`Blueprint::make`].
    fn make(
        &self,
        settings: Settings,
        programs: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Result<Made, Error>;
}

/// The options from which a data plane is created, apart from the [`Settings`] that it can change while it runs. Two
/// equal blueprints give equivalent data planes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Blueprint {
    Nftables(nftables::NftablesPlaneOptions),
    Iptables(portolan_iptables::IptablesOptions),
    Ipvs(ipvs::IpvsPlaneOptions),
    Userspace(userspace::UserspacePlaneOptions),
}

impl Blueprint {
    /// Returns the blueprint that a configuration asks for on this node.
    pub(crate) fn new(configuration: &Configuration, family: Family, node: &settings::Node<'_>) -> Self {
        super::configured(configuration).blueprint(configuration, family, node)
    }

    fn options(&self) -> &dyn PlaneOptions {
        match self {
            Self::Nftables(options) => options,
            Self::Iptables(options) => options,
            Self::Ipvs(options) => options,
            Self::Userspace(options) => options,
        }
    }

    /// Returns the mode of the data plane.
    pub(crate) const fn mode(&self) -> Mode {
        match self {
            Self::Nftables(_) => Mode::Nftables,
            Self::Iptables(_) => Mode::Iptables,
            Self::Ipvs(_) => Mode::Ipvs,
            Self::Userspace(_) => Mode::Userspace,
        }
    }

    /// Returns true if the data plane calls programs of iptables. [`Blueprint::make`] needs them then.
    pub(crate) fn calls_programs(&self) -> bool {
        self.options().calls_programs()
    }

    /// Returns true if the rules have kube-proxy's names. The removal of kube-proxy's rules would then remove them
    /// too.
    pub(crate) fn has_names_of_kube_proxy(&self) -> bool {
        self.options().calls_programs()
    }

    /// Returns true if loading the rules may take more memory than the process may have.
    pub(crate) fn loads_each_endpoint(&self) -> bool {
        self.options().loads_each_endpoint()
    }

    /// Returns true if packets go to a relay.
    pub(crate) fn captures(&self) -> bool {
        self.options().captures()
    }

    /// Returns the blueprint that replaces this one when the process ends: without a relay, packets do not depend on it.
    pub(crate) fn without_relay(self) -> Self {
        match self {
            Self::Userspace(options) => options.without_relay(),
            others => others,
        }
    }

    /// Creates the data plane. Writes the kernel settings that it needs. `programs` are those of the settings' family.
    pub(crate) fn make(
        &self,
        settings: Settings,
        programs: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Result<Made, Error> {
        self.options().make(settings, programs, shared)
    }
}

/// Counters of the data planes that metrics read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meters {
    pub(crate) iptables: PerFamily<Arc<Meter>>,
    pub(crate) ipvs: PerFamily<Arc<portolan_ipvs::Meter>>,
    pub(crate) relays: RelayCounters,
    /// What the log has of lists of clients with session affinity in the iptables mode.
    pub(crate) full_lists: FullLists,
}

/// The state that data planes share.
#[derive(Debug)]
pub(crate) struct SharedParts {
    pub(crate) meters: Meters,
    pub(crate) relays: Relays,
    pub(crate) kernel_settings: Arc<KernelSettings>,
    /// The reading of a family's table that an earlier process has left, for the first data plane.
    pub(crate) reading: Option<(Family, Reading)>,
}

/// A new data plane. It has not changed any rule yet.
pub(crate) struct Made {
    pub(crate) dataplane: Boxed,
    /// The rules that this data plane owns, if the kernel sends notifications when other programs change them.
    pub(crate) own: Option<Own>,
}

/// The programs of iptables that a family's data plane is to call, or why there are none.
pub(crate) type FoundPrograms = Result<Programs, portolan_iptables::Error>;

/// Finds the programs of iptables of these families. Runs programs.
pub(crate) fn find_programs(families: &[Family]) -> PerFamily<Option<FoundPrograms>> {
    let mut found = PerFamily::default();
    for &family in families {
        *found.get_mut(family) = Some(Programs::find(family));
    }
    found
}

/// Returns the programs that were found for a family. Finds them if that has not been done.
pub(super) fn required(programs: Option<FoundPrograms>, family: Family) -> FoundPrograms {
    programs.unwrap_or_else(|| Programs::find(family))
}
