//! Finds out that the kernel has everything, if the Node object is to show that (`readiness`).

use super::Agent;
use crate::reports::Synced;

impl Agent {
    /// Asks the engine to compare until the kernel has everything. Does nothing if that is not to be shown, or is known.
    pub(super) fn verify(&self) {
        if let Some(running) = &self.running
            && self.progress.needs_verification()
        {
            for family in &running.unverified {
                running.engine.verify(*family);
            }
        }
    }

    /// Handles the engine's report that a comparison has found no difference in a family.
    pub(super) fn note_verification(&mut self, step: &Synced) {
        let Some(running) = &mut self.running else { return };
        running.unverified.retain(|waiting| *waiting != step.family || !step.verified);
        if running.unverified.is_empty() && self.progress.needs_verification() {
            tracing::info!("everything is programmed, and was read back without a difference");
            self.metrics.verified();
            self.progress.verified();
        }
    }
}
