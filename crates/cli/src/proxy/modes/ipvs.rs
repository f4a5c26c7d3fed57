//! The IPVS mode: what the kernel may lack for it, the kernel settings that it needs, and its section of the configuration.

use std::sync::Arc;

use portolan_backend::iptables::Programs;
use portolan_backend::ipvs::{self, Ipvs, KernelVersion, Meter};
use portolan_backend::{Dataplane as _, Error};
use portolan_model::{Family, IpvsScheduler, Settings};
use portolan_node::config::Configuration;
use portolan_node::sysctl::{Host, PutBack, Wanted};
use portolan_wire::ipvs::Timeouts;

use super::{Made, iptables};
use crate::proxy::checks::{self, Finding};
use crate::proxy::{node_settings, settings};

/// What a data plane is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::proxy) struct Options {
    dataplane: ipvs::Options,
    strict_arp: bool,
}

/// The section of a configuration.
pub(super) fn options(configuration: &Configuration) -> Options {
    let section = &configuration.ipvs;
    let seconds = |period: std::time::Duration| u32::try_from(period.as_secs()).unwrap_or(u32::MAX);
    let dataplane = ipvs::Options {
        // One that is not known has been refused, or another mode runs.
        scheduler: IpvsScheduler::named(&section.scheduler).unwrap_or_default(),
        exclude: section.exclude_cidrs.clone(),
        timeouts: Timeouts {
            tcp: seconds(section.tcp_timeout),
            tcp_fin: seconds(section.tcp_fin_timeout),
            udp: seconds(section.udp_timeout),
        },
        ..ipvs::Options::default()
    };
    Options { dataplane, strict_arp: section.strict_arp }
}

/// What this node lacks to run the mode as a configuration wants it. Trying leaves nothing behind.
pub(super) fn missing(configuration: &Configuration, families: &[Family]) -> Option<String> {
    let scheduler = &configuration.ipvs.scheduler;
    // No kernel has to be asked.
    if !scheduler.is_empty() && IpvsScheduler::named(scheduler).is_none() {
        let names = IpvsScheduler::names();
        return Some(format!("no scheduler is called `{scheduler}`; write one of {names} (ipvs.scheduler)"));
    }
    let kernel = match ipvs::available(scheduler, families) {
        Ok(_) => None,
        Err(Error::Unsupported { missing, .. }) => Some(missing),
        Err(error) => Some(error.to_string()),
    };
    let rules = families.iter().filter_map(|&family| iptables::attempt(family).err());
    let missing: Vec<String> = kernel.into_iter().chain(rules).collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// A data plane of this mode. The kernel settings that it needs are written.
pub(super) fn make(options: &Options, settings: Settings, meter: Arc<Meter>) -> Result<Made, Error> {
    write_settings(options.strict_arp);
    let programs = Programs::find(settings.family)?;
    let dataplane = Ipvs::open(programs, settings, options.dataplane.clone())?.with_meter(meter);
    let chains = dataplane.chains();
    Ok(Made { dataplane: Box::new(dataplane), own: None, chains })
}

/// One for what an earlier run in this mode left: its virtual servers go when their connections have ended.
pub(super) fn former(configuration: &Configuration, family: Family) -> Option<Ipvs> {
    let open = || {
        if !ipvs::is_left(family)? {
            return Ok(None);
        }
        let options = options(configuration).dataplane;
        Ipvs::open(Programs::find(family)?, settings::neutral(family), options).map(Some)
    };
    open().unwrap_or_else(|error: Error| {
        tracing::warn!(%family, %error, "connections of the ipvs mode, if there are any, end");
        None
    })
}

/// Gives the kernel settings of this mode the kernel's own values, unless virtual servers of others need them. Answers how
/// many could not be written.
pub(super) fn put_back(strict_arp: bool) -> usize {
    let is_used = |family| match ipvs::has_virtual_servers(family) {
        Ok(used) => used,
        Err(error) => {
            tracing::warn!(%family, %error, "virtual servers cannot be listed: kernel settings of the ipvs mode stay");
            true
        }
    };
    if Family::BOTH.into_iter().any(is_used) {
        return 0;
    }
    let back = wanted(strict_arp)
        .into_iter()
        .filter_map(|written| Some(PutBack { written, default: ipvs::kernel_default(written.path)? }));
    node_settings::put_all_back(&back.collect::<Vec<_>>())
}

fn wanted(strict_arp: bool) -> Vec<Wanted> {
    let release = rustix::system::uname().release().to_string_lossy().parse::<KernelVersion>();
    let wanted = ipvs::kernel_settings(release.ok(), strict_arp);
    wanted.into_iter().map(|(path, value)| Wanted::exactly(path, value)).collect()
}

/// Makes the kernel settings right. What stays wrong is told with the commands that set it.
pub(super) fn write_settings(strict_arp: bool) {
    let outcome = Host::default().apply(&wanted(strict_arp));
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
    }
    let settings: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
    if !settings.is_empty() {
        checks::log(&[Finding::IpvsSettings { settings: settings.join("; ") }]);
    }
}
