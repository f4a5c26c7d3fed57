//! Lease: a claim that its holder renews. Source: `pkg/apis/coordination/validation/validation.go`,
//! `pkg/registry/coordination/lease/strategy.go`.

use portolan_schema::json::{self, Object, Value};

use crate::{error::FieldError, names};

/// The strategies whose name has no prefix.
const STRATEGIES: [&str; 1] = ["OldestEmulationVersion"];

/// The path that upstream gives to `spec.strategy` in errors.
const STRATEGY: &str = "spec.strategy.strategy";

/// Removes the fields of coordinated leader election unless the stored Lease has them: its feature gate,
/// `CoordinatedLeaderElection`, is off by default. Earlier versions of this server stored them.
pub(super) fn drop_gated(object: &mut Object, old: Option<&Object>) {
    for key in ["strategy", "preferredHolder"] {
        super::drop_unless_stored(object, old, "spec", key);
    }
}

pub(super) fn validate(object: &Object) -> Vec<FieldError> {
    let Some(spec) = json::object(object, "spec") else { return Vec::new() };
    let mut errors = Vec::new();
    let number = |key: &str| spec.get(key).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(count) = number("leaseTransitions").filter(|count| *count < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.leaseTransitions", count, why));
    }
    let strategy = spec.get("strategy").and_then(Value::as_str);
    match strategy {
        Some(name) if name.contains('/') && !names::is_qualified_name(name) => {
            errors.push(FieldError::invalid(STRATEGY, name, "must be a qualified name"));
        }
        Some(name) if !name.contains('/') && !STRATEGIES.contains(&name) => {
            errors.push(FieldError::not_supported(STRATEGY, name, &STRATEGIES));
        }
        _ => {}
    }
    if json::text(spec, "preferredHolder").is_some() && strategy.is_none_or(str::is_empty) {
        errors.push(FieldError::forbidden("spec.preferredHolder", "may only be set together with strategy"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use portolan_schema::json::json;

    use super::*;

    fn faults(spec: &Value) -> Vec<String> {
        let object = json!({"spec": spec}).as_object().unwrap().clone();
        validate(&object).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn gated_fields_are_dropped_unless_they_are_stored() {
        let lease = |spec: Value| json!({"spec": spec}).as_object().unwrap().clone();
        let dropped = |spec: Value, old: Option<&Object>| {
            let mut new = lease(spec);
            drop_gated(&mut new, old);
            new["spec"].clone()
        };
        let both = json!({"holderIdentity": "a", "strategy": "Odd", "preferredHolder": "b"});
        assert_eq!(dropped(both.clone(), None), json!({"holderIdentity": "a"}));
        let plain = lease(json!({"holderIdentity": "a"}));
        assert_eq!(dropped(both.clone(), Some(&plain)), json!({"holderIdentity": "a"}));
        let one = lease(json!({"strategy": "OldestEmulationVersion"}));
        assert_eq!(dropped(both.clone(), Some(&one)), json!({"holderIdentity": "a", "strategy": "Odd"}));
        assert_eq!(dropped(both.clone(), Some(&lease(both.clone()))), both);
        let mut empty = Object::new();
        drop_gated(&mut empty, None);
        assert_eq!(empty, Object::new());
    }

    #[test]
    fn each_rule() {
        for (spec, fault) in [
            (
                json!({"leaseDurationSeconds": 0}),
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            ),
            (
                json!({"leaseTransitions": -1}),
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"strategy": "Oldest"}),
                "spec.strategy.strategy: Unsupported value: \"Oldest\": supported values: \"OldestEmulationVersion\"",
            ),
            (
                json!({"strategy": "a b/c"}),
                "spec.strategy.strategy: Invalid value: \"a b/c\": must be a qualified name",
            ),
            (
                json!({"preferredHolder": "a"}),
                "spec.preferredHolder: Forbidden: may only be set together with strategy",
            ),
        ] {
            assert_eq!(faults(&spec), [fault], "{spec}");
        }
    }

    #[test]
    fn valid_leases_are_accepted() {
        for spec in [
            json!({}),
            json!({"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0}),
            json!({"strategy": "OldestEmulationVersion", "preferredHolder": "a"}),
            json!({"strategy": "example.com/Other"}),
        ] {
            assert_eq!(faults(&spec), Vec::<String>::new(), "{spec}");
        }
    }
}
