//! Which mode runs, and why.

use std::fmt;

use portolan_model::{Capture, Family};
use portolan_node::config::{Configuration, FieldErrors, Mode};

use super::{iptables, ipvs, userspace};
use crate::finding::Finding;

/// What decides about the mode besides the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preferences {
    /// Run the iptables mode if the node lacks something for the IPVS mode.
    pub(crate) ipvs_fallback: bool,
    /// The mode if the configuration names none.
    pub(crate) default_mode: DefaultMode,
    /// How packets are captured in the userspace mode. `None`: the proxy chooses.
    pub(crate) capture: Option<Capture>,
}

/// The mode if the configuration names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultMode {
    /// As kube-proxy; nftables if iptables cannot be used.
    Iptables,
    /// For an agent that may not run the programs of iptables, and for its init container, which may.
    Nftables,
}

/// The mode that runs, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The mode that the configuration names, if any.
    pub(crate) wanted: Option<Mode>,
    pub(crate) mode: Mode,
    pub(crate) reason: Reason,
    /// In the userspace mode: how packets are captured, and why.
    pub(crate) capture: Option<(Capture, String)>,
}

/// Why a mode was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The configuration names it.
    Configured,
    /// The configuration names no mode. This is kube-proxy's default.
    Default,
    /// The configuration names no mode, but a flag does.
    Flag,
    /// The configuration names no mode, and iptables cannot be used.
    NoIptables(String),
    /// The configuration names IPVS, and this node lacks something for it.
    NoIpvs(String),
}

impl Reason {
    /// Returns the value of a metric label.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Default => "default",
            Self::Flag => "flag",
            Self::NoIptables(_) => "no_iptables",
            Self::NoIpvs(_) => "no_ipvs",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("the configuration says so"),
            Self::Default => f.write_str("the configuration names no mode, and kube-proxy takes this one"),
            Self::Flag => f.write_str("the configuration names no mode, and --default-mode says so"),
            Self::NoIptables(why) => {
                write!(f, "the configuration names no mode, and iptables cannot be used: {why}")
            }
            Self::NoIpvs(missing) => {
                write!(f, "the configuration says ipvs, for which this node lacks something: {missing}")
            }
        }
    }
}

/// Chooses the mode and writes it into the configuration. If none is named, the mode is the default, or nftables if
/// iptables cannot be used. If IPVS is named, and the node lacks something for it, the mode may be iptables. In the
/// userspace mode, also chooses how packets are captured, unless the preferences say so. `obstacles` returns those of the
/// node ([`userspace::obstacles`]); only this mode needs them. The mode of `in_use` is taken without a trial. Runs programs.
///
/// # Errors
/// The configuration is invalid in that mode.
pub(crate) fn settle(
    configuration: &mut Configuration,
    families: &[Family],
    preferences: Preferences,
    in_use: Option<Choice>,
    obstacles: impl FnOnce() -> Vec<Finding>,
) -> Result<Choice, FieldErrors> {
    let Preferences { ipvs_fallback, default_mode, capture } = preferences;
    let wanted = configuration.mode;
    let (mode, reason) = match (in_use, wanted) {
        (Some(in_use), _) => (in_use.mode, in_use.reason),
        (None, Some(Mode::Ipvs)) if ipvs_fallback => match ipvs::missing(configuration, families) {
            Some(missing) => (Mode::Iptables, Reason::NoIpvs(missing)),
            None => (Mode::Ipvs, Reason::Configured),
        },
        (None, Some(mode)) => (mode, Reason::Configured),
        (None, None) if default_mode == DefaultMode::Nftables => (Mode::Nftables, Reason::Flag),
        (None, None) => {
            let failures: Vec<String> =
                families.iter().filter_map(|&family| iptables::attempt(family).err()).collect();
            if failures.len() < families.len() {
                (Mode::Iptables, Reason::Default)
            } else {
                (Mode::Nftables, Reason::NoIptables(failures.join("; ")))
            }
        }
    };
    if wanted != Some(mode) {
        configuration.mode = Some(mode);
        configuration.validate()?;
    }
    let capture = (mode == Mode::Userspace)
        .then(|| userspace::choose_capture(configuration, families, capture, &obstacles()));
    configuration.capture = capture.as_ref().map_or_else(Capture::default, |(capture, _)| *capture);
    Ok(Choice { wanted, mode, reason, capture })
}

/// Logs which mode runs.
pub(crate) fn log(choice: &Choice) {
    let (mode, reason) = (choice.mode.name(), &choice.reason);
    if choice.fallback().is_some() {
        tracing::warn!(mode, %reason, "mode chosen; --ipvs-fallback=false makes this an error");
    } else {
        tracing::info!(mode, %reason, "mode chosen");
    }
    if let Some((capture, reason)) = &choice.capture {
        tracing::info!(capture = capture.name(), %reason, "way to capture chosen");
    }
}

impl Choice {
    /// Returns true if the mode stays when the configuration changes: it is the preferred one, and what it depends on stays. A
    /// trial of the node may fail for a reason that passes, such as a limit of processes.
    pub(crate) fn stays(&self, old: &Configuration, new: &Configuration) -> bool {
        let is_preferred = matches!(self.reason, Reason::Configured | Reason::Default | Reason::Flag);
        is_preferred && self.wanted == new.mode && (self.mode != Mode::Ipvs || old.ipvs == new.ipvs)
    }

    /// Returns the text to report if another mode runs than the configured one.
    pub(crate) fn fallback(&self) -> Option<String> {
        let wanted = self.wanted.filter(|wanted| *wanted != self.mode)?;
        let mode = self.mode.name();
        Some(format!("mode {mode} runs in place of {}: {}", wanted.name(), self.reason))
    }

    /// Returns the configured mode as the value of a metric label. Empty if none is named.
    pub(crate) fn wanted(&self) -> &'static str {
        self.wanted.map_or("", Mode::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settles a configuration without a mode, while this one is in use. Returns the mode that it would get.
    fn settled(in_use: &Choice, old: &Configuration, mut new: Configuration) -> Option<Choice> {
        let preferences =
            Preferences { ipvs_fallback: true, default_mode: DefaultMode::Iptables, capture: None };
        let kept = in_use.stays(old, &new).then(|| in_use.clone())?;
        // Without a family, iptables cannot be used.
        settle(&mut new, &[], preferences, Some(kept), Vec::new).ok()
    }

    #[test]
    fn the_mode_in_use_stays_without_a_trial() {
        let in_use = Choice { wanted: None, mode: Mode::Iptables, reason: Reason::Default, capture: None };
        let old = Configuration::default();
        assert_eq!(settled(&in_use, &old, old.clone()), Some(in_use.clone()));
        let named = Configuration { mode: Some(Mode::Nftables), ..Configuration::default() };
        assert_eq!(settled(&in_use, &old, named), None, "another one is wanted");
        let replaced =
            Choice { mode: Mode::Nftables, reason: Reason::NoIptables(String::new()), ..in_use.clone() };
        assert_eq!(settled(&replaced, &old, old.clone()), None, "the preferred one may be usable now");
        let ipvs = Configuration { mode: Some(Mode::Ipvs), ..Configuration::default() };
        let in_use =
            Choice { wanted: Some(Mode::Ipvs), mode: Mode::Ipvs, reason: Reason::Configured, ..in_use };
        assert_eq!(settled(&in_use, &ipvs, ipvs.clone()), Some(in_use.clone()));
        let mut other = ipvs.clone();
        other.ipvs.scheduler = "lc".into();
        assert_eq!(settled(&in_use, &ipvs, other), None, "the kernel may lack the other scheduler");
    }
}
