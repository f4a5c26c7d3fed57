//! The number of metrics of each stability level, as Kubernetes' metrics library exposes it.

use super::{Counter, DynamicVector, Registry};

/// The levels, as help texts begin with them.
const LEVELS: [&str; 3] = ["ALPHA", "BETA", "STABLE"];

/// Counts the metrics of the registry, and these counters themselves. No metric is ever hidden or disabled.
pub(super) fn add_to(registry: &Registry) {
    let name = "registered_metrics_total";
    let help = "[BETA] Registered metrics by stability level and the version that deprecates them";
    let registered = registry.add(
        name,
        help,
        DynamicVector::new(["deprecated_version", "stability_level"], Counter::default),
    );
    registry.add("hidden_metrics_total", "[BETA] Hidden metrics", Counter::default());
    registry.add("disabled_metrics_total", "[BETA] Disabled metrics", Counter::default());
    for level in LEVELS {
        let count = registry.count_helps(&format!("[{level}] "));
        if count > 0 {
            registered.with(["", level], |counter| counter.add(count));
        }
    }
}
