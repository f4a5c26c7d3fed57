//! ServiceCIDR: one CIDR, or one of each family; only the second family may be added later.

use super::network::parse_cidr;
use crate::{
    error::FieldError,
    json::{self, Object},
};

pub(super) fn validate(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let cidrs = cidrs(object);
    let mut errors = Vec::new();
    if cidrs.is_empty() {
        errors.push(FieldError::required("spec.cidrs", "at least one CIDR is needed"));
    }
    if cidrs.len() > 2 {
        errors.push(FieldError::too_many("spec.cidrs", cidrs.len(), 2));
    }
    for (index, cidr) in cidrs.iter().enumerate() {
        if parse_cidr(cidr).is_none() {
            let field = format!("spec.cidrs[{index}]");
            errors.push(FieldError::invalid(field, *cidr, "must be a CIDR without host bits"));
        }
    }
    if let [first, second] = cidrs.as_slice()
        && first.contains(':') == second.contains(':')
    {
        errors.push(FieldError::invalid(
            "spec.cidrs",
            *second,
            "the two CIDRs must be of different families",
        ));
    }
    if let Some(old) = old
        && !cidrs.starts_with(&self::cidrs(old))
    {
        errors
            .push(FieldError::forbidden("spec.cidrs", "CIDRs may not change; only the second may be added"));
    }
    errors
}

fn cidrs(object: &Object) -> Vec<&str> {
    json::object(object, "spec").map_or_else(Vec::new, |spec| json::texts(spec, "cidrs").collect())
}
