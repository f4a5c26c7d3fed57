//! The rows of EndpointSlices and Endpoints.

use portolan_schema::json::{self, Object, Value};

use super::{AGE, Column, NAME, column, created, first_three, host_port, name, objects};

pub(super) const SLICE_COLUMNS: &[Column] = &[
    NAME,
    column("AddressType", "What the endpoints' addresses are: IPv4, IPv6 or FQDN."),
    column("Ports", "The ports of every endpoint."),
    column("Endpoints", "The endpoints' addresses."),
    AGE,
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
    vec![
        name(object),
        json::text(object, "addressType").unwrap_or_default().into(),
        first_three(ports, "<unset>").into(),
        first_three(addresses, "<unset>").into(),
        created(object, now),
    ]
}

pub(super) fn cells(object: &Object, now: i64) -> Vec<Value> {
    let shown = first_three(objects(object, "subsets").flat_map(subset), "<none>");
    vec![name(object), shown.into(), created(object, now)]
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
