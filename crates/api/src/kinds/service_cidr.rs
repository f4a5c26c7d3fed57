//! ServiceCIDR. `portolan-ipam` knows the rules of its ranges.

use ipnet::IpNet;
use portolan_ipam::{
    check::Neighbours,
    service_cidr::{CidrsRefusal, check_cidrs},
};
use portolan_schema::json::{self, Object, Value};

use crate::{error::FieldError, network::parse_cidr};

/// The finalizer of every ServiceCIDR (`k8s.io/api/networking/v1` `ServiceCIDRFinalizer`).
pub(crate) const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// Sets the finalizer, so that a new ServiceCIDR is protected before the controller has seen it.
pub(super) fn set_defaults(object: &mut Object) {
    let Some(metadata) = json::object_mut(object, "metadata") else { return };
    let is_protected = json::texts(metadata, "finalizers").any(|it| it == FINALIZER);
    if !is_protected && !metadata.contains_key("deletionTimestamp") {
        let mut finalizers = json::list(metadata, "finalizers").to_vec();
        finalizers.push(FINALIZER.into());
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
}

/// Returns everything that is wrong with a ServiceCIDR. `neighbours` are the other ranges in use.
pub(crate) fn validate(object: &Object, old: Option<&Object>, neighbours: Neighbours<'_>) -> Vec<FieldError> {
    let texts = cidrs(object);
    let unreadable: Vec<FieldError> = texts
        .iter()
        .enumerate()
        .filter(|(_, text)| parse_cidr(text).is_none())
        .map(|(index, text)| {
            FieldError::invalid(format!("spec.cidrs[{index}]"), *text, "must be a CIDR without host bits")
        })
        .collect();
    if !unreadable.is_empty() {
        return unreadable;
    }
    let nets = |texts: &[&str]| texts.iter().filter_map(|text| parse_cidr(text)).collect::<Vec<IpNet>>();
    let old = old.map(cidrs).unwrap_or_default();
    let refusal = check_cidrs(&nets(&texts), &nets(&old), neighbours).err();
    refusal.map(|refusal| field_error(&texts, old.len(), refusal)).into_iter().collect()
}

/// Returns the error for a refusal. `stored` is the number of stored entries.
fn field_error(texts: &[&str], stored: usize, refusal: CidrsRefusal) -> FieldError {
    let why = refusal.to_string();
    let why = why.split_once(": ").map_or(why.as_str(), |(_, why)| why);
    match refusal {
        CidrsRefusal::Count(0) => FieldError::required("spec.cidrs", "at least one CIDR is needed"),
        // An entry may be added to one; any other change of the number is reported on the list.
        CidrsRefusal::Immutable { .. } if texts.len() != stored && (stored, texts.len()) != (1, 2) => {
            FieldError::invalid("spec.cidrs", texts.join(","), why)
        }
        CidrsRefusal::Count(_) | CidrsRefusal::SameFamily(_) => {
            FieldError::invalid("spec.cidrs", texts.join(","), why)
        }
        CidrsRefusal::Range { index, .. } | CidrsRefusal::Immutable { index } => {
            let text = texts.get(index).copied().unwrap_or_default();
            FieldError::invalid(format!("spec.cidrs[{index}]"), Value::from(text), why)
        }
    }
}

/// Returns the ranges of a ServiceCIDR that can be read.
pub(crate) fn ranges(object: &Object) -> Vec<IpNet> {
    cidrs(object).into_iter().filter_map(parse_cidr).collect()
}

fn cidrs(object: &Object) -> Vec<&str> {
    json::object(object, "spec").map_or_else(Vec::new, |spec| json::texts(spec, "cidrs").collect())
}
