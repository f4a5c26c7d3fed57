//! The kernel settings of the configuration: connection tracking, `route_localnet` and the out-of-memory score.
//!
//! Settings are written only where they differ. A setting that cannot be written is a warning.

use portolan_node::config::Configuration;
use portolan_node::sysctl::{Host, PutBack, Wanted};
use portolan_node::{conntrack, oom};

use super::checks::{self, Finding};
use super::modes;

/// Returns the connection tracking settings that are wrong and cannot be written, each with the command that sets it.
/// Changes nothing.
pub(super) fn conntrack_refusals(configuration: &Configuration, host: &Host) -> Vec<String> {
    let refused = host.refusals(&wanted(configuration, host));
    refused.iter().map(ToString::to_string).collect()
}

/// Writes the connection tracking settings that differ. Warns of those that cannot be written, with the commands that
/// set them, unless a finding in `reported` has reported them. kube-proxy does not start in that case; Portolan keeps
/// serving Services.
pub(super) fn apply_conntrack(configuration: &Configuration, reported: &[Finding]) {
    let host = Host::default();
    let outcome = host.apply(&wanted(configuration, &host));
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
    }
    let mut settings: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
    settings.retain(|setting| !reported.iter().any(|finding| finding.reports_setting(setting)));
    if !settings.is_empty() {
        checks::log(&[Finding::KernelSettings { settings }]);
    }
}

fn wanted(configuration: &Configuration, host: &Host) -> Vec<Wanted> {
    conntrack::settings(&configuration.conntrack, conntrack::processors(host))
}

/// Sets the settings that a start with this configuration writes back to the kernel's defaults, where they have the
/// value of such a start. Returns how many could not be written.
pub(super) fn put_back(configuration: &Configuration) -> usize {
    let mut settings = conntrack::put_back(&configuration.conntrack);
    settings.push(modes::route_localnet());
    put_all_back(&settings)
}

/// Does the same for these settings.
pub(super) fn put_all_back(settings: &[PutBack]) -> usize {
    let outcome = Host::default().put_back(settings);
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting put back");
    }
    for setting in &outcome.refused {
        tracing::error!(%setting, "kernel setting cannot be put back");
    }
    outcome.refused.len()
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
