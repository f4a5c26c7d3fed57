//! Authorization by roles: a fixed table instead of RBAC objects.

use std::fmt;

use portolan_http::{Attributes, Target};

/// A set of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// May do everything.
    Admin,
    /// May do what a proxy on a node needs: reads the objects that it programs and writes Events. Like upstream's
    /// `system:node-proxier`.
    Proxy,
    /// May read everything, including metrics, and write nothing.
    ReadOnly,
}

/// An authenticated user and its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
}

/// Allows verbs on some resources of some API groups. Does not include subresources.
struct Rule {
    verbs: &'static [&'static str],
    groups: &'static [&'static str],
    resources: &'static [&'static str],
}

const READ: &[&str] = &["get", "list", "watch"];

const PROXY: &[Rule] = &[
    Rule { verbs: READ, groups: &[""], resources: &["services", "endpoints", "nodes"] },
    Rule { verbs: READ, groups: &["discovery.k8s.io"], resources: &["endpointslices"] },
    Rule { verbs: READ, groups: &["networking.k8s.io"], resources: &["servicecidrs"] },
    Rule { verbs: &["create", "patch", "update"], groups: &["", "events.k8s.io"], resources: &["events"] },
];

/// Paths that every authenticated user may read, with everything below them: upstream's roles `system:discovery` and
/// `system:public-info-viewer`.
const DISCOVERY: &[&str] = &["/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz"];

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Admin, Self::Proxy, Self::ReadOnly];

    /// Returns the user for whom a credential of this role is issued, unless another name is given.
    pub fn default_user(self) -> &'static str {
        match self {
            Self::Admin => "portolan-admin",
            Self::Proxy => "system:kube-proxy",
            Self::ReadOnly => "portolan-read-only",
        }
    }

    /// Returns the group whose members have this role.
    pub fn group(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Proxy => "system:node-proxier",
            Self::ReadOnly => "portolan:read-only",
        }
    }

    fn allows(self, attributes: &Attributes) -> bool {
        match (self, &attributes.target) {
            (Self::Admin, _) => true,
            (Self::ReadOnly, Target::Resource { .. }) => READ.contains(&attributes.verb),
            (Self::ReadOnly, Target::Path(_)) => is_read_of_path(attributes.verb),
            (Self::Proxy, Target::Resource { group, resource, subresource, .. }) => {
                let fits = |rule: &Rule| {
                    rule.verbs.contains(&attributes.verb)
                        && rule.groups.contains(&group.as_str())
                        && rule.resources.contains(&resource.as_str())
                };
                subresource.is_empty() && PROXY.iter().any(fits)
            }
            (Self::Proxy, Target::Path(_)) => false,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Admin => "admin",
            Self::Proxy => "proxy",
            Self::ReadOnly => "read-only",
        })
    }
}

impl Identity {
    /// Returns the roles of this user: by group, and the proxy role also by the name of kube-proxy's user, as
    /// upstream binds it.
    pub(crate) fn roles(&self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(|role| {
            let by_name = *role == Role::Proxy && self.user == role.default_user();
            by_name || self.groups.iter().any(|group| group == role.group())
        })
    }

    /// Returns true if this user may do what the attributes describe.
    pub(crate) fn may(&self, attributes: &Attributes) -> bool {
        is_discovery(attributes) || self.roles().any(|role| role.allows(attributes))
    }
}

/// Returns the message of a refusal, in upstream's words (`apiserver`, `responsewriters`).
pub(crate) fn forbidden_message(user: &str, attributes: &Attributes) -> String {
    let verb = attributes.verb;
    match &attributes.target {
        Target::Path(path) => format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\""),
        Target::Resource { group, resource, subresource, namespace, name, .. } => {
            let qualified = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
            let named = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
            let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
            let scope = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace \"{namespace}\"")
            };
            format!(
                "{qualified}{named} is forbidden: User \"{user}\" cannot {verb} resource \"{resource}{part}\" in API group \"{group}\" {scope}"
            )
        }
    }
}

fn is_discovery(attributes: &Attributes) -> bool {
    let Target::Path(path) = &attributes.target else { return false };
    let is_below =
        |base: &&str| path.strip_prefix(*base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_read_of_path(attributes.verb) && DISCOVERY.iter().any(is_below)
}

fn is_read_of_path(verb: &str) -> bool {
    matches!(verb, "get" | "head" | "options")
}

#[cfg(test)]
mod tests;
