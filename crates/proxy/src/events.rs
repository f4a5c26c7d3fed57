//! The Events that this node posts to the API server.

use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use portolan_model::ServicePortName;
use portolan_model::object::{Fault, Kind, Notice, ObjectKey};
use portolan_node::health::ListenFailure;
use portolan_watch::Client;
use portolan_watch::events::{EventNote, Recorder};
use portolan_web::BindError;

use super::modes::Choice;

/// How long the end of the process waits until the Event with the reason is sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Posts Events. Never blocks, except [`Notes::cannot_listen`].
#[derive(Clone)]
pub(super) struct Notes {
    recorder: Recorder,
    node: Rc<str>,
}

impl Notes {
    /// Creates the poster for this node's Events.
    pub(super) fn new(recorder: Recorder, node_name: &str) -> Self {
        Self { recorder, node: node_name.into() }
    }

    /// Posts later Events through another client.
    pub(super) fn use_client(&self, client: Client) {
        self.recorder.use_client(client);
    }

    /// Posts `Starting`. Called once, when the watches are set up.
    pub(super) fn starting(&self) {
        self.recorder.event(EventNote::starting(&self.node));
    }

    /// Posts that a server with `bindAddressHardFail` cannot listen. The process is about to end: waits a moment for
    /// the Event to be sent.
    pub(super) async fn cannot_listen(&self, error: &BindError) {
        let note = error.to_string();
        self.recorder.event(match error.server {
            "metrics" => EventNote::failed_to_start_metric_server(&self.node, &note),
            _ => EventNote::failed_to_start_proxier_healthcheck(&self.node, &note),
        });
        // The end of the process does not wait longer for an unresponsive API server.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.recorder.flushed()).await;
    }

    /// Posts that the health-check node port of a Service cannot be opened.
    pub(super) fn no_health_check(&self, failure: &ListenFailure) {
        let service = (failure.service.namespace.as_str(), failure.service.name.as_str());
        let note = failure.event_note(&self.node);
        self.recorder.event(EventNote::failed_to_start_service_healthcheck(service, &note));
    }

    /// Posts that another mode runs than the configured one, if so.
    pub(super) fn mode_chosen(&self, choice: &Choice) {
        if let Some(note) = choice.fallback() {
            self.recorder.event(EventNote::proxy_mode_fallback(&self.node, &note));
        }
    }

    /// Posts that the memory limit is too low for the rules of the mode, given what other processes in the cgroup
    /// use.
    pub(super) fn memory_limit_too_low(&self, limit_mib: u64, others_mib: u64, needed_mib: u64) {
        let others = match others_mib {
            0 => String::new(),
            others => format!(", of which others use {others} MiB"),
        };
        let note = format!(
            "the memory limit is {limit_mib} MiB{others}, and loading the rules of the iptables mode needs about {needed_mib} MiB: raise \
             resources.limits.memory, or choose another proxy mode"
        );
        self.recorder.event(EventNote::memory_limit_too_low(&self.node, &note));
    }

    /// Posts that a Service port cannot be programmed.
    pub(super) fn not_programmed(&self, name: &ServicePortName, reason: &str) {
        let note = format!("port {:?} ({}): {reason}", name.port, name.protocol);
        let service = (&*name.namespace, &*name.service);
        self.recorder.event(EventNote::service_port_not_programmed(service, &note));
    }

    /// Posts that the API server's list of a collection is empty although objects are known.
    pub(super) fn empty_list_held(&self, kind: Kind, known: usize) {
        let note = format!(
            "the API server lists no {kind}, where {known} are known: they stay until another list says the same after a while"
        );
        self.recorder.event(EventNote::empty_list_held(&self.node, &note));
    }

    /// Posts that a Service port has more endpoints than it can use.
    pub(super) fn endpoints_left_out(&self, name: &ServicePortName, reason: &str) {
        let note = format!("port {:?} ({}): {reason}", name.port, name.protocol);
        let service = (&*name.namespace, &*name.service);
        self.recorder.event(EventNote::endpoints_left_out(service, &note));
    }

    /// Posts that a part of a Service is left out and that its clients notice.
    pub(super) fn service_fault(&self, key: &ObjectKey, notice: Notice, fault: &Fault) {
        let make = match notice {
            Notice::AddressRefused => EventNote::external_address_left_out,
            Notice::AddressShared => EventNote::external_address_shared,
            Notice::ApiServerAddress => EventNote::api_server_address_left_out,
            Notice::ClosedSourceRanges => EventNote::source_ranges_closed,
            Notice::Conflict => EventNote::frontend_in_use,
        };
        self.recorder.event(make((&key.namespace, &key.name), &fault.to_string()));
    }

    /// Posts that what kube-proxy left cannot be removed.
    pub(super) fn leftovers_stay(&self, reasons: &str) {
        self.recorder.event(EventNote::leftovers_not_removed(&self.node, reasons));
    }

    /// Posts that the Node object cannot be written.
    pub(super) fn node_not_updated(&self, note: &str) {
        self.recorder.event(EventNote::node_not_updated(&self.node, note));
    }

    /// Posts that a changed configuration file has been applied, apart from these kernel settings.
    pub(super) fn reloaded(&self, changes: &[&str], refused: &[String]) {
        let mut note = format!("changed: {}", changes.join(", "));
        if !refused.is_empty() {
            let _ = write!(note, "; restart the pod for what cannot be written here: {}", refused.join("; "));
        }
        self.recorder.event(EventNote::configuration_reloaded(&self.node, &note));
    }

    /// Posts that a changed configuration file has been refused.
    pub(super) fn not_reloaded(&self, reasons: &str) {
        let note = format!("the configuration in use stays: {}", on_one_line(reasons));
        self.recorder.event(EventNote::configuration_refused(&self.node, &note));
    }
}

/// Joins the lines of a text: `kubectl get events` shows the first one only.
fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty()) {
        match line.chars().last() {
            None => {}
            Some(':' | ';' | ',') => line.push(' '),
            Some(_) => line.push_str("; "),
        }
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_is_in_the_first_line() {
        let reasons = "the configuration is invalid:\n  mode: unknown \"x\"\n  iptables.masqueradeBit: 32 is too large\n";
        let line =
            "the configuration is invalid: mode: unknown \"x\"; iptables.masqueradeBit: 32 is too large";
        assert_eq!(on_one_line(reasons), line);
        assert_eq!(on_one_line("a; b"), "a; b");
    }
}
