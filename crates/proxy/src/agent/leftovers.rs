//! What kube-proxy left is removed while no data plane starts that uses the same names.

use super::Agent;
use crate::modes::InUse;

impl Agent {
    /// Begins a removal of what kube-proxy left. Until [`Agent::end_removal`], no mode with kube-proxy's names starts. Returns
    /// what data planes of this process use or have used, and `None` before the first commits.
    pub(crate) fn start_removal(&mut self) -> Option<InUse> {
        let adds_addresses = self.adds_addresses();
        let running = self.running.as_mut()?;
        running.removes_leftovers = true;
        let chains = running.planes.iter().filter_map(|plane| plane.claims);
        Some(InUse {
            configuration: self.configuration.clone(),
            families: self.families.clone(),
            chains: chains.chain(running.former_claims.iter().copied()).collect(),
            adds_addresses,
        })
    }

    /// Ends a removal of what kube-proxy left.
    pub(crate) fn end_removal(&mut self) {
        if let Some(running) = &mut self.running {
            running.removes_leftovers = false;
        }
        self.reconfigure();
    }
}
