//! Which IP families a Service has: `ipFamilies` and `ipFamilyPolicy`, decided from what the client asked and what
//! the server has ranges for. The order of steps is that of `pkg/registry/core/service/storage/alloc.go`.

use crate::{
    error::FieldError,
    json::{self, Object},
    kinds::network::{FAMILIES, family_of, parse_address},
};

use super::{is_headless, service_type};

/// Fills in families and policy. `configured` holds the families with a range, the primary one first.
pub(crate) fn decide(
    spec: &mut Object,
    old: Option<&Object>,
    configured: &[&'static str],
) -> Result<(), FieldError> {
    if service_type(spec) == "ExternalName" {
        return Ok(());
    }
    let bare_headless = is_headless(spec) && json::object(spec, "selector").is_none_or(Object::is_empty);
    let policy = policy(spec, old, bare_headless);
    drop_secondary(spec, old, &policy)?;
    let mut families: Vec<String> = json::texts(spec, "ipFamilies").map(str::to_owned).collect();
    if policy == "SingleStack" && (families.len() > 1 || json::list(spec, "clusterIPs").len() > 1) {
        let why = "must be RequireDualStack or PreferDualStack when two families or cluster IPs are given";
        return Err(FieldError::invalid("spec.ipFamilyPolicy", policy, why));
    }
    infer_from_addresses(spec, configured, &mut families)?;
    let primary = configured.first().copied().unwrap_or("IPv4");
    if !bare_headless {
        check_configured(&policy, &families, configured)?;
    }
    if families.is_empty() {
        families.push(primary.to_owned());
    }
    let other_available = bare_headless || configured.len() > 1;
    if let ([only], true) = (families.as_slice(), policy != "SingleStack" && other_available) {
        let other = FAMILIES.into_iter().find(|family| *family != only.as_str()).unwrap_or("IPv6");
        families.push(other.to_owned());
    }
    spec.insert("ipFamilies".to_owned(), families.into());
    spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    Ok(())
}

fn policy(spec: &Object, old: Option<&Object>, bare_headless: bool) -> String {
    let given = json::text(spec, "ipFamilyPolicy");
    let stored = old.and_then(|old| json::text(old, "ipFamilyPolicy"));
    let default = if bare_headless { "RequireDualStack" } else { "SingleStack" };
    given.or(stored).unwrap_or(default).to_owned()
}

/// On update: `SingleStack` drops the second family; dropping it without that policy is a mistake.
fn drop_secondary(spec: &mut Object, old: Option<&Object>, policy: &str) -> Result<(), FieldError> {
    let Some(old) = old else { return Ok(()) };
    for key in ["clusterIPs", "ipFamilies"] {
        let (new, stored) = (json::list(spec, key), json::list(old, key));
        if policy == "SingleStack" && new == stored && new.len() > 1 {
            let first = new.first().cloned().into_iter().collect::<Vec<_>>();
            spec.insert(key.to_owned(), first.into());
        } else if policy != "SingleStack" && !new.is_empty() && new.len() < stored.len() {
            let why = "must be SingleStack to release the secondary cluster IP";
            return Err(FieldError::invalid("spec.ipFamilyPolicy", policy, why));
        }
    }
    Ok(())
}

/// Families of the addresses that no listed family stands for.
fn infer_from_addresses(
    spec: &Object,
    configured: &[&'static str],
    families: &mut Vec<String>,
) -> Result<(), FieldError> {
    for (index, text) in json::texts(spec, "clusterIPs").enumerate().skip(families.len()) {
        if text == "None" {
            break;
        }
        let field = format!("spec.clusterIPs[{index}]");
        let Some(address) = parse_address(text) else {
            return Err(FieldError::invalid(field, text, "must be a valid IP address"));
        };
        let family = family_of(address);
        if !configured.contains(&family) {
            let why = "may not be used: no service-cluster-ip-range of this family is configured";
            return Err(FieldError::invalid(field, text, why));
        }
        families.push(family.to_owned());
    }
    Ok(())
}

fn check_configured(
    policy: &str,
    families: &[String],
    configured: &[&'static str],
) -> Result<(), FieldError> {
    if policy == "RequireDualStack" && configured.len() < 2 {
        let why = "this server has a service-cluster-ip-range of one family only";
        return Err(FieldError::invalid("spec.ipFamilyPolicy", policy, why));
    }
    for (index, family) in families.iter().enumerate() {
        if FAMILIES.contains(&family.as_str()) && !configured.contains(&family.as_str()) {
            let why = "no service-cluster-ip-range of this family is configured";
            return Err(FieldError::invalid(format!("spec.ipFamilies[{index}]"), family.as_str(), why));
        }
    }
    Ok(())
}
