//! The periods of the mode in the configuration, as the engine and the health check use them.

use std::time::Duration;

use portolan_engine::Timing;
use portolan_node::config::Configuration;

/// Returns how long a change may be pending before the proxy is unhealthy: twice the sync period.
pub(super) fn health_timeout(configuration: &Configuration) -> Duration {
    let (sync_period, _) = configuration.sync_periods();
    sync_period.saturating_mul(2)
}

/// Returns when the engine commits, retries and compares.
pub(super) fn timing(configuration: &Configuration) -> Timing {
    let (sync_period, min_interval) = configuration.sync_periods();
    Timing { min_interval, max_retry: sync_period, check_interval: sync_period, ..Timing::default() }
}

#[cfg(test)]
mod tests {
    use portolan_node::config;

    use super::*;

    /// Returns a configuration with a mode, and with other periods in one section than the defaults.
    fn configuration(mode: &str, section: &str) -> Configuration {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        let periods = "{syncPeriod: 7s, minSyncPeriod: 2s}";
        config::parse(&format!("{head}mode: {mode}\n{section}: {periods}\n")).unwrap()
    }

    #[test]
    fn the_periods_are_those_of_the_mode() {
        let modes =
            [("nftables", "nftables"), ("iptables", "iptables"), ("userspace", "iptables"), ("ipvs", "ipvs")];
        for (mode, section) in modes {
            let configuration = configuration(mode, section);
            let timing = timing(&configuration);
            let periods = [timing.check_interval, timing.max_retry, timing.min_interval];
            assert_eq!(periods, [7, 7, 2].map(Duration::from_secs), "{mode}");
            assert_eq!(health_timeout(&configuration), Duration::from_secs(14), "{mode}");
        }
    }

    #[test]
    fn the_periods_of_another_mode_change_nothing() {
        let timing = timing(&configuration("ipvs", "nftables"));
        assert_eq!(timing.check_interval, Timing::default().check_interval);
    }
}
