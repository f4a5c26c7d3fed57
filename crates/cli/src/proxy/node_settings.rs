//! What the configuration asks of the node itself: connection tracking and the out-of-memory killer.

use portolan_node::config::Configuration;
use portolan_node::sysctl::Host;
use portolan_node::{conntrack, oom};

/// Makes the connection tracking settings right. kube-proxy does not start where it cannot; here Services are
/// more important than that: what stays wrong is told with the commands that set it.
pub(super) fn apply_conntrack(configuration: &Configuration) {
    let host = Host::default();
    let wanted = conntrack::settings(&configuration.conntrack, conntrack::processors(&host));
    let outcome = host.apply(&wanted);
    for setting in outcome.written {
        tracing::info!(setting = setting.path, value = setting.value, "kernel setting written");
    }
    if !outcome.refused.is_empty() {
        let settings: Vec<String> = outcome.refused.iter().map(ToString::to_string).collect();
        let settings = settings.join("; ");
        tracing::warn!(
            settings,
            "kernel settings cannot be written here and stay as they are: run the commands on the node, make \
             /proc/sys writable for this process, or set conntrack.maxPerCore and the conntrack timeouts to 0"
        );
    }
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
