//! The kernel settings of the configuration: connection tracking, `route_localnet` and the out-of-memory score.
//!
//! Settings are written only where they differ. A setting that cannot be written is a warning. Before a setting is
//! written, its value is added to files ([`Former`]), from which a clean-up puts it back.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};

use portolan_model::Family;
use portolan_node::config::Configuration;
use portolan_node::former::{Change, Former};
use portolan_node::sysctl::{AppliedSettings, Host, Refused, Wanted};
use portolan_node::{conntrack, oom};

use super::finding::{self, Finding};

/// The variable with the folders for former values, separated like those of `PATH`. Empty: none.
const FOLDERS_VARIABLE: &str = "PORTOLAN_STATE_DIRS";
/// The folders without that variable. The first one is emptied at a boot, as the settings are. The second one is often
/// mounted into containers.
const FOLDERS: &str = "/run/portolan:/var/lib/portolan";

/// The folder with the IPv6 settings of each interface.
const IPV6_INTERFACES: &str = "/proc/sys/net/ipv6/conf";
/// The names in this folder behind which no router is. Interfaces that are made later do not get another value.
const WITHOUT_ROUTERS: [&str; 3] = ["all", "default", "lo"];

/// Writes kernel settings, and remembers what they were.
#[derive(Debug)]
pub(super) struct KernelSettings {
    host: Host,
    /// One thread at a time changes the files.
    former: Mutex<Former>,
    /// A failure to remember is logged once.
    not_remembered: Once,
}

impl KernelSettings {
    /// Returns those of the network namespace of this thread.
    pub(super) fn of_this_node() -> Self {
        Self { host: Host::default(), former: former().into(), not_remembered: Once::new() }
    }

    /// Writes the settings that differ. Returns those that cannot be written.
    pub(super) fn apply(&self, wanted: &[Wanted]) -> Vec<Refused> {
        let former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
        let known = former.read().changes;
        let change = |(wanted, present): (Wanted, u64)| Change {
            path: wanted.path.to_owned(),
            former: present,
            written: wanted.value,
        };
        let remembered = former.add(self.host.pending(wanted).into_iter().map(change).collect());
        let outcome = self.host.apply(wanted);
        self.correct(&former, &known, &outcome);
        if let Err(error) = &remembered
            && !outcome.written.is_empty()
        {
            self.not_remembered.call_once(|| {
                let consequence = "a clean-up cannot put them back";
                tracing::info!(%error, consequence, "former values of kernel settings are not remembered");
            });
        }
        for setting in outcome.written {
            tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
        }
        outcome.refused
    }

    /// Returns the settings that differ and that cannot be written. Changes nothing.
    pub(super) fn refusals(&self, wanted: &[Wanted]) -> Vec<Refused> {
        self.host.refusals(wanted)
    }

    /// Corrects what was noted before the settings were written: the kernel rounds some values, and some settings could
    /// not be written. `known` is what was noted earlier.
    fn correct(&self, former: &Former, known: &[Change], outcome: &AppliedSettings) {
        let noted = former.read().changes;
        let is_refused = |change: &Change| outcome.refused.iter().any(|it| it.wanted.path == change.path);
        let is_written = |change: &Change| outcome.written.iter().any(|it| it.path == change.path);
        let mut changes: Vec<Change> = noted.iter().filter(|change| !is_refused(change)).cloned().collect();
        for change in changes.iter_mut().filter(|change| is_written(change)) {
            let present = self.host.read(&change.path).and_then(|present| present.parse().ok());
            change.written = present.unwrap_or(change.written);
        }
        changes.extend(known.iter().filter(|change| is_refused(change)).cloned());
        if changes != noted {
            // The caller reports a failure.
            let _ = former.write(changes);
        }
    }

    /// Writes the connection tracking settings that differ. Warns of those that cannot be written, with the commands that
    /// set them, unless a finding in `reported` has reported them. kube-proxy does not start in that case; Portolan keeps
    /// serving Services. Returns those of the warning.
    pub(super) fn apply_conntrack(&self, configuration: &Configuration, reported: &[Finding]) -> Vec<String> {
        self.apply_or_warn(&wanted(configuration, &self.host), reported)
    }

    /// Turns on the forwarding of packets for these families. Interfaces whose router advertisements the kernel would then
    /// ignore accept them still.
    pub(super) fn turn_on_forwarding(&self, families: &[Family], reported: &[Finding]) {
        if families.contains(&Family::Ipv6) {
            self.keep_router_advertisements();
        }
        let wanted: Vec<Wanted> = families.iter().copied().map(forwarding).collect();
        self.apply_or_warn(&wanted, reported);
    }

    /// Sets `accept_ra` to 2 where it is 1 and the interface does not forward: a host that forwards ignores router
    /// advertisements with 1, and would lose its IPv6 addresses and default route. They are not noted for a clean-up,
    /// because a clean-up leaves the forwarding on.
    fn keep_router_advertisements(&self) {
        let mut refused = Vec::new();
        for interface in self.host.names(IPV6_INTERFACES) {
            let path = |setting| format!("{IPV6_INTERFACES}/{interface}/{setting}");
            let has = |setting, value| self.host.read(&path(setting)).as_deref() == Some(value);
            let is_affected = has("accept_ra", "1") && has("forwarding", "0");
            if WITHOUT_ROUTERS.contains(&interface.as_str()) || !is_affected {
                continue;
            }
            let setting = path("accept_ra");
            match self.host.write(&setting, "2") {
                Ok(()) => tracing::info!(setting, value = 2, "kernel setting written"),
                Err(error) => refused.push(format!("{error}; run `echo 2 > {setting}`")),
            }
        }
        if !refused.is_empty() {
            let consequence = "with forwarding, these interfaces ignore router advertisements";
            tracing::warn!(?refused, consequence, "kernel settings not written");
        }
    }

    /// Writes settings that differ. Warns of those that cannot be written, with the commands that set them, unless a finding
    /// in `reported` has reported them. Returns those of the warning.
    pub(super) fn apply_or_warn(&self, wanted: &[Wanted], reported: &[Finding]) -> Vec<String> {
        let refused = self.apply(wanted);
        let mut settings: Vec<String> = refused.iter().map(ToString::to_string).collect();
        settings.retain(|setting| !reported.iter().any(|finding| finding.reports_setting(setting)));
        if !settings.is_empty() {
            finding::log(&[Finding::KernelSettings { settings: settings.clone() }]);
        }
        settings
    }
}

/// Returns the files with former values for the network namespace of this thread.
pub(super) fn former() -> Former {
    let namespace = portolan_sock::namespace::number().map_err(|error| error.to_string());
    Former::new(folders(), &Host::default(), namespace)
}

/// Returns the folder for what counts until the next boot; `None` if there is none.
pub(super) fn folder_of_this_boot() -> Option<PathBuf> {
    folders().into_iter().next()
}

fn folders() -> Vec<PathBuf> {
    let variable = std::env::var_os(FOLDERS_VARIABLE);
    folders_of(variable.as_deref())
}

fn folders_of(variable: Option<&OsStr>) -> Vec<PathBuf> {
    let folders = std::env::split_paths(variable.unwrap_or(OsStr::new(FOLDERS)));
    folders.filter(|folder| !folder.as_os_str().is_empty()).collect()
}

/// Returns the connection tracking settings that are wrong and cannot be written, each with the command that sets it.
/// Changes nothing.
pub(super) fn conntrack_refusals(configuration: &Configuration, host: &Host) -> Vec<String> {
    let refused = host.refusals(&wanted(configuration, host));
    refused.iter().map(ToString::to_string).collect()
}

/// Returns the connection tracking settings of the configuration.
pub(super) fn wanted(configuration: &Configuration, host: &Host) -> Vec<Wanted> {
    conntrack::settings(&configuration.conntrack, conntrack::processors(host))
}

/// Returns the setting with which the host forwards packets of a family.
pub(super) const fn forwarding(family: Family) -> Wanted {
    match family {
        Family::Ipv4 => Wanted::exactly("/proc/sys/net/ipv4/ip_forward", 1),
        Family::Ipv6 => Wanted::exactly("/proc/sys/net/ipv6/conf/all/forwarding", 1),
    }
}

/// Writes the out-of-memory score on its own thread, because a second attempt may take a while.
pub(super) fn apply_oom_score(configuration: &Configuration) {
    let score = configuration.oom_score_adj;
    let adjust = move || {
        if let Err(error) = oom::adjust(&Host::default(), score) {
            tracing::debug!(score, %error, "the out-of-memory score stays as it is");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("oom-score".into()).spawn(adjust) {
        tracing::debug!(score, %error, "the out-of-memory score stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const MINE: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

    fn settings_below(folder: &Path, files: &[(&str, &str)]) -> KernelSettings {
        for (path, value) in files {
            let file = folder.join(path.trim_start_matches('/'));
            fs::create_dir_all(file.parent().expect("not the root")).expect("a folder");
            fs::write(file, value).expect("a file");
        }
        let host = Host::below(folder);
        let former = Former::new(vec![folder.join("state")], &host, Ok(1));
        KernelSettings { host, former: former.into(), not_remembered: Once::new() }
    }

    #[test]
    fn a_setting_is_remembered_before_it_is_written() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let boot = ("/proc/sys/kernel/random/boot_id", "boot\n");
        let settings = settings_below(folder.path(), &[boot, (MINE, "0\n")]);
        let former = || settings.former.lock().expect("one thread").read();
        assert!(settings.apply(&[]).is_empty());
        assert!(former().is_known && former().changes.is_empty(), "nothing had to be changed");
        let missing = Wanted::exactly("/proc/sys/net/missing", 1);
        assert_eq!(settings.apply(&[Wanted::exactly(MINE, 1), missing]).len(), 1);
        assert_eq!(former().changes, [Change { path: MINE.to_owned(), former: 0, written: 1 }]);
        assert!(settings.apply(&[Wanted::exactly(MINE, 2)]).is_empty());
        assert_eq!(former().changes, [Change { path: MINE.to_owned(), former: 0, written: 2 }]);
    }

    #[test]
    fn router_advertisements_are_accepted_with_forwarding() {
        let of = |interface: &str, setting: &str| format!("{IPV6_INTERFACES}/{interface}/{setting}");
        let folder = tempfile::tempdir().expect("a scratch folder");
        let all = [
            ("eth0", "1", "0"),
            ("eth1", "0", "0"),
            ("eth2", "1", "1"),
            ("all", "1", "0"),
            ("default", "1", "0"),
        ];
        let mut files = vec![("/proc/sys/net/ipv4/ip_forward".to_owned(), "0")];
        for (interface, accept_ra, forwarding) in all {
            files.push((of(interface, "accept_ra"), accept_ra));
            files.push((of(interface, "forwarding"), forwarding));
        }
        let files: Vec<(&str, &str)> = files.iter().map(|(path, value)| (path.as_str(), *value)).collect();
        let settings = settings_below(folder.path(), &files);
        let seen =
            || all.map(|(interface, ..)| settings.host.read(&of(interface, "accept_ra")).unwrap_or_default());
        settings.turn_on_forwarding(&[Family::Ipv4], &[]);
        assert_eq!(seen(), ["1", "0", "1", "1", "1"], "IPv4 does not matter to them");
        settings.turn_on_forwarding(&Family::BOTH, &[]);
        assert_eq!(seen(), ["2", "0", "1", "1", "1"]);
        assert_eq!(settings.host.read(&of("all", "forwarding")).as_deref(), Some("1"));
    }

    #[test]
    fn a_setting_that_cannot_be_written_is_not_remembered() {
        /// A number that not even root can write.
        const READ_ONLY: &str = "/proc/sys/kernel/ngroups_max";
        const OTHER: &str = "/proc/sys/net/other";
        let folder = tempfile::tempdir().expect("a scratch folder");
        let boot = ("/proc/sys/kernel/random/boot_id", "boot\n");
        let settings = settings_below(folder.path(), &[boot, (MINE, "0\n")]);
        let file = folder.path().join(OTHER.trim_start_matches('/'));
        std::os::unix::fs::symlink(READ_ONLY, file).expect("a link");
        let former = || settings.former.lock().expect("one thread").read();
        assert_eq!(settings.apply(&[Wanted::exactly(OTHER, 1), Wanted::exactly(MINE, 1)]).len(), 1);
        let mine = Change { path: MINE.to_owned(), former: 0, written: 1 };
        assert_eq!(former().changes, std::slice::from_ref(&mine));
        // An earlier start could write it.
        let known = Change { path: OTHER.to_owned(), former: 5, written: 6 };
        settings
            .former
            .lock()
            .expect("one thread")
            .write(vec![known.clone(), mine.clone()])
            .expect("a folder");
        assert_eq!(settings.apply(&[Wanted::exactly(OTHER, 1)]).len(), 1);
        assert_eq!(former().changes, [mine, known]);
    }

    #[test]
    fn a_folder_that_cannot_be_written_stops_nothing() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let settings = settings_below(folder.path(), &[(MINE, "0\n")]);
        assert!(settings.apply(&[Wanted::exactly(MINE, 1)]).is_empty());
        assert_eq!(
            settings.host.read(MINE).as_deref(),
            Some("1"),
            "a host that does not say which boot this is"
        );
    }

    #[test]
    fn the_folders() {
        let both = ["/run/portolan", "/var/lib/portolan"].map(PathBuf::from);
        assert_eq!(folders_of(None), both);
        assert_eq!(folders_of(Some(OsStr::new("/a"))), [PathBuf::from("/a")]);
        assert_eq!(folders_of(Some(OsStr::new(""))), Vec::<PathBuf>::new());
    }
}
