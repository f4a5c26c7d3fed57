//! The texts of errors that have parts.

use portolan_schema::Resource;

use super::FieldError;

/// Returns the plural name with its group, such as `services` or `endpointslices.discovery.k8s.io`.
pub(super) fn qualified(resource: Resource) -> String {
    let info = resource.info();
    if info.group.is_empty() { info.plural.to_owned() } else { format!("{}.{}", info.plural, info.group) }
}

/// Returns the message of a conflict. For the version of the object, it begins with upstream's sentence (`registry/store.go`),
/// which programs look for.
pub(super) fn conflict_message(
    resource: Resource,
    name: &str,
    what: &str,
    given: &str,
    stored: &str,
) -> String {
    let which = format!("{what} is {given}, but the stored object has {stored}");
    let rest = if what == "metadata.resourceVersion" {
        format!(
            "the object has been modified; please apply your changes to the latest version and try again ({which})"
        )
    } else {
        format!("{which}; read it again and repeat the change")
    };
    format!("Operation cannot be fulfilled on {} \"{name}\": {rest}", qualified(resource))
}

pub(super) fn invalid_message(resource: Resource, name: &str, errors: &[FieldError]) -> String {
    let info = resource.info();
    let kind =
        if info.group.is_empty() { info.kind.to_owned() } else { format!("{}.{}", info.kind, info.group) };
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [only] => format!("{kind} \"{name}\" is invalid: {only}"),
        several => format!("{kind} \"{name}\" is invalid: [{}]", several.join(", ")),
    }
}
