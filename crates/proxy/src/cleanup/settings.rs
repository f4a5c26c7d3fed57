//! The kernel settings at a clean-up: they get the values from before the first start of the agent in this boot.
//!
//! The agent has noted these values in files ([`node_settings`]). Settings without such a value are left alone. Those of
//! them that have the value of a start are reported.

use portolan_leftovers::Kind;
use portolan_model::Family;
use portolan_node::config::Configuration;
use portolan_node::conntrack;
use portolan_node::former::{self, Former, Plan, Remembered, Restored, Unrestored};
use portolan_node::sysctl::{Host, Wanted};

use super::Scope;
use super::survey::Survey;
use crate::{modes, node_settings};

/// Routing of packets of pods, which need it without Services, too.
const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// What a clean-up does with settings, or has done.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Settings that get, or got, their former value.
    pub(super) restored: Vec<Restored>,
    /// Settings that stay.
    pub(super) unrestored: Vec<Unrestored>,
    /// Settings that could not be written, with the reason.
    pub(super) failed: Vec<(Wanted, String)>,
    /// Files with former values that cannot be used.
    pub(super) faults: Vec<String>,
}

impl Settings {
    /// Adds what was done with other settings.
    pub(super) fn add(&mut self, other: Self) {
        self.restored.extend(other.restored);
        self.unrestored.extend(other.unrestored);
        self.failed.extend(other.failed);
        self.faults.extend(other.faults);
    }
}

/// The former values, as the agent has noted them.
#[derive(Debug)]
pub(super) struct Memory {
    former: Former,
    remembered: Remembered,
    host: Host,
    /// What is reported of settings that were not noted: the values of a start with the configuration.
    start: StartValues,
}

/// Settings that have the value of a start, with the kernel's defaults.
#[derive(Debug)]
struct StartValues {
    general: Vec<(Wanted, u64)>,
    ipvs: Vec<(Wanted, u64)>,
}

impl Memory {
    /// Reads the files of the network namespace of this thread.
    pub(super) fn read(configuration: &Configuration) -> Self {
        let former = node_settings::former();
        let remembered = former.read();
        let mut general = conntrack::start_values(&configuration.conntrack);
        general.push(modes::route_localnet());
        let general = general.into_iter().map(|start| (start.written, start.default)).collect();
        let ipvs = modes::ipvs_start_values(configuration.ipvs.strict_arp).into_iter();
        let ipvs = ipvs.filter_map(|(written, default)| Some((written, default?))).collect();
        Self { former, remembered, host: Host::default(), start: StartValues { general, ipvs } }
    }

    /// Returns true if packets to loopback addresses are not routed after the settings are put back.
    pub(super) fn ends_routing_of_loopback_addresses(&self) -> bool {
        let path = modes::route_localnet().written.path;
        self.general()
            .restored
            .iter()
            .any(|restored| restored.wanted.path == path && restored.wanted.value == 0)
    }

    /// Returns what [`Memory::put_back_general`] and [`Memory::put_back_ipvs`] would do, after everything in `survey` is
    /// removed.
    pub(super) fn plan(&self, scope: Scope<'_>, survey: &Survey) -> Settings {
        let mut settings = Settings::default();
        if !scope.only_ours {
            settings.add(self.plan_general());
        }
        if is_left_to_kube_proxy(scope).unwrap_or(true) {
            return settings;
        }
        let ours = survey.found.objects.iter().filter(|object| object.kind == Kind::VirtualServer).count();
        settings.add(self.plan_ipvs(has_virtual_servers(ours)));
        settings
    }

    /// Puts back all settings but those of the IPVS mode.
    pub(super) fn put_back_general(&self) -> Settings {
        self.execute(self.plan_general())
    }

    /// Puts back the settings of the IPVS mode, unless kube-proxy, or virtual servers of other programs, need them.
    pub(super) fn put_back_ipvs(&self, scope: Scope<'_>) -> Result<Settings, String> {
        if is_left_to_kube_proxy(scope)? {
            return Ok(Settings::default());
        }
        Ok(self.execute(self.plan_ipvs(has_virtual_servers(0))))
    }

    /// Removes what was noted, apart from settings that a later clean-up can put back. Returns what failed.
    pub(super) fn forget(&self, scope: Scope<'_>, done: &Settings) -> Vec<String> {
        let unrestored = |path: &str, is_held| {
            let mut settings = done.unrestored.iter();
            settings.any(|setting| setting.wanted.path == path && setting.is_held == is_held)
        };
        let is_needed = |path: &str| {
            if scope.only_ours {
                // What was not considered, a complete clean-up can put back.
                let is_restored = done.restored.iter().any(|setting| setting.wanted.path == path);
                return !is_restored && !unrestored(path, false);
            }
            unrestored(path, true) || done.failed.iter().any(|(setting, _)| setting.path == path)
        };
        let mut changes = self.remembered.changes.clone();
        changes.retain(|change| is_needed(&change.path));
        if changes.is_empty() && !scope.only_ours {
            return self.former.remove();
        }
        if !self.remembered.is_known {
            return Vec::new();
        }
        self.former.write(changes).map_err(|error| error.to_string()).err().into_iter().collect()
    }

    fn plan_general(&self) -> Settings {
        let mut settings = Settings { faults: self.remembered.faults.clone(), ..Settings::default() };
        let Plan { restored, unrestored } = self.general();
        settings.restored = restored;
        settings.unrestored = unrestored;
        settings.unrestored.extend(self.unknown(&self.start.general));
        settings
    }

    fn plan_ipvs(&self, has_virtual_servers: bool) -> Settings {
        let hold = |wanted: &Wanted| {
            if wanted.path == IP_FORWARD {
                return Some("pods need it without Services, too".to_owned());
            }
            has_virtual_servers.then(|| "virtual servers of other programs need it".to_owned())
        };
        let Plan { restored, mut unrestored } =
            former::plan(&self.remembered.changes, &self.host, modes_setting, hold);
        // Forwarding stays for good.
        for setting in unrestored.iter_mut().filter(|setting| setting.wanted.path == IP_FORWARD) {
            setting.is_held = false;
        }
        if !has_virtual_servers {
            unrestored.extend(self.unknown(&self.start.ipvs));
        }
        Settings { restored, unrestored, ..Settings::default() }
    }

    fn general(&self) -> Plan {
        let known = |path: &str, value| {
            let localnet = modes::route_localnet().written.path;
            conntrack::setting(path, value)
                .or_else(|| (path == localnet).then(|| Wanted::exactly(localnet, value)))
        };
        let hold = |wanted: &Wanted| conntrack::too_small(&self.host, wanted);
        former::plan(&self.remembered.changes, &self.host, known, hold)
    }

    /// Returns the settings that have the value of a start and were not noted.
    fn unknown(&self, start: &[(Wanted, u64)]) -> Vec<Unrestored> {
        let is_noted =
            |wanted: &Wanted| self.remembered.changes.iter().any(|change| change.path == wanted.path);
        let unnoted = start.iter().filter(|(written, default)| {
            written.value != *default && !is_noted(written) && self.host.has(written)
        });
        let unknown = self.why_unknown();
        let stays = |(written, default): &(Wanted, u64)| {
            let wanted = Wanted::exactly(written.path, *default);
            let reason = format!("{unknown}. The kernel's default is {default}: `{}`", wanted.command());
            Unrestored { wanted, present: written.value.to_string(), reason, is_held: false }
        };
        unnoted.map(stays).collect()
    }

    /// Returns why the former value of a setting that was not noted is not known.
    fn why_unknown(&self) -> String {
        if self.remembered.is_known {
            return "the agent has not changed it; another program, such as kube-proxy, has set this value"
                .to_owned();
        }
        let folders: Vec<String> =
            self.former.folders().iter().map(|folder| folder.display().to_string()).collect();
        let reason = match self.former.unusable() {
            Some(reason) => reason.to_owned(),
            None => format!("{} has no file of this boot", folders.join(" or ")),
        };
        format!("its former value is not known: {reason}")
    }

    /// Writes the settings, and reads them back.
    fn execute(&self, mut settings: Settings) -> Settings {
        let planned = std::mem::take(&mut settings.restored);
        for restored in planned {
            let outcome = self.host.apply(&[restored.wanted]);
            if let Some(refused) = outcome.refused.first() {
                tracing::error!(setting = %refused, "kernel setting cannot be put back");
                settings.failed.push((restored.wanted, refused.to_string()));
            } else if self.host.has(&restored.wanted) {
                let Wanted { path, value, .. } = restored.wanted;
                tracing::info!(setting = path, value, "kernel setting put back");
                settings.restored.push(restored);
            } else {
                let present = self.host.read(restored.wanted.path).unwrap_or_default();
                let reason = format!("wanted {}, is {present} after it was written", restored.wanted.value);
                settings.failed.push((restored.wanted, reason));
            }
        }
        settings
    }
}

/// Returns true if packets to loopback addresses are routed.
pub(super) fn are_loopback_addresses_routed() -> bool {
    Host::default().has(&modes::route_localnet().written)
}

/// Returns the setting of the IPVS mode at a path.
fn modes_setting(path: &str, value: u64) -> Option<Wanted> {
    let settings = modes::ipvs_start_values(true).into_iter();
    settings
        .map(|(known, _)| known.path)
        .find(|known| *known == path)
        .map(|path| Wanted::exactly(path, value))
}

/// Returns true if kube-proxy runs in IPVS mode, and its settings therefore stay.
fn is_left_to_kube_proxy(scope: Scope<'_>) -> Result<bool, String> {
    if !scope.only_ours {
        return Ok(false);
    }
    portolan_leftovers::runs_ipvs().map_err(|error| {
        format!("kernel settings of the ipvs mode stay, because kube-proxy may use them: {error}")
    })
}

/// Returns true if there are more virtual servers than `known`, or if they cannot be listed.
fn has_virtual_servers(known: usize) -> bool {
    /// This file exists if the kernel has IPVS in this network namespace.
    const PRESENT: &str = "/proc/sys/net/ipv4/vs/conntrack";
    // A request for virtual servers would make the kernel load IPVS.
    if Host::default().read(PRESENT).is_none() {
        return false;
    }
    let mut count = 0_usize;
    for family in Family::BOTH {
        match portolan_ipvs::count_virtual_servers(family) {
            Ok(more) => count = count.saturating_add(more),
            Err(error) => {
                tracing::warn!(%family, %error, "virtual servers cannot be listed: kernel settings of the ipvs mode stay");
                return true;
            }
        }
    }
    count > known
}
