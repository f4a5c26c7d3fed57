//! Authorization by roles: a fixed table instead of RBAC objects.

use std::fmt;

use portolan_http::{Attributes, Rule, Subject, Target};

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

const ALL: &[&str] = &["*"];
const READ: &[&str] = &["get", "list", "watch"];
/// The methods that read a path without objects.
const READ_PATH: &[&str] = &["get", "head", "options"];
const CREATE: &[&str] = &["create"];

const ADMIN: &[Rule] =
    &[Rule::Resources { verbs: ALL, groups: ALL, resources: ALL }, Rule::Paths { verbs: ALL, paths: ALL }];

const PROXY: &[Rule] = &[
    Rule::Resources { verbs: READ, groups: &[""], resources: &["services", "endpoints", "nodes"] },
    Rule::Resources { verbs: READ, groups: &["discovery.k8s.io"], resources: &["endpointslices"] },
    Rule::Resources { verbs: READ, groups: &["networking.k8s.io"], resources: &["servicecidrs"] },
    Rule::Resources {
        verbs: &["create", "patch", "update"],
        groups: &["", "events.k8s.io"],
        resources: &["events"],
    },
];

const READ_ONLY: &[Rule] = &[
    Rule::Resources { verbs: READ, groups: ALL, resources: ALL },
    Rule::Paths { verbs: READ_PATH, paths: ALL },
];

/// What every authenticated user may do: upstream's roles `system:basic-user`, `system:discovery` and
/// `system:public-info-viewer`.
const EVERYONE: &[Rule] = &[
    Rule::Resources {
        verbs: CREATE,
        groups: &["authorization.k8s.io"],
        resources: &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    },
    Rule::Resources { verbs: CREATE, groups: &["authentication.k8s.io"], resources: &["selfsubjectreviews"] },
    Rule::Paths {
        verbs: READ_PATH,
        paths: &[
            "/api",
            "/api/*",
            "/apis",
            "/apis/*",
            "/openapi",
            "/openapi/*",
            "/version",
            "/version/*",
            "/healthz",
            "/healthz/*",
            "/livez",
            "/livez/*",
            "/readyz",
            "/readyz/*",
        ],
    },
];

/// The group of all users that have authenticated (apiserver, `user.AllAuthenticated`).
const AUTHENTICATED: &str = "system:authenticated";

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

    fn rules(self) -> &'static [Rule] {
        match self {
            Self::Admin => ADMIN,
            Self::Proxy => PROXY,
            Self::ReadOnly => READ_ONLY,
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
    /// Returns the user of every client of a server without authentication.
    pub(crate) fn unsecured() -> Self {
        Self { user: "system:unsecured".to_owned(), groups: vec![Role::Admin.group().to_owned()] }
    }

    /// Returns the user of a client that has not authenticated. It has no permissions.
    pub(crate) fn anonymous() -> Self {
        Self { user: "system:anonymous".to_owned(), groups: Vec::new() }
    }

    /// Returns the roles of this user: by group, and the proxy role also by the name of kube-proxy's user, as
    /// upstream binds it.
    pub(crate) fn roles(&self) -> impl Iterator<Item = Role> {
        Role::ALL.into_iter().filter(|role| {
            let by_name = *role == Role::Proxy && self.user == role.default_user();
            by_name || self.groups.iter().any(|group| group == role.group())
        })
    }

    fn all_rules(&self) -> impl Iterator<Item = &'static Rule> {
        self.roles().flat_map(Role::rules).chain(EVERYONE)
    }
}

impl Subject for Identity {
    fn user(&self) -> &str {
        &self.user
    }

    fn groups(&self) -> Vec<&str> {
        let given = self.groups.iter().map(String::as_str).filter(|group| *group != AUTHENTICATED);
        given.chain([AUTHENTICATED]).collect()
    }

    fn may(&self, attributes: &Attributes) -> bool {
        self.all_rules().any(|rule| rule.allows(attributes))
    }

    fn rules(&self) -> Vec<Rule> {
        self.all_rules().copied().collect()
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

#[cfg(test)]
mod tests;
