//! Relays of the userspace mode at the end of the process and after a change of the mode.
//!
//! When the process stops, packets must not depend on it: another data plane takes over, and the relay drains. After
//! SIGTERM, Kubernetes kills the container when 30 seconds have passed.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Agent;

/// How long the process lives on after a signal to let the relay's connections end. Below the 30 seconds of
/// Kubernetes' grace period.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(25);
/// The part of [`SHUTDOWN_LIMIT`] in which the relay has to end.
const DRAIN: Duration = Duration::from_secs(22);

impl Agent {
    /// Prepares the end of the process. If packets depend on it, the rules of the nftables mode take over, or those
    /// of the iptables mode if these redirect to the relay. The relay's connections may go on for a while. Returns a
    /// receiver that resolves when the relay has ended, or `None` if there is nothing to wait for.
    pub(crate) fn start_shutdown(&mut self) -> Option<oneshot::Receiver<()>> {
        if self.running.is_none() || !self.shared.relays.may_have_connections() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.on_relays_drained = Some(sender);
        tracing::info!("stopping: the kernel takes new connections, those of the relay go on for a while");
        self.reconfigure();
        self.drain_relays();
        Some(receiver)
    }

    /// Drains the relays for which no packets are captured.
    pub(super) fn drain_relays(&mut self) {
        let Some(running) = &self.running else { return };
        if running.planes.iter().any(|plane| !plane.next.is_empty()) {
            return;
        }
        let captures = running.planes.iter().any(|plane| plane.blueprint.captures());
        self.shared.relays.part(captures, self.on_relays_drained.as_ref().map(|_| DRAIN));
    }

    /// Checks whether the last relay has ended.
    pub(super) fn check_relays(&mut self) {
        if !self.shared.relays.remove_ended() {
            return;
        }
        tracing::info!("the relay's last connection has ended");
        if let Some(waiting) = self.on_relays_drained.take() {
            // The send fails if the process stopped waiting.
            let _ = waiting.send(());
        }
    }
}
