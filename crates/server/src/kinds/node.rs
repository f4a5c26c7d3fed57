//! Node: `podCIDR` mirrors the first of `podCIDRs`, and they are CIDRs.

use serde_json::Value;

use super::network::parse_cidr;
use crate::{
    error::FieldError,
    json::{self, Object},
};

pub(super) fn set_defaults(object: &mut Object) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let first = json::texts(spec, "podCIDRs").next().map(str::to_owned);
    match (json::text(spec, "podCIDR").map(str::to_owned), first) {
        (Some(single), None) => spec.insert("podCIDRs".to_owned(), vec![single].into()),
        (None, Some(first)) => spec.insert("podCIDR".to_owned(), first.into()),
        _ => None,
    };
}

pub(super) fn validate(object: &Object) -> Vec<FieldError> {
    let Some(spec) = json::object(object, "spec") else { return Vec::new() };
    let mut errors = Vec::new();
    let cidrs: Vec<&str> = json::texts(spec, "podCIDRs").collect();
    for (index, cidr) in cidrs.iter().enumerate() {
        if parse_cidr(cidr).is_none() {
            errors.push(FieldError::invalid(format!("spec.podCIDRs[{index}]"), *cidr, "must be a CIDR"));
        }
    }
    if cidrs.len() > 2 {
        errors.push(FieldError::too_many("spec.podCIDRs", cidrs.len(), 2));
    }
    let single = json::text(spec, "podCIDR");
    if single != cidrs.first().copied() {
        errors.push(FieldError::invalid(
            "spec.podCIDR",
            single.unwrap_or_default(),
            "must be the same as spec.podCIDRs[0]",
        ));
    }
    errors
}
