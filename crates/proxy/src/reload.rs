//! Applies changes of the configuration file while the proxy runs.
//!
//! A changed file is checked like the first one, and against the running proxy. It is applied as a whole or not at
//! all. Settings on which packets depend take the way of every other change: the data planes compare and commit. A
//! changed `clientConnection` starts another watcher, whose lists are compared with the known objects.
//!
//! Changes are checked one after the other. A check may run programs and wait for them, on another thread. A file that
//! is written meanwhile is read when the check has ended, so that the newest content is applied last.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use portolan_node::config::Configuration;
use portolan_node::metrics::{self, Pages, ProxyMetrics};
use portolan_watch::{Peers, Watcher};
use tokio::sync::mpsc::UnboundedSender;

use super::agent::Agent;
use super::events::Notes;
use super::file::FileWatch;
use super::modes::{self, Choice};
use super::node_settings::KernelSettings;
use super::options::{Loaded, ProxyOptions};
use super::readiness::Progress;
use super::servers::{Prepared, Servers};
use super::{blocking, checks, client_settings, finding, node_settings, settings, watcher};

/// The error that ends the proxy with `--config-reload=false`, as in kube-proxy.
const ENDS: &str = "content of the proxy server's configuration file was updated";

/// Applies the configuration file to the running proxy and reports the outcome.
pub(super) struct Reload<'a> {
    pub(super) options: &'a ProxyOptions,
    pub(super) node_name: &'a str,
    pub(super) agent: Rc<RefCell<Agent>>,
    pub(super) servers: Servers,
    pub(super) pages: Arc<Pages>,
    /// Receives watchers that use another client of the API server.
    pub(super) watchers: UnboundedSender<Watcher>,
    pub(super) notes: Notes,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) peers: Peers,
    pub(super) kernel_settings: Arc<KernelSettings>,
    pub(super) progress: Progress,
    /// The mode in use.
    pub(super) choice: Choice,
}

impl Reload<'_> {
    /// Follows the configuration file, if there is one. Returns only with an error that ends the proxy.
    pub(super) async fn run(mut self, file: Option<&Path>) -> anyhow::Error {
        let Some(file) = file else { return std::future::pending().await };
        let opened = FileWatch::open(file).with_context(|| format!("cannot watch {}", file.display()));
        let mut watch = match opened {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        // The file may have changed between the first reading and the start of the watch.
        let mut changed = match watch.content() {
            Some(content) => !self.is_in_use(content).await,
            None => false,
        };
        loop {
            let before = watch.content().map(<[u8]>::to_vec);
            let was_changed = std::mem::take(&mut changed);
            if !was_changed && let Err(reason) = watch.changed().await {
                self.unreadable(file, &reason);
                continue;
            }
            if !self.options.config_reload {
                // A file that is readable again may be the same.
                if !was_changed && watch.content() == before.as_deref() {
                    continue;
                }
                return anyhow::anyhow!(ENDS);
            }
            self.reload(watch.content().unwrap_or_default()).await;
        }
    }

    async fn is_in_use(&self, content: &[u8]) -> bool {
        let loaded = self.load(content).await;
        loaded.is_ok_and(|(loaded, _)| loaded.configuration == *self.agent.borrow().configuration())
    }

    /// Parses the file and chooses the mode.
    async fn load(&self, content: &[u8]) -> anyhow::Result<(Loaded, Choice)> {
        let mut loaded = self.options.load_content(content)?;
        let families = self.agent.borrow().families().to_vec();
        let preferences = self.options.preferences;
        let stays = self.choice.stays(self.agent.borrow().configuration(), &loaded.configuration);
        let in_use = stays.then(|| self.choice.clone());
        let settle = move || {
            let choice = modes::settle(&mut loaded.configuration, &families, preferences, in_use, || {
                modes::obstacles(&families)
            })?;
            Ok((loaded, choice))
        };
        blocking::run(settle).await?
    }

    /// Applies the content that was read when the change was noticed. A second reading might return half of the next
    /// change.
    async fn reload(&mut self, content: &[u8]) {
        match self.check_and_apply(content).await {
            Ok((changes, refused)) => {
                self.metrics.config_reload(metrics::Reload::Ok);
                if changes.is_empty() {
                    tracing::info!("the configuration file changed, but nothing of what is in use");
                } else {
                    tracing::info!(?changes, "the changed configuration is in use");
                    self.notes.reloaded(&changes, &refused);
                }
            }
            Err(error) => {
                let reasons = format!("{error:#}");
                tracing::error!(reasons, "the changed configuration is refused; the one in use stays");
                self.refused(&reasons);
            }
        }
    }

    /// Reports that the file cannot be read. With `--config-reload=false` it is not a change of its content.
    fn unreadable(&self, file: &Path, reason: &str) {
        tracing::error!(file = %file.display(), reason, "the configuration file cannot be read; the one in use stays");
        if self.options.config_reload {
            self.refused(&format!("{} cannot be read: {reason}", file.display()));
        }
    }

    fn refused(&self, reasons: &str) {
        self.metrics.config_reload(metrics::Reload::Refused);
        self.notes.not_reloaded(reasons);
    }

    /// Checks and applies a configuration. Returns the fields that changed, and the kernel settings that could not be written.
    async fn check_and_apply(&mut self, content: &[u8]) -> anyhow::Result<(Vec<&'static str>, Vec<String>)> {
        let (new, choice) = self.load(content).await?;
        new.log_notes();
        let old = self.agent.borrow().configuration().clone();
        let changes = changes(&old, &new.configuration);
        if changes.is_empty() {
            return Ok((changes, Vec::new()));
        }
        let prepared = self.check(&old, &new.configuration).await?;
        let watcher = self.watcher(&old, &new).await?;
        if (old.mode, old.capture) != (new.configuration.mode, new.configuration.capture) {
            modes::log(&choice);
            let families = self.agent.borrow().families().to_vec();
            finding::log(&modes::configured(&new.configuration).warnings(&new.configuration, &families));
            self.notes.mode_chosen(&choice);
            self.warn_of_families_left_out(&new.configuration).await;
        }
        self.metrics.mode(choice.mode.name(), choice.reason.name(), choice.wanted());
        self.choice = choice;
        let refused = self.apply(&old, new.configuration, prepared).await;
        if let Some(watcher) = watcher {
            // The receiver lives as long as this task.
            let _ = self.watchers.send(watcher);
        }
        Ok((changes, refused))
    }

    /// Warns of families that were left out at the start and that the new mode could serve.
    async fn warn_of_families_left_out(&self, new: &Configuration) {
        let mut left_out = settings::supported_families();
        left_out.retain(|family| !self.agent.borrow().families().contains(family));
        let (tried, families) = (new.clone(), left_out.clone());
        let findings = blocking::run(move || checks::mode(&tried, &families)).await;
        if findings.is_ok_and(|findings| findings.is_empty()) {
            for family in left_out {
                tracing::warn!(%family, "this family was left out at the start: restart the proxy to serve it in the new mode");
            }
        }
    }

    /// Checks a configuration and opens the addresses that it adds. Fails with all reasons against it.
    async fn check(&self, old: &Configuration, new: &Configuration) -> anyhow::Result<Prepared> {
        let mut reasons = fixed(old, new);
        if (old.mode, old.capture) != (new.mode, new.capture) {
            let (tried, families) = (new.clone(), self.agent.borrow().families().to_vec());
            let findings = blocking::run(move || checks::mode(&tried, &families)).await?;
            reasons.extend(findings.iter().map(ToString::to_string));
            let needed = modes::configured(new).needed_settings(new);
            reasons.extend(self.kernel_settings.refusals(&needed).iter().map(|refused| {
                format!("the mode needs a kernel setting that cannot be written here: {refused}, or restart the pod")
            }));
        }
        reasons.extend(self.agent.borrow().objections(new));
        match self.servers.prepare(new) {
            Ok(prepared) if reasons.is_empty() => return Ok(prepared),
            Ok(_) => {}
            Err(obstacles) => reasons.extend(obstacles),
        }
        bail!("{}", reasons.join("; "))
    }

    /// Connects with the new `clientConnection`, if it changed, and returns a watcher.
    async fn watcher(&self, old: &Configuration, new: &Loaded) -> anyhow::Result<Option<Watcher>> {
        if old.client_connection == new.configuration.client_connection {
            return Ok(None);
        }
        let settings = client_settings(new, &self.metrics, &self.peers);
        let client = portolan_watch::connect(&settings).await.context("clientConnection")?;
        self.notes.use_client(client.clone());
        self.progress.use_client(client.clone());
        Ok(Some(watcher(client, self.node_name, self.options, &settings)))
    }

    /// Returns the kernel settings that could not be written.
    async fn apply(&mut self, old: &Configuration, new: Configuration, prepared: Prepared) -> Vec<String> {
        let mut refused = Vec::new();
        if old.conntrack != new.conntrack {
            // A larger table takes the kernel a while. The outcome is logged there.
            let new = new.clone();
            let kernel_settings = Arc::clone(&self.kernel_settings);
            let written = blocking::run(move || kernel_settings.apply_conntrack(&new, &[])).await;
            refused = written.unwrap_or_default();
        }
        if old.oom_score_adj != new.oom_score_adj {
            node_settings::apply_oom_score(&new);
        }
        if old.logging != new.logging
            && let Err(error) = portolan_logging::start(&new.logging)
        {
            tracing::error!(%error, "the log stays as it is");
        }
        self.pages.set_configuration(&new);
        self.servers.follow(&new, prepared).await;
        self.agent.borrow_mut().configure(new);
        refused
    }
}

/// Returns the names of the fields that differ, as in the file.
fn changes(old: &Configuration, new: &Configuration) -> Vec<&'static str> {
    let table = [
        ("featureGates", old.feature_gates == new.feature_gates),
        ("clientConnection", old.client_connection == new.client_connection),
        ("logging", old.logging == new.logging),
        ("hostnameOverride", old.hostname_override == new.hostname_override),
        ("bindAddress", old.bind_address == new.bind_address),
        ("healthzBindAddress", old.healthz_bind_address == new.healthz_bind_address),
        ("metricsBindAddress", old.metrics_bind_address == new.metrics_bind_address),
        ("bindAddressHardFail", old.bind_address_hard_fail == new.bind_address_hard_fail),
        ("enableProfiling", old.enable_profiling == new.enable_profiling),
        (
            "showHiddenMetricsForVersion",
            old.show_hidden_metrics_for_version == new.show_hidden_metrics_for_version,
        ),
        ("mode", old.mode == new.mode),
        ("iptables", old.iptables == new.iptables),
        ("ipvs", old.ipvs == new.ipvs),
        ("nftables", old.nftables == new.nftables),
        ("winkernel", old.winkernel == new.winkernel),
        ("detectLocalMode", old.detect_local_mode == new.detect_local_mode),
        ("detectLocal", old.detect_local == new.detect_local),
        ("clusterCIDR", old.cluster_cidrs == new.cluster_cidrs),
        ("nodePortAddresses", old.node_port_addresses == new.node_port_addresses),
        ("oomScoreAdj", old.oom_score_adj == new.oom_score_adj),
        ("conntrack", old.conntrack == new.conntrack),
        ("configSyncPeriod", old.config_sync_period == new.config_sync_period),
        ("portRange", old.port_range == new.port_range),
        ("udpIdleTimeout", old.udp_idle_timeout == new.udp_idle_timeout),
        ("windowsRunAsService", old.windows_run_as_service == new.windows_run_as_service),
        ("addressGuard", old.address_guard == new.address_guard),
        ("readiness", old.readiness == new.readiness),
        ("portolan", old.portolan == new.portolan),
    ];
    table.into_iter().filter(|(_, same)| !same).map(|(field, _)| field).collect()
}

/// Returns a reason for each changed field that needs a restart. A restart loses no packet: the rules stay in the
/// kernel.
fn fixed(old: &Configuration, new: &Configuration) -> Vec<String> {
    let hidden = &old.show_hidden_metrics_for_version;
    let table = [
        ("hostnameOverride", old.hostname_override == new.hostname_override),
        ("featureGates", old.feature_gates == new.feature_gates),
        ("showHiddenMetricsForVersion", *hidden == new.show_hidden_metrics_for_version),
        ("portolan.controlSocket", old.portolan.control_socket == new.portolan.control_socket),
        (
            "portolan.controlSocketGroup",
            old.portolan.control_socket_group == new.portolan.control_socket_group,
        ),
    ];
    let changed = table.into_iter().filter(|(_, same)| !same);
    changed.map(|(field, _)| format!("{field}: cannot change while running; restart the proxy")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(lines: &str) -> Configuration {
        let text =
            format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{lines}");
        portolan_node::config::parse(&text).expect("a valid configuration")
    }

    /// One changed value for each field of the file.
    const FIELDS: [(&str, &str); 28] = [
        ("featureGates", "featureGates: {AllowServiceExternalIPs: false}"),
        ("clientConnection", "clientConnection: {qps: 7}"),
        ("logging", "logging: {verbosity: 3}"),
        ("hostnameOverride", "hostnameOverride: other"),
        ("bindAddress", "bindAddress: 192.0.2.1"),
        ("healthzBindAddress", "healthzBindAddress: 192.0.2.1:1"),
        ("metricsBindAddress", "metricsBindAddress: 192.0.2.1:2"),
        ("bindAddressHardFail", "bindAddressHardFail: true"),
        ("enableProfiling", "enableProfiling: true"),
        ("showHiddenMetricsForVersion", "showHiddenMetricsForVersion: '1.35'"),
        ("mode", "mode: ipvs"),
        ("iptables", "iptables: {masqueradeAll: true}"),
        ("ipvs", "ipvs: {strictARP: true}"),
        ("nftables", "nftables: {masqueradeAll: true}"),
        ("winkernel", "winkernel: {networkName: x}"),
        ("detectLocalMode", "detectLocalMode: NodeCIDR"),
        ("detectLocal", "detectLocal: {bridgeInterface: x}"),
        ("clusterCIDR", "clusterCIDR: 10.0.0.0/8"),
        ("nodePortAddresses", "nodePortAddresses: [primary]"),
        ("oomScoreAdj", "oomScoreAdj: 1"),
        ("conntrack", "conntrack: {min: 1}"),
        ("configSyncPeriod", "configSyncPeriod: 1m"),
        ("portRange", "portRange: '1-2'"),
        ("udpIdleTimeout", "udpIdleTimeout: 1s"),
        ("windowsRunAsService", "windowsRunAsService: true"),
        ("addressGuard", "addressGuard: {nodeAddresses: Warn}"),
        ("readiness", "readiness: {taint: a}"),
        ("portolan", "portolan: {stateOnAnyAddress: true}"),
    ];

    #[test]
    fn every_changed_field_is_noticed() {
        let old = parsed("");
        assert!(changes(&old, &parsed("")).is_empty());
        for (field, line) in FIELDS {
            assert_eq!(changes(&old, &parsed(line)), [field], "{line}");
        }
        // A field of the file without a line in [`FIELDS`] would not be noticed.
        let written = old.to_v1alpha1();
        let known: Vec<&str> = FIELDS.iter().map(|(field, _)| *field).chain(["apiVersion", "kind"]).collect();
        let unknown =
            written.as_object().into_iter().flatten().filter(|(key, _)| !known.contains(&key.as_str()));
        assert_eq!(unknown.count(), 0);
    }

    #[test]
    fn what_needs_a_restart_is_refused() {
        let old = parsed("");
        let refused = |line: &str| fixed(&old, &parsed(line)).len();
        for (field, line) in FIELDS {
            let wanted = ["hostnameOverride", "featureGates", "showHiddenMetricsForVersion"].contains(&field);
            assert_eq!(refused(line), usize::from(wanted), "{line}");
        }
        assert_eq!(refused("featureGates: {AllowServiceExternalIPs: false}\nhostnameOverride: other"), 2);
        assert_eq!(refused("portolan: {controlSocket: '', controlSocketGroup: adm}"), 2);
    }
}
