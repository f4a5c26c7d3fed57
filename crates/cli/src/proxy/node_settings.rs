//! What the configuration asks of the node itself: connection tracking and the out-of-memory killer.

use portolan_node::config::Configuration;
use portolan_node::sysctl::{Host, Wanted};
use portolan_node::{conntrack, oom};

use super::checks::{self, Finding};

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
