use super::*;

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// Resources as `plural.group` or `plural`, with subresources after a slash.
const RESOURCES: [&str; 13] = [
    "services",
    "services/status",
    "nodes",
    "nodes/status",
    "namespaces",
    "endpoints",
    "events",
    "endpointslices.discovery.k8s.io",
    "events.events.k8s.io",
    "servicecidrs.networking.k8s.io",
    "ipaddresses.networking.k8s.io",
    "leases.coordination.k8s.io",
    "secrets",
];

fn member(group: &str) -> Identity {
    Identity { user: "someone".to_owned(), groups: vec!["others".to_owned(), group.to_owned()] }
}

fn on(verb: &'static str, resource: &str) -> Attributes {
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let target = Target::Resource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
    };
    Attributes { verb, target }
}

fn path(verb: &'static str, path: &str) -> Attributes {
    Attributes { verb, target: Target::Path(path.to_owned()) }
}

/// Returns a line `resource: verbs` for each resource on which any verb is allowed.
fn table(identity: &Identity) -> Vec<String> {
    let allowed = |resource: &str| {
        let verbs = VERBS.into_iter().filter(|verb| identity.may(&on(verb, resource)));
        verbs.collect::<Vec<_>>().join(" ")
    };
    let rows = RESOURCES.into_iter().map(|resource| (resource, allowed(resource)));
    rows.filter(|(_, verbs)| !verbs.is_empty()).map(|(name, verbs)| format!("{name}: {verbs}")).collect()
}

#[test]
fn an_admin_may_do_everything() {
    let every: Vec<String> =
        RESOURCES.iter().map(|resource| format!("{resource}: {}", VERBS.join(" "))).collect();
    assert_eq!(table(&member("system:masters")), every);
    assert!(member("system:masters").may(&path("post", "/anything")));
}

#[test]
fn a_reader_may_read_everything() {
    let every: Vec<String> = RESOURCES.iter().map(|resource| format!("{resource}: get list watch")).collect();
    assert_eq!(table(&member("portolan:read-only")), every);
    assert!(member("portolan:read-only").may(&path("get", "/metrics")));
    assert!(!member("portolan:read-only").may(&path("post", "/metrics")));
}

#[test]
fn a_proxy_may_read_its_objects_and_write_events() {
    let expected = [
        "services: get list watch",
        "nodes: get list watch",
        "endpoints: get list watch",
        "events: create update patch",
        "endpointslices.discovery.k8s.io: get list watch",
        "events.events.k8s.io: create update patch",
        "servicecidrs.networking.k8s.io: get list watch",
    ];
    assert_eq!(table(&member("system:node-proxier")), expected);
    let by_name = Identity { user: "system:kube-proxy".to_owned(), groups: Vec::new() };
    assert_eq!(table(&by_name), expected);
    assert!(!by_name.may(&path("get", "/metrics")));
}

#[test]
fn others_may_only_discover() {
    let outsider = member("portolan:unknown");
    assert_eq!(table(&outsider), [""; 0]);
    // A group's name as a user's name gives no role.
    assert_eq!(table(&Identity { user: "system:masters".to_owned(), groups: Vec::new() }), [""; 0]);
    for allowed in ["/api", "/api/v1", "/apis/discovery.k8s.io/v1", "/openapi/v3", "/version", "/readyz/ping"]
    {
        assert!(outsider.may(&path("get", allowed)), "{allowed}");
        assert!(!outsider.may(&path("post", allowed)), "{allowed}");
    }
    for refused in ["/", "/metrics", "/apiary", "/versions", "/openapis"] {
        assert!(!outsider.may(&path("get", refused)), "{refused}");
    }
}

#[test]
fn the_default_user_of_a_role_has_it_by_the_group() {
    for role in Role::ALL {
        let groups = vec![role.group().to_owned()];
        let identity = Identity { user: role.default_user().to_owned(), groups };
        assert_eq!(identity.roles().collect::<Vec<_>>(), [role]);
    }
}

#[test]
fn messages() {
    let message = |attributes: &Attributes| forbidden_message("eve", attributes);
    assert_eq!(
        message(&on("delete", "services")),
        r#"services "web" is forbidden: User "eve" cannot delete resource "services" in API group "" in the namespace "default""#
    );
    assert_eq!(
        message(&on("update", "nodes/status")),
        r#"nodes "web" is forbidden: User "eve" cannot update resource "nodes/status" in API group "" in the namespace "default""#
    );
    let list =
        Attributes::of(&http::Method::GET, &"/apis/discovery.k8s.io/v1/endpointslices".parse().unwrap());
    assert_eq!(
        message(&list),
        r#"endpointslices.discovery.k8s.io is forbidden: User "eve" cannot list resource "endpointslices" in API group "discovery.k8s.io" at the cluster scope"#
    );
    assert_eq!(message(&path("get", "/metrics")), r#"forbidden: User "eve" cannot get path "/metrics""#);
}
