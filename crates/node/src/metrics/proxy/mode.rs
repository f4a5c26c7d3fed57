//! The mode that runs, and whether another one is to replace it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PerFamily;
use crate::address::Family;
use crate::metrics::{DynamicVector, Gauge, Registry, Vector};

/// The metrics of the mode. A mode is shown once it runs in every family.
pub(super) struct ModeMetrics {
    mode: Arc<DynamicVector<3, Gauge>>,
    pending: PerFamily<Gauge>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The mode to which the configuration leads, the reason, and the mode that the configuration names.
    chosen: [String; 3],
    /// What is shown: an earlier choice while that one still runs in a family.
    shown: [String; 3],
    /// The mode that runs, by the name of the family. Empty before the first rules are written.
    running: BTreeMap<&'static str, String>,
}

impl ModeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            mode: registry.add(
                "portolan_proxy_mode",
                "1 for the mode that runs, why it is that one, and the one that the configuration names",
                DynamicVector::new(["mode", "reason", "wanted"], Gauge::default),
            ),
            pending: registry.add(
                "portolan_proxy_mode_pending",
                "1 while the former mode stays because the chosen one has not written all its rules",
                Vector::new(Gauge::default),
            ),
            state: Mutex::default(),
        }
    }

    pub(super) fn choose(&self, mode: &str, reason: &str, wanted: &str) {
        let mut state = self.lock();
        state.chosen = [mode, reason, wanted].map(str::to_owned);
        self.show(&mut state);
    }

    pub(super) fn runs(&self, family: Family, mode: &str) {
        let mut state = self.lock();
        let known = state.running.insert(family.name(), mode.to_owned());
        if known.as_deref() != Some(mode) {
            self.show(&mut state);
        }
    }

    /// Returns the name of the mode that is shown.
    pub(super) fn shown(&self) -> String {
        let [mode, ..] = &self.lock().shown;
        mode.clone()
    }

    fn show(&self, state: &mut State) {
        let State { chosen, shown, running } = state;
        let [mode, ..] = &*chosen;
        let is_pending = |family: Family| running.get(family.name()).is_some_and(|running| running != mode);
        for family in Family::BOTH {
            let value = if is_pending(family) { 1.0 } else { 0.0 };
            self.pending.with(family, |gauge| gauge.set(value));
        }
        if !Family::BOTH.into_iter().any(is_pending) {
            shown.clone_from(chosen);
            self.mode.clear();
            self.mode.with(shown.each_ref().map(String::as_str), |gauge| gauge.set(1.0));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
