//! Feature gates: which gates Kubernetes 1.36 has, and which of them are enabled.
//!
//! Input: the names and values that the operator wrote (`featureGates`, `--feature-gates`). Output: [`FeatureGates`],
//! which knows every gate, or every error with its fix. Most gates mean nothing to a node agent. They are known because
//! operators often give the same list to every component of a cluster. Dependencies between gates of other components are
//! not checked.

use std::collections::BTreeMap;

use crate::nearest::nearest;

mod known;
mod retired;
#[cfg(test)]
mod tests;

pub use self::retired::Retired;

/// Enables or disables every alpha gate that is not named itself.
const ALL_ALPHA: &str = "AllAlpha";
/// Enables or disables every beta gate that is not named itself.
const ALL_BETA: &str = "AllBeta";

/// The maturity of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Disabled by default.
    Alpha,
    /// Tested; may still change.
    Beta,
    /// Stable.
    Ga,
    /// To be removed.
    Deprecated,
}

impl Stage {
    /// Returns the stage as `kubernetes_feature_enabled` spells it; empty for GA.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// An error in one gate's name or value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// Kubernetes 1.36 has no gate of this name.
    #[error("unrecognized feature gate{}", suggestion(*.meant))]
    Unknown {
        /// The known gate with a similar name.
        meant: Option<&'static str>,
    },
    /// Kubernetes 1.36 does not have the gate, and its feature has one value for good.
    #[error("cannot be set to {}: it is always {} since Kubernetes {}; leave it out", !.0.value, .0.value, .0.since)]
    Retired(Retired),
    /// The gate is locked to one value.
    #[error("cannot be set to {}: it is locked to {locked}; leave it out", !.locked)]
    Locked {
        /// The value to which the gate is locked.
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
    /// The operator named the gate.
    named: bool,
}

/// Every gate, and whether it is enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates {
    gates: BTreeMap<&'static str, Gate>,
    /// Gates of older releases that the operator named, with the value that their features have.
    retired: Vec<Retired>,
}

impl Default for FeatureGates {
    /// Returns every gate with its default in Kubernetes 1.36.
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
        Self { gates, retired: Vec::new() }
    }
}

impl FeatureGates {
    /// Returns the gates with these values by name.
    ///
    /// # Errors
    /// Every name that is unknown, or that has the other value for good.
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

    /// Returns true if a gate is enabled; false if it does not exist.
    pub fn enabled(&self, name: &str) -> bool {
        self.gates.get(name).is_some_and(|gate| gate.enabled)
    }

    /// Returns every gate in the order of names, with its stage and whether it is enabled.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        self.gates.iter().map(|(name, gate)| (*name, gate.stage, gate.enabled))
    }

    /// Returns the gates that an operator named although they are GA or deprecated.
    pub fn needless(&self) -> impl Iterator<Item = (&'static str, Stage)> {
        let needless = |gate: &Gate| gate.named && matches!(gate.stage, Stage::Ga | Stage::Deprecated);
        self.gates.iter().filter(move |(_, gate)| needless(gate)).map(|(name, gate)| (*name, gate.stage))
    }

    /// Returns the gates of older releases that an operator named.
    pub fn retired(&self) -> impl Iterator<Item = &Retired> {
        self.retired.iter()
    }

    fn set(&mut self, name: &str, value: bool) -> Result<(), GateError> {
        if let Some(gate) = retired::retired(name) {
            if gate.value != value {
                return Err(GateError::Retired(*gate));
            }
            self.retired.push(*gate);
            return Ok(());
        }
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
