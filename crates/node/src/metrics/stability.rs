//! How many metrics of each stability level there are, as Kubernetes' metrics library tells it.

use super::{Counter, DynamicVector, Registry};

/// Levels as they are written in front of help texts.
const LEVELS: [&str; 3] = ["ALPHA", "BETA", "STABLE"];

/// Counts what the registry shows now, and these counts themselves. Nothing is ever hidden or disabled here.
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
