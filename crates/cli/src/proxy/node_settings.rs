//! What the configuration asks of the node itself: connection tracking and the out-of-memory killer.

use portolan_node::config::Configuration;
use portolan_node::sysctl::{Host, PutBack, Wanted};
use portolan_node::{conntrack, oom};

use super::checks::{self, Finding};
use super::modes;

/// The connection tracking settings that are not right and cannot be made right, each with the command that
/// sets it. Changes nothing.
pub(super) fn conntrack_refusals(configuration: &Configuration, host: &Host) -> Vec<String> {
    let refused = host.refusals(&wanted(configuration, host));
    refused.iter().map(ToString::to_string).collect()
}

/// Makes the connection tracking settings right. kube-proxy does not start where it cannot; here Services are
/// more important than that: what stays wrong is told with the commands that set it, less what was told before.
pub(super) fn apply_conntrack(configuration: &Configuration, told: &[Finding]) {
    let host = Host::default();
    let outcome = host.apply(&wanted(configuration, &host));
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
    }
    let mut settings: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
    settings.retain(|setting| !told.iter().any(|finding| finding.tells_of_setting(setting)));
    if !settings.is_empty() {
        checks::log(&[Finding::KernelSettings { settings }]);
    }
}

fn wanted(configuration: &Configuration, host: &Host) -> Vec<Wanted> {
    conntrack::settings(&configuration.conntrack, conntrack::processors(host))
}

/// Gives the settings that a start with this configuration writes the kernel's own values, where they have those of a start.
/// Answers how many could not be written.
pub(super) fn put_back(configuration: &Configuration) -> usize {
    let mut settings = conntrack::put_back(&configuration.conntrack);
    settings.push(modes::route_localnet());
    put_all_back(&settings)
}

/// The same for these settings.
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

/// Sets the score for the out-of-memory killer, on a thread of its own: nobody has to wait for a second attempt.
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
