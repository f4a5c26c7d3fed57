//! Feature gates: which ones exist in Kubernetes 1.36, which are on.
//!
//! In flow the names and values that an operator wrote (`featureGates`, `--feature-gates`); out flows a
//! [`FeatureGates`] that knows every gate, or every mistake with its mend. Most gates mean nothing to a node
//! agent; they are known because the same list is often given to every component of a cluster. Dependencies
//! between gates of other components are theirs to check.

use std::collections::BTreeMap;

use crate::nearest::nearest;

mod known;
#[cfg(test)]
mod tests;

/// Turns every alpha gate on or off that is not named itself.
const ALL_ALPHA: &str = "AllAlpha";
/// Turns every beta gate on or off that is not named itself.
const ALL_BETA: &str = "AllBeta";

/// How far a feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Off unless asked for.
    Alpha,
    /// May still change.
    Beta,
    /// Here to stay.
    Ga,
    /// On its way out.
    Deprecated,
}

impl Stage {
    /// The stage as `kubernetes_feature_enabled` spells it; nothing for GA.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// What is wrong with one gate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// No gate of that name in Kubernetes 1.36.
    #[error("unrecognized feature gate{}", suggestion(*.meant))]
    Unknown {
        /// The gate that was probably meant.
        meant: Option<&'static str>,
    },
    /// The gate has only one value any more.
    #[error("cannot be set to {}: it is locked to {locked}; leave it out", !.locked)]
    Locked {
        /// That value.
        locked: bool,
    },
}

fn suggestion(meant: Option<&'static str>) -> String {
    match meant {
        Some(name) => format!("; did you mean `{name}`?"),
        None => "; Kubernetes 1.36 has none of that name: leave it out".to_owned(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gate {
    stage: Stage,
    locked: bool,
    enabled: bool,
    /// Whether an operator named it.
    named: bool,
}

/// Every gate and whether it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    gates: BTreeMap<&'static str, Gate>,
}

impl Default for FeatureGates {
    /// Every gate as Kubernetes 1.36 has it.
    fn default() -> Self {
        let mut gates = BTreeMap::new();
        for group in known::GROUPS {
            let gate =
                Gate { stage: group.stage, locked: group.locked, enabled: group.default, named: false };
            gates.extend(group.names.iter().map(|name| (*name, gate)));
        }
        for (name, stage) in [(ALL_ALPHA, Stage::Alpha), (ALL_BETA, Stage::Beta)] {
            gates.insert(name, Gate { stage, locked: false, enabled: false, named: false });
        }
        Self { gates }
    }
}

impl FeatureGates {
    /// The gates with these values, by name.
    ///
    /// # Errors
    /// Every name that is unknown or locked to the other value.
    pub fn from_map(values: &BTreeMap<String, bool>) -> Result<Self, Vec<(String, GateError)>> {
        let mut gates = Self::default();
        let set = values.iter().filter_map(|(name, value)| Some((name, gates.set(name, *value).err()?)));
        let errors: Vec<_> = set.map(|(name, error)| (name.clone(), error)).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        for (all, stage) in [(ALL_ALPHA, Stage::Alpha), (ALL_BETA, Stage::Beta)] {
            if let Some(value) = values.get(all) {
                gates.set_unnamed(stage, *value);
            }
        }
        Ok(gates)
    }

    /// Whether a gate is on; false for one that does not exist.
    pub fn enabled(&self, name: &str) -> bool {
        self.gates.get(name).is_some_and(|gate| gate.enabled)
    }

    /// Every gate by name, with its stage and whether it is on.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        self.gates.iter().map(|(name, gate)| (*name, gate.stage, gate.enabled))
    }

    /// Gates that an operator named though they are on their way out or no longer a choice.
    pub fn needless(&self) -> impl Iterator<Item = (&'static str, Stage)> {
        let needless = |gate: &Gate| gate.named && matches!(gate.stage, Stage::Ga | Stage::Deprecated);
        self.gates.iter().filter(move |(_, gate)| needless(gate)).map(|(name, gate)| (*name, gate.stage))
    }

    fn set(&mut self, name: &str, value: bool) -> Result<(), GateError> {
        let Some(gate) = self.gates.get_mut(name) else {
            return Err(GateError::Unknown { meant: nearest(name, self.gates.keys().copied()) });
        };
        if gate.locked && gate.enabled != value {
            return Err(GateError::Locked { locked: gate.enabled });
        }
        (gate.enabled, gate.named) = (value, true);
        Ok(())
    }

    fn set_unnamed(&mut self, stage: Stage, value: bool) {
        let chosen =
            self.gates.values_mut().filter(|gate| gate.stage == stage && !gate.named && !gate.locked);
        chosen.for_each(|gate| gate.enabled = value);
    }
}
