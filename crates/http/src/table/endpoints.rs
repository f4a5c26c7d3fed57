//! The rows of EndpointSlices and Endpoints.

use portolan_schema::json::{self, Object, Value};

use super::{AGE, Column, NAME, column, created, first_three, host_port, name, objects, wide};

pub(super) const SLICE_COLUMNS: &[Column] = &[
    NAME,
    column("AddressType", "What the endpoints' addresses are: IPv4, IPv6 or FQDN."),
    column("Ports", "The ports of every endpoint."),
    column("Endpoints", "The endpoints' addresses."),
    AGE,
    // Kubernetes has no such column.
    wide("Ready", "How many endpoints are ready, of all in this slice."),
];

pub(super) const COLUMNS: &[Column] =
    &[NAME, column("Endpoints", "Addresses and ports that are ready."), AGE];

pub(super) fn slice_cells(object: &Object, now: i64) -> Vec<Value> {
    let ports = objects(object, "ports").map(|port| match port.get("port").and_then(Value::as_i64) {
        Some(number) => number.to_string(),
        None => json::text(port, "name").unwrap_or("*").to_owned(),
    });
    let addresses =
        objects(object, "endpoints").flat_map(|it| json::texts(it, "addresses")).map(str::to_owned);
    let ready = objects(object, "endpoints").filter(|endpoint| is_ready(endpoint)).count();
    let all = objects(object, "endpoints").count();
    vec![
        name(object),
        json::text(object, "addressType").unwrap_or_default().into(),
        first_three(ports, "<unset>").into(),
        first_three(addresses, "<unset>").into(),
        created(object, now),
        format!("{ready}/{all}").into(),
    ]
}

pub(super) fn cells(object: &Object, now: i64) -> Vec<Value> {
    let shown = first_three(objects(object, "subsets").flat_map(subset), "<none>");
    vec![name(object), shown.into(), created(object, now)]
}

/// Returns true if an endpoint is ready. One without the condition is (`k8s.io/api/discovery/v1` `EndpointConditions`).
fn is_ready(endpoint: &Object) -> bool {
    let ready =
        json::object(endpoint, "conditions").and_then(|conditions| conditions.get("ready")?.as_bool());
    ready.unwrap_or(true)
}

/// Returns every address with every port, or the addresses alone if there are no ports.
fn subset(subset: &Object) -> Vec<String> {
    let addresses: Vec<&str> = objects(subset, "addresses").filter_map(|it| json::text(it, "ip")).collect();
    let ports: Vec<i64> =
        objects(subset, "ports").map(|port| json::integer(port, "port").unwrap_or_default()).collect();
    if ports.is_empty() {
        return addresses.into_iter().map(str::to_owned).collect();
    }
    let pairs = ports.iter().flat_map(|port| addresses.iter().map(|address| host_port(address, *port)));
    pairs.collect()
}
