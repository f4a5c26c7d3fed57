//! The row of a Node.

use std::collections::BTreeSet;

use portolan_schema::json::{self, Object, Value};

use super::{AGE, Column, NAME, column, created, name, objects, or_none, spec, status, wide};

pub(super) const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "Whether the node is ready, and whether pods may be put on it."),
    column("Roles", "The roles that the node's labels give it."),
    AGE,
    column("Version", "The version of the node's kubelet."),
    wide("Internal-IP", "The node's first address within the cluster."),
    wide("External-IP", "The node's first address outside the cluster."),
    wide("OS-Image", "The node's operating system."),
    wide("Kernel-Version", "The node's kernel."),
    wide("Container-Runtime", "What runs the node's containers, and its version."),
];

/// Labels that define a role: by the rest of the key after this prefix, or by the value of this label.
const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE: &str = "kubernetes.io/role";

pub(super) fn cells(object: &Object, now: i64) -> Vec<Value> {
    let empty = Object::new();
    let status = status(object).unwrap_or(&empty);
    let info = json::object(status, "nodeInfo").unwrap_or(&empty);
    let address = |kind| {
        let first = objects(status, "addresses").find(|it| json::text(it, "type") == Some(kind));
        first.and_then(|it| json::text(it, "address")).unwrap_or("<none>")
    };
    let known = |key| json::text(info, key).unwrap_or("<unknown>");
    vec![
        name(object),
        condition(object, status).into(),
        or_none(roles(object)),
        created(object, now),
        json::text(info, "kubeletVersion").unwrap_or_default().into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        known("osImage").into(),
        known("kernelVersion").into(),
        known("containerRuntimeVersion").into(),
    ]
}

fn condition(object: &Object, status: &Object) -> String {
    let ready = objects(status, "conditions").find(|it| json::text(it, "type") == Some("Ready"));
    let ready = match ready.map(|condition| json::text(condition, "status")) {
        Some(Some("True")) => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let unschedulable = spec(object).and_then(|spec| spec.get("unschedulable")).and_then(Value::as_bool);
    if unschedulable == Some(true) { format!("{ready},SchedulingDisabled") } else { ready.to_owned() }
}

fn roles(object: &Object) -> String {
    let labels = json::object(object, "metadata").and_then(|metadata| json::object(metadata, "labels"));
    let roles: BTreeSet<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            let role = key.strip_prefix(ROLE_PREFIX);
            role.or_else(|| value.as_str().filter(|_| key == ROLE)).filter(|role| !role.is_empty())
        })
        .collect();
    roles.into_iter().collect::<Vec<_>>().join(",")
}
