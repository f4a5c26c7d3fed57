//! The IPVS mode: checks what the kernel lacks for it, writes its kernel settings, and derives its options from the
//! configuration.

use std::sync::Arc;

use portolan_engine::Error;
use portolan_ipvs::{Ipvs, KernelVersion};
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, IpvsScheduler, Settings};
use portolan_node::config::{Configuration, Mode};
use portolan_node::metrics::ProxyMetrics;
use portolan_node::sysctl::{Host, PutBack, Wanted};
use portolan_wire::ipvs::Timeouts;

use super::blueprint::{PlaneOptions, required};
use super::{Blueprint, FoundPrograms, Made, Meters, ModeDriver, Plane, Shared, iptables};
use crate::checks::{self, Finding};
use crate::{node_settings, settings};

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

    fn differences(&self, _: &Configuration, _: Family, _: &settings::Node<'_>) -> ModeDifferences {
        ModeDifferences::ipvs()
    }

    /// To `kube-ipvs0`.
    fn adds_addresses(&self) -> bool {
        true
    }

    fn initialise(&self, configuration: &Configuration, _: &settings::Node<'_>) {
        write_settings(configuration.ipvs.strict_arp);
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
pub(crate) struct Options {
    dataplane: portolan_ipvs::Options,
    strict_arp: bool,
}

/// Returns the options from the `ipvs` section of a configuration.
fn options(configuration: &Configuration) -> Options {
    let section = &configuration.ipvs;
    let seconds = |period: std::time::Duration| u32::try_from(period.as_secs()).unwrap_or(u32::MAX);
    let dataplane = portolan_ipvs::Options {
        // The check of the mode refuses an unknown scheduler, unless another mode runs.
        scheduler: IpvsScheduler::named(&section.scheduler).unwrap_or_default(),
        exclude: section.exclude_cidrs.clone(),
        timeouts: Timeouts {
            tcp: seconds(section.tcp_timeout),
            tcp_fin: seconds(section.tcp_fin_timeout),
            udp: seconds(section.udp_timeout),
        },
        ..portolan_ipvs::Options::default()
    };
    Options { dataplane, strict_arp: section.strict_arp }
}

/// Returns what this node lacks for the mode as configured. Leaves nothing in the kernel. Runs programs.
pub(super) fn missing(configuration: &Configuration, families: &[Family]) -> Option<String> {
    let scheduler = &configuration.ipvs.scheduler;
    // An unknown name is refused without asking the kernel.
    if !scheduler.is_empty() && IpvsScheduler::named(scheduler).is_none() {
        let names = IpvsScheduler::names();
        return Some(format!("no scheduler is called `{scheduler}`; write one of {names} (ipvs.scheduler)"));
    }
    let kernel = match portolan_ipvs::available(scheduler, families) {
        Ok(_) => None,
        Err(Error::Unsupported { missing, .. }) => Some(missing),
        Err(error) => Some(error.to_string()),
    };
    let rules = families.iter().filter_map(|&family| iptables::attempt(family).err());
    let missing: Vec<String> = kernel.into_iter().chain(rules).collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

impl PlaneOptions for Options {
    fn calls_programs(&self) -> bool {
        true
    }

    /// Writes the kernel settings of this mode.
    fn make(
        &self,
        settings: Settings,
        programs: Option<FoundPrograms>,
        shared: &mut Shared,
    ) -> Result<Made, Error> {
        write_settings(self.strict_arp);
        let family = settings.family;
        let meter = Arc::clone(shared.meters.ipvs.get(family));
        let programs = required(programs, family)?;
        let dataplane = Ipvs::open(programs, settings, self.dataplane.clone())?.with_meter(meter);
        Ok(Made { dataplane: Box::new(dataplane), own: None })
    }
}

/// Opens a data plane for what an earlier run in this mode left. It removes the virtual servers when their
/// connections have ended. Returns `None` if there is nothing left. Runs programs, unless they are given.
pub(super) fn former(
    configuration: &Configuration,
    family: Family,
    programs: Option<FoundPrograms>,
) -> Option<Ipvs> {
    let open = || {
        if !portolan_ipvs::is_left(family)? {
            return Ok(None);
        }
        let options = options(configuration).dataplane;
        Ipvs::open(required(programs, family)?, settings::neutral(family), options).map(Some)
    };
    open().unwrap_or_else(|error: Error| {
        tracing::warn!(%family, %error, "connections of the ipvs mode, if there are any, end");
        None
    })
}

/// This file exists if the kernel has IPVS in this network namespace.
const PRESENT: &str = "/proc/sys/net/ipv4/vs/conntrack";

/// Sets the kernel settings of this mode back to the kernel's defaults, unless virtual servers of other programs need
/// them. `strict_arp` is `ipvs.strictARP`, if known. Returns how many could not be written.
pub(crate) fn put_back(strict_arp: Option<bool>) -> usize {
    // A request for virtual servers would make the kernel load IPVS.
    if Host::default().read(PRESENT).is_none() {
        return 0;
    }
    let is_used = |family| match portolan_ipvs::has_virtual_servers(family) {
        Ok(used) => used,
        Err(error) => {
            tracing::warn!(%family, %error, "virtual servers cannot be listed: kernel settings of the ipvs mode stay");
            true
        }
    };
    if Family::BOTH.into_iter().any(is_used) {
        return 0;
    }
    let (arp, own) = written(&Host::default(), strict_arp);
    // The settings of IPVS are the evidence that this mode wrote those of ARP, so they are put back last.
    match node_settings::put_all_back(&arp) {
        0 => node_settings::put_all_back(&own),
        failures => failures,
    }
}

/// Returns the settings that a start of this mode may have written: those of ARP and those of IPVS. If `strict_arp`
/// is unknown, the ARP settings count only if all settings of both kinds have this mode's values.
fn written(host: &Host, strict_arp: Option<bool>) -> (Vec<PutBack>, Vec<PutBack>) {
    let back = |wanted: Vec<Wanted>| -> Vec<PutBack> {
        let back = wanted.into_iter().filter_map(|written| {
            Some(PutBack { written, default: portolan_ipvs::kernel_default(written.path)? })
        });
        back.collect()
    };
    let own = back(wanted(false));
    let mut arp = back(wanted(true));
    arp.retain(|setting| !own.contains(setting));
    let has = |back: &PutBack| {
        host.read(back.written.path).is_some_and(|value| value == back.written.value.to_string())
    };
    if !strict_arp.unwrap_or_else(|| own.iter().chain(&arp).all(has)) {
        arp.clear();
    }
    (arp, own)
}

fn wanted(strict_arp: bool) -> Vec<Wanted> {
    let release = rustix::system::uname().release().to_string_lossy().parse::<KernelVersion>();
    let wanted = portolan_ipvs::kernel_settings(release.ok(), strict_arp);
    wanted.into_iter().map(|(path, value)| Wanted::exactly(path, value)).collect()
}

/// Writes the kernel settings that differ. Logs those that cannot be written with the commands that set them.
fn write_settings(strict_arp: bool) {
    let outcome = Host::default().apply(&wanted(strict_arp));
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
    }
    let settings: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
    if !settings.is_empty() {
        checks::log(&[Finding::IpvsSettings { settings: settings.join("; ") }]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const IPVS: [&str; 3] = ["vs/conntrack", "vs/expire_nodest_conn", "vs/expire_quiescent_template"];
    const ARP: [(&str, &str); 2] = [("conf/all/arp_ignore", "1\n"), ("conf/all/arp_announce", "2\n")];

    /// Returns how many settings of ARP and of IPVS would be put back.
    fn count(settings: &[(&str, &str)], strict_arp: Option<bool>) -> (usize, usize) {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for (path, value) in settings {
            let file = folder.path().join("proc/sys/net/ipv4").join(path);
            fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
            fs::write(file, value).expect("a file");
        }
        let (arp, own) = written(&Host::below(folder.path()), strict_arp);
        (arp.len(), own.len())
    }

    #[test]
    fn strict_arp_is_known_by_the_configuration_or_by_what_the_mode_wrote() {
        let ipvs = IPVS.map(|path| (path, "1\n"));
        let own = count(&[], Some(false)).1;
        assert!(own >= ipvs.len());
        let all = [&ipvs[..], &ARP[..]].concat();
        assert_eq!(count(&all, None), (2, own));
        assert_eq!(count(&all, Some(true)), (2, own));
        assert_eq!(count(&all, Some(false)), (0, own), "another program's");
        assert_eq!(count(&ARP, None), (0, own), "without this mode they are another program's");
        assert_eq!(count(&[&ipvs[..], &ARP[..1]].concat(), None), (0, own));
    }
}
