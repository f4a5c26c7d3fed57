//! The IPVS mode: checks what the kernel lacks for it, writes its kernel settings, and derives its options from the
//! configuration.

use std::sync::Arc;

use portolan_engine::{Claims, Error, Table};
use portolan_iptables::Programs;
use portolan_ipvs::{Ipvs, KernelVersion};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, IpvsScheduler, Settings};
use portolan_node::config::{Configuration, Mode};
use portolan_node::metrics::ProxyMetrics;
use portolan_node::sysctl::Wanted;
use portolan_wire::ipvs::Timeouts;

use super::blueprint::{PlaneOptions, required};
use super::{Blueprint, FoundPrograms, Known, Made, Meters, ModeDriver, Over, Plane, SharedParts, iptables};
use crate::finding::{self, Finding};
use crate::node_settings::KernelSettings;
use crate::settings;

/// The driver of this mode.
pub(super) struct Driver;

impl ModeDriver for Driver {
    fn mode(&self) -> Mode {
        Mode::Ipvs
    }

    fn trial(&self, configuration: &Configuration, family: Family) -> Option<Finding> {
        missing(configuration, &[family]).map(|reason| Finding::Ipvs { family, reason })
    }

    fn blueprint(&self, configuration: &Configuration, _: Family, _: &settings::Node<'_>) -> Blueprint {
        Blueprint::Ipvs(options(configuration))
    }

    fn read(&self, family: Family, known: Option<&Known>) -> Result<Option<Observed>, Error> {
        let known = known.map(|known| portolan_ipvs::Known {
            exclude: &known.ipvs_exclude,
            node_port_addresses: &known.node_port_addresses,
            variant: known.variant,
        });
        Ok(portolan_ipvs::read(family, known)?)
    }

    fn preview(
        &self,
        configuration: &Configuration,
        node: &settings::Node<'_>,
        table: &Table,
        over: Over,
    ) -> Result<Vec<String>, Error> {
        let options = options(configuration).dataplane;
        match over {
            Over::Kernel => {
                let programs = Programs::find(table.family())?;
                Ipvs::open(programs, table.settings().clone(), options)?.preview(table)
            }
            Over::Nothing => Ok(portolan_ipvs::preview_of_all(table, &options, node.addresses)),
        }
    }

    fn kernel_settings(&self, configuration: &Configuration, _: &settings::Node<'_>) -> Vec<Wanted> {
        wanted(configuration.ipvs.strict_arp)
    }

    /// Without it, packets through virtual servers are not masqueraded.
    fn needed_settings(&self, configuration: &Configuration) -> Vec<Wanted> {
        let mut needed = wanted(configuration.ipvs.strict_arp);
        needed.retain(|setting| setting.path == portolan_ipvs::CONNTRACK_SETTING);
        needed
    }

    fn claims(&self, _: &Configuration, family: Family) -> Option<Claims> {
        let iptables = iptables::claims(family)?;
        Some(Claims { uses: portolan_ipvs::uses, ..iptables })
    }

    fn differences(&self, _: &Configuration, _: Family, _: &settings::Node<'_>) -> ModeDifferences {
        ModeDifferences::ipvs()
    }

    /// To `kube-ipvs0`.
    fn adds_addresses(&self) -> bool {
        true
    }

    /// An endpoint of UDP goes at once: see the head of crate ipvs.
    fn keeps_udp_flows(&self) -> bool {
        false
    }

    fn initialise(
        &self,
        configuration: &Configuration,
        _: &settings::Node<'_>,
        kernel_settings: &KernelSettings,
    ) {
        write_settings(configuration.ipvs.strict_arp, kernel_settings);
    }

    fn former(
        &self,
        configuration: &Configuration,
        family: Family,
        programs: Option<FoundPrograms>,
    ) -> Option<Plane> {
        if self.is_configured(configuration) {
            return None;
        }
        former(configuration, family, programs).map(|dataplane| Box::new(dataplane) as Plane)
    }

    fn former_calls_programs(&self, configuration: &Configuration, family: Family) -> bool {
        // [`former`] reports the error.
        !self.is_configured(configuration) && portolan_ipvs::is_left(family).unwrap_or(false)
    }

    fn with_measures(&self, metrics: ProxyMetrics, meters: &Meters) -> ProxyMetrics {
        let meters = meters.ipvs.clone();
        // `None` if this mode has not run.
        metrics.with_ipvs(move |family| {
            meters.get(family).draining().and_then(|count| u64::try_from(count).ok())
        })
    }
}

/// The options from which a data plane is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IpvsPlaneOptions {
    dataplane: portolan_ipvs::IpvsOptions,
    strict_arp: bool,
}

/// Returns the options from the `ipvs` section of a configuration.
fn options(configuration: &Configuration) -> IpvsPlaneOptions {
    let section = &configuration.ipvs;
    let seconds = |period: std::time::Duration| u32::try_from(period.as_secs()).unwrap_or(u32::MAX);
    let dataplane = portolan_ipvs::IpvsOptions {
        // The check of the mode refuses an unknown scheduler, unless another mode runs.
        scheduler: IpvsScheduler::named(&section.scheduler).unwrap_or_default(),
        exclude: section.exclude_cidrs.clone(),
        timeouts: Timeouts {
            tcp: seconds(section.tcp_timeout),
            tcp_fin: seconds(section.tcp_fin_timeout),
            udp: seconds(section.udp_timeout),
        },
        ..portolan_ipvs::IpvsOptions::default()
    };
    IpvsPlaneOptions { dataplane, strict_arp: section.strict_arp }
}

/// Returns what this node lacks for the mode as configured. Leaves nothing in the kernel. Runs programs.
pub(super) fn missing(configuration: &Configuration, families: &[Family]) -> Option<String> {
    let scheduler = &configuration.ipvs.scheduler;
    // An unknown name is refused without asking the kernel.
    if !scheduler.is_empty() && IpvsScheduler::named(scheduler).is_none() {
        let names = IpvsScheduler::names();
        return Some(format!("no scheduler is called `{scheduler}`; write one of {names} (ipvs.scheduler)"));
    }
    match portolan_ipvs::available(scheduler, families) {
        Ok(_) => {}
        // Without ipsets the rules of this mode cannot be tried.
        Err(Error::Unsupported { missing, .. }) => return Some(missing),
        Err(error) => return Some(error.to_string()),
    }
    let missing: Vec<String> = families.iter().filter_map(|&family| attempt(family).err()).collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// Returns why the rules of this mode cannot be written. Leaves no rules. Runs programs.
fn attempt(family: Family) -> Result<(), String> {
    let programs = Programs::find(family).map_err(|error| error.to_string())?;
    match portolan_ipvs::try_rules(&programs, family) {
        Ok(missing) => missing.map_or(Ok(()), Err),
        Err(error) => Err(error.to_string()),
    }
}

impl PlaneOptions for IpvsPlaneOptions {
    fn calls_programs(&self) -> bool {
        true
    }

    /// Writes the kernel settings of this mode.
    fn make(
        &self,
        settings: Settings,
        programs: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Result<Made, Error> {
        write_settings(self.strict_arp, &shared.kernel_settings);
        let family = settings.family;
        let meter = Arc::clone(shared.meters.ipvs.get(family));
        let programs = required(programs, family)?;
        let dataplane = Ipvs::open(programs, settings, self.dataplane.clone())?.with_meter(meter);
        Ok(Made { dataplane: Box::new(dataplane), own: None })
    }
}

/// Opens a data plane for what an earlier run in this mode left. It removes the virtual servers when their
/// connections have ended, and does not depend on programs for that. Returns `None` if there is nothing left. Runs programs, unless
/// they are given.
pub(super) fn former(
    configuration: &Configuration,
    family: Family,
    programs: Option<FoundPrograms>,
) -> Option<Ipvs> {
    let open = || {
        if !portolan_ipvs::is_left(family)? {
            return Ok(None);
        }
        // The data plane says what it cannot do without them.
        let programs = required(programs, family).ok();
        let options = options(configuration).dataplane;
        Ipvs::open_to_remove(programs, settings::neutral(family), options).map(Some)
    };
    open().unwrap_or_else(|error: Error| {
        tracing::warn!(%family, %error, "what the ipvs mode left, if there is anything, stays until the next start");
        None
    })
}

/// Returns the settings that a start of this mode writes, with the kernel's defaults; with `strict_arp`, those of ARP,
/// too. Forwarding has none: it stays on.
pub(crate) fn start_values(strict_arp: bool) -> Vec<(Wanted, Option<u64>)> {
    let with_default = |written: Wanted| (written, portolan_ipvs::kernel_default(written.path));
    wanted(strict_arp).into_iter().map(with_default).collect()
}

fn wanted(strict_arp: bool) -> Vec<Wanted> {
    let release = rustix::system::uname().release().to_string_lossy().parse::<KernelVersion>();
    let wanted = portolan_ipvs::kernel_settings(release.ok(), strict_arp);
    wanted.into_iter().map(|(path, value)| Wanted::exactly(path, value)).collect()
}

/// Writes the kernel settings that differ. Logs those that cannot be written with the commands that set them.
fn write_settings(strict_arp: bool, kernel_settings: &KernelSettings) {
    let refused = kernel_settings.apply(&wanted(strict_arp));
    let settings: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if !settings.is_empty() {
        finding::log(&[Finding::IpvsSettings { settings: settings.join("; ") }]);
    }
}
