//! Decides the IP families of a Service: `ipFamilies` and `ipFamilyPolicy`, from the client's request and the
//! cluster's ranges. The order of the steps is that of `pkg/registry/core/service/storage/alloc.go`.

use crate::{
    error::{CLUSTER_IPS, FieldError, Refusal},
    family::{Families, Family, parse_address},
    service::{IpFamilyPolicy, NONE, ServiceSpec, ServiceType},
};

#[cfg(test)]
mod tests;

/// Fills in the families and the policy of a new spec. `old` is the stored spec if this is an update.
pub fn decide(
    spec: &mut ServiceSpec,
    old: Option<&ServiceSpec>,
    configured: Families,
) -> Result<(), Vec<FieldError>> {
    let errors = structure(spec, old);
    if !errors.is_empty() {
        return Err(errors);
    }
    if !spec.may_have_address() || old.is_some_and(|old| is_unchanged_preference(spec, old)) {
        return Ok(());
    }
    let policy = policy(spec, old);
    decide_with(spec, old, policy, configured).map_err(|error| vec![error])
}

/// Fills in the fields of a Service that was stored before they existed, as upstream does on every read.
pub fn default_on_read(spec: &mut ServiceSpec, primary: Family) {
    if spec.cluster_ips.is_empty() && !spec.cluster_ip.is_empty() {
        spec.cluster_ips = vec![spec.cluster_ip.clone()];
    }
    if !spec.may_have_address() || !spec.ip_families.is_empty() || spec.cluster_ips.is_empty() {
        return;
    }
    let (families, policy) = if spec.is_headless_without_selector() {
        (vec![primary, primary.other()], IpFamilyPolicy::RequireDualStack)
    } else if spec.is_headless() {
        (vec![primary], IpFamilyPolicy::SingleStack)
    } else {
        let families: Vec<Family> = spec.addresses().into_iter().map(Family::of).collect();
        let is_dual = families.len() > 1;
        (families, if is_dual { IpFamilyPolicy::RequireDualStack } else { IpFamilyPolicy::SingleStack })
    };
    spec.ip_families = families;
    spec.ip_family_policy.get_or_insert(policy);
}

fn decide_with(
    spec: &mut ServiceSpec,
    old: Option<&ServiceSpec>,
    policy: IpFamilyPolicy,
    configured: Families,
) -> Result<(), FieldError> {
    let is_single = policy == IpFamilyPolicy::SingleStack;
    if let Some(old) = old {
        drop_secondary(spec, old, policy)?;
    }
    if is_single && (spec.ip_families.len() > 1 || spec.cluster_ips.len() > 1) {
        return Err(FieldError::policy(policy, Refusal::SecondNeedsDualStack));
    }
    let mut families = spec.ip_families.clone();
    infer_from_addresses(spec, configured, &mut families)?;
    let ignores_cluster = spec.is_headless_without_selector();
    if !ignores_cluster {
        check_configured(policy, &families, configured)?;
    }
    if families.is_empty() {
        families.push(configured.primary());
    }
    if let ([only], true) = (families.as_slice(), !is_single && (ignores_cluster || configured.is_dual())) {
        families.push(only.other());
    }
    spec.ip_families = families;
    spec.ip_family_policy = Some(policy);
    Ok(())
}

fn policy(spec: &ServiceSpec, old: Option<&ServiceSpec>) -> IpFamilyPolicy {
    let default = if spec.is_headless_without_selector() {
        IpFamilyPolicy::RequireDualStack
    } else {
        IpFamilyPolicy::SingleStack
    };
    spec.ip_family_policy.or_else(|| old?.ip_family_policy).unwrap_or(default)
}

/// Returns true for a `PreferDualStack` Service that is written back unchanged. It keeps its families when the
/// cluster becomes dual stack or single stack.
fn is_unchanged_preference(spec: &ServiceSpec, old: &ServiceSpec) -> bool {
    spec.ip_family_policy == Some(IpFamilyPolicy::PreferDualStack)
        && old.ip_family_policy == spec.ip_family_policy
        && old.service_type == spec.service_type
        && old.cluster_ips == spec.cluster_ips
        && old.ip_families == spec.ip_families
}

/// Drops the second entries on an update to `SingleStack`. Without that policy, dropping them is an error.
fn drop_secondary(
    spec: &mut ServiceSpec,
    old: &ServiceSpec,
    policy: IpFamilyPolicy,
) -> Result<(), FieldError> {
    if policy == IpFamilyPolicy::SingleStack {
        if spec.cluster_ips == old.cluster_ips {
            spec.cluster_ips.truncate(1);
        }
        if spec.ip_families == old.ip_families {
            spec.ip_families.truncate(1);
        }
        return Ok(());
    }
    let is_shorter = |new: usize, old: usize| new != 0 && new < old;
    if is_shorter(spec.cluster_ips.len(), old.cluster_ips.len())
        || is_shorter(spec.ip_families.len(), old.ip_families.len())
    {
        return Err(FieldError::policy(policy, Refusal::ReleaseNeedsSingleStack));
    }
    Ok(())
}

/// Adds the families of addresses without an entry in `ipFamilies`.
fn infer_from_addresses(
    spec: &ServiceSpec,
    configured: Families,
    families: &mut Vec<Family>,
) -> Result<(), FieldError> {
    for (index, text) in spec.cluster_ips.iter().enumerate().skip(families.len()) {
        if text == NONE {
            break;
        }
        let refused = |reason| FieldError::new(format!("{CLUSTER_IPS}[{index}]"), text, reason);
        let family = parse_address(text).map(Family::of).ok_or_else(|| refused(Refusal::NotAnAddress))?;
        if !configured.contains(family) {
            return Err(refused(Refusal::FamilyNotConfigured(family)));
        }
        families.push(family);
    }
    Ok(())
}

fn check_configured(
    policy: IpFamilyPolicy,
    families: &[Family],
    configured: Families,
) -> Result<(), FieldError> {
    if policy == IpFamilyPolicy::RequireDualStack && !configured.is_dual() {
        return Err(FieldError::policy(policy, Refusal::ClusterIsSingleStack));
    }
    let missing = families.iter().enumerate().find(|(_, family)| !configured.contains(**family));
    missing.map_or(Ok(()), |(index, family)| {
        let field = format!("spec.ipFamilies[{index}]");
        Err(FieldError::new(field, family, Refusal::FamilyNotConfigured(*family)))
    })
}

/// Validates the four fields independently of the cluster, as `pkg/apis/core/validation/validation.go` does.
fn structure(spec: &ServiceSpec, old: Option<&ServiceSpec>) -> Vec<FieldError> {
    if spec.service_type == ServiceType::ExternalName {
        return forbidden_for_external_name(spec);
    }
    let mut errors = Vec::new();
    check_first(spec, &mut errors);
    check_addresses(spec, &mut errors);
    for (index, family) in spec.ip_families.iter().enumerate() {
        if spec.ip_families.iter().take(index).any(|earlier| earlier == family) {
            let field = format!("spec.ipFamilies[{index}]");
            errors.push(FieldError::new(field, family, Refusal::FamilyTwice));
            break;
        }
    }
    // Upstream compares with the stored Service when the fields fit each other.
    if let Some(old) = old.filter(|old| old.may_have_address() && errors.is_empty()) {
        check_unchanged(spec, old, &mut errors);
    }
    errors
}

fn forbidden_for_external_name(spec: &ServiceSpec) -> Vec<FieldError> {
    let policy = spec.ip_family_policy.map(IpFamilyPolicy::name).unwrap_or_default();
    let addresses =
        if spec.cluster_ips.is_empty() { spec.cluster_ip.clone() } else { spec.cluster_ips.join(",") };
    let fields = [
        (CLUSTER_IPS, addresses),
        ("spec.ipFamilies", join(&spec.ip_families)),
        ("spec.ipFamilyPolicy", policy.to_owned()),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(field, value)| FieldError::new(field, &value, Refusal::ForbiddenForExternalName)).collect()
}

fn check_first(spec: &ServiceSpec, errors: &mut Vec<FieldError>) {
    let reason = match spec.cluster_ips.first() {
        Some(_) if spec.cluster_ip.is_empty() => Refusal::FirstMissing,
        first if first.map_or("", String::as_str) != spec.cluster_ip => Refusal::FirstDiffers,
        _ => return,
    };
    errors.push(FieldError::new(CLUSTER_IPS, &spec.cluster_ips.join(","), reason));
}

fn check_addresses(spec: &ServiceSpec, errors: &mut Vec<FieldError>) {
    let texts = spec.cluster_ips.as_slice();
    if texts.len() > 2 {
        errors.push(FieldError::new(CLUSTER_IPS, &texts.join(","), Refusal::TooMany));
        return;
    }
    let mut seen = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let refused = address_refused(spec, text, spec.ip_families.get(index), &seen);
        seen.extend(parse_address(text).map(Family::of));
        match refused {
            // Upstream reports what concerns the entries together on the list.
            Some(reason @ (Refusal::FamilyTwice | Refusal::NoneNotAlone)) => {
                errors.push(FieldError::new(CLUSTER_IPS, &texts.join(","), reason));
            }
            Some(reason) => {
                errors.push(FieldError::new(format!("{CLUSTER_IPS}[{index}]"), text, reason));
            }
            None => {}
        }
    }
}

fn address_refused(
    spec: &ServiceSpec,
    text: &str,
    listed: Option<&Family>,
    seen: &[Family],
) -> Option<Refusal> {
    match (parse_address(text).map(Family::of), listed) {
        (None, _) if text == NONE && spec.cluster_ips.len() > 1 => {
            let is_first = spec.cluster_ips.first().is_some_and(|first| first == NONE);
            Some(if is_first { Refusal::NoneNotAlone } else { Refusal::NotAnAddress })
        }
        (None, _) if text == NONE && spec.may_have_node_ports() => Some(Refusal::NoneNeedsClusterIp),
        (None, _) => (text != NONE).then_some(Refusal::NotAnAddress),
        (Some(family), _) if seen.contains(&family) => Some(Refusal::FamilyTwice),
        (Some(family), Some(listed)) if family != *listed => Some(Refusal::FamilyDiffers(*listed)),
        (Some(_), _) => None,
    }
}

/// Checks that the primary address and family and being headless do not change. The families of a headless Service
/// may. A secondary address may be added or removed, but not replaced (`validateUpgradeDowngradeClusterIPs`).
fn check_unchanged(spec: &ServiceSpec, old: &ServiceSpec, errors: &mut Vec<FieldError>) {
    for (index, (was, is)) in old.cluster_ips.iter().zip(&spec.cluster_ips).enumerate() {
        if was != is && (parse_address(was) != parse_address(is) || parse_address(was).is_none()) {
            errors.push(FieldError::new(format!("{CLUSTER_IPS}[{index}]"), is, Refusal::Immutable));
        }
    }
    if let (Some(was), Some(is), false) =
        (old.ip_families.first(), spec.ip_families.first(), old.is_headless())
        && was != is
    {
        errors.push(FieldError::new("spec.ipFamilies[0]", is, Refusal::Immutable));
    }
}

fn join(families: &[Family]) -> String {
    families.iter().map(|family| family.name()).collect::<Vec<_>>().join(",")
}
