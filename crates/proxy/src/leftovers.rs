//! Removes what kube-proxy left, once the proxy's own rules of every family are in the kernel.
//!
//! Chains of kube-proxy come before ours, and send packets to endpoints that may be gone. So a removal that fails, such as
//! one that waited in vain for the lock of iptables, is repeated until nothing fails.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use portolan_node::metrics::ProxyMetrics;

use super::agent::Agent;
use super::events::Notes;
use super::{blocking, cleanup};

/// Wait after the first attempt. It is doubled after each further one.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Removes what kube-proxy left, once every family is in sync. Repeats what fails.
pub(super) async fn removing(
    agent: &Rc<RefCell<Agent>>,
    notes: &Notes,
    metrics: &ProxyMetrics,
) -> Infallible {
    let in_sync = agent.borrow_mut().in_sync();
    if in_sync.await.is_ok() {
        let mut attempts = Attempts::default();
        while let Some(wait) = attempts.next(agent, notes, metrics).await {
            tokio::time::sleep(wait).await;
        }
    }
    std::future::pending().await
}

/// The attempts so far.
#[derive(Debug, Default)]
struct Attempts {
    failed: u32,
    /// What failed in the last attempt.
    failures: Vec<String>,
}

impl Attempts {
    /// Makes an attempt. Returns how long to wait before the next one, or `None` if everything was removed.
    async fn next(
        &mut self,
        agent: &Rc<RefCell<Agent>>,
        notes: &Notes,
        metrics: &ProxyMetrics,
    ) -> Option<Duration> {
        let in_use = agent.borrow_mut().start_removal()?;
        let is_first = self.failed == 0;
        let failures = blocking::run(move || cleanup::take_over(&in_use.keep(), is_first)).await;
        agent.borrow_mut().end_removal();
        let failures = failures.unwrap_or_else(|error| vec![format!("{error:#}")]);
        metrics.leftovers(failures.len());
        if failures.is_empty() {
            if self.failed > 0 {
                tracing::info!(attempts = self.failed + 1, "what kube-proxy left is removed now");
            }
            return None;
        }
        for error in failures.iter().filter(|failure| !self.failures.contains(failure)) {
            tracing::warn!(error, "what kube-proxy left cannot be removed; trying again");
        }
        // The first attempt may have met another program that was writing.
        if self.failed == 1 || (self.failed > 1 && failures != self.failures) {
            notes.leftovers_stay(&failures.join("; "));
        }
        self.failed = self.failed.saturating_add(1);
        self.failures = failures;
        Some(wait_after(self.failed))
    }
}

/// Returns how long to wait after so many failed attempts.
fn wait_after(failed: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
    FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_doubled_up_to_a_limit() {
        let waits = [1, 2, 3, 7, 40, u32::MAX].map(|failed| wait_after(failed).as_secs());
        assert_eq!(waits, [5, 10, 20, 300, 300, 300]);
    }
}
