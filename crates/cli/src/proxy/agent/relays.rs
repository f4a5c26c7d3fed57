//! Relays of the userspace mode: when they are to end, and what waits for it.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Agent;

/// How long connections of the relay may go on after the process was told to stop. Kubernetes kills it after 30 seconds.
pub(in crate::proxy) const LEAVING: Duration = Duration::from_secs(25);
/// The part of it in which the relay has to end.
const DRAIN: Duration = Duration::from_secs(22);

impl Agent {
    /// The process is to stop. Where packets depend on it, the kernel is to do the work from now on (by the rules of the
    /// nftables mode, or of the iptables mode where these lead to the relay), and connections go on for a while; answers what
    /// to wait for, if anything.
    pub(in crate::proxy) fn leave(&mut self) -> Option<oneshot::Receiver<()>> {
        if self.running.is_none() || !self.shared.relays.are_there() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.leaving = Some(sender);
        tracing::info!("stopping: the kernel takes new connections, those of the relay go on for a while");
        self.reconfigure();
        self.let_relays_part();
        Some(receiver)
    }

    /// Lets relays end that nothing is captured for any more.
    pub(super) fn let_relays_part(&mut self) {
        let Some(running) = &self.running else { return };
        if running.planes.iter().any(|plane| plane.next.is_some()) {
            return;
        }
        let captures = running.planes.iter().any(|plane| plane.blueprint.captures());
        self.shared.relays.part(captures, self.leaving.as_ref().map(|_| DRAIN));
    }

    /// Looks whether the last relay has ended.
    pub(super) fn look_after_relays(&mut self) {
        if !self.shared.relays.forget_ended() {
            return;
        }
        tracing::info!("the relay's last connection has ended");
        if let Some(waiting) = self.leaving.take() {
            // Nobody waits any more where it took too long.
            let _ = waiting.send(());
        }
    }
}
