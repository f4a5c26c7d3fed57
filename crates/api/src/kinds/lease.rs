//! Lease: a claim that its holder renews. Source: `pkg/apis/coordination/validation/validation.go`.

use portolan_schema::json::{self, Object, Value};

use crate::{error::FieldError, names};

/// The strategies whose name has no prefix.
const STRATEGIES: [&str; 1] = ["OldestEmulationVersion"];

/// The path that upstream gives to `spec.strategy` in errors.
const STRATEGY: &str = "spec.strategy.strategy";

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
