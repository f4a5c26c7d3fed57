//! The end of the engine.

use portolan_node::config::Mode;

use super::Agent;

impl Agent {
    /// Notes that changes of other programs up to this generation of the ruleset have been reported.
    pub(crate) fn reported_until(&mut self, generation: u32) {
        if let Some(running) = &mut self.running {
            running.reported_until = Some(generation);
        }
    }

    /// Returns true if changes of other programs up to this generation have been reported.
    pub(crate) fn is_reported(&self, generation: Option<u32>) -> bool {
        self.running.as_ref().is_some_and(|running| running.reported_until == generation)
    }

    /// Returns true if a data plane saves elements for the next start when the engine ends: the kernel has everything.
    pub(crate) fn saves_elements(&self) -> bool {
        self.running.as_ref().is_some_and(|running| {
            let mut planes = running.planes.iter();
            running.unsynced.is_empty() && planes.any(|plane| plane.blueprint.mode() == Mode::Nftables)
        })
    }

    /// Ends the engine. Changes of other programs up to this generation have been reported.
    pub(crate) fn stop_engine(&mut self, generation: u32) {
        if let Some(running) = &mut self.running {
            running.is_ending = true;
            running.engine.stop_in_sync(generation);
        }
    }

    /// Returns true if the engine's thread has ended.
    pub(crate) fn has_engine_ended(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.engine_thread.is_finished())
    }
}
