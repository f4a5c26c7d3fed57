//! Finds out that the kernel has everything, if the Node object is to show that (`readiness`).

use super::Agent;
use crate::reports::Synced;

impl Agent {
    /// Asks the engine to compare until the kernel has everything. If that is not to be shown, or is known, asks it to
    /// stop.
    pub(super) fn verify(&self) {
        let Some(running) = &self.running else { return };
        let is_needed = self.progress.needs_verification();
        for family in &running.unverified {
            if is_needed {
                running.engine.verify(*family);
            } else {
                running.engine.stop_verifying(*family);
            }
        }
        // The last report may have come while this was not to be shown.
        self.end_verification();
    }

    /// Handles the engine's report that a comparison has found no difference in a family.
    pub(super) fn note_verification(&mut self, step: &Synced) {
        let Some(running) = &mut self.running else { return };
        running.unverified.retain(|waiting| *waiting != step.family || !step.verified);
        self.end_verification();
    }

    /// Shows that Services work if every family is verified and that is to be shown.
    fn end_verification(&self) {
        let Some(running) = &self.running else { return };
        if running.unverified.is_empty() && self.progress.needs_verification() {
            tracing::info!("everything is programmed, and was read back without a difference");
            self.metrics.verified();
            self.progress.verified();
        }
    }
}
