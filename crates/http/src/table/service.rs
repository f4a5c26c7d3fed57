//! The row of a Service.

use portolan_schema::json::{self, Object, Value};

use super::{AGE, Column, NAME, column, created, name, objects, or_none, spec, status, wide};

pub(super) const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "How the Service is offered: ClusterIP, NodePort, LoadBalancer or ExternalName."),
    column("Cluster-IP", "The Service's first virtual IP; None for a headless Service."),
    column("External-IP", "Where clients outside the cluster reach the Service."),
    column("Port(s)", "The Service's ports, node ports and protocols."),
    AGE,
    wide("Selector", "The labels of the pods that serve it."),
];

pub(super) fn cells(object: &Object, now: i64) -> Vec<Value> {
    let empty = Object::new();
    let spec = spec(object).unwrap_or(&empty);
    let cluster_ip = json::texts(spec, "clusterIPs").next().or_else(|| json::text(spec, "clusterIP"));
    let ports: Vec<String> = objects(spec, "ports").map(port).collect();
    let selector = json::object(spec, "selector").into_iter().flatten();
    let mut selector: Vec<String> =
        selector.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    selector.sort();
    vec![
        name(object),
        json::text(spec, "type").unwrap_or("ClusterIP").into(),
        cluster_ip.unwrap_or("<none>").into(),
        external_ip(object, spec),
        or_none(ports.join(",")),
        created(object, now),
        or_none(selector.join(",")),
    ]
}

fn port(port: &Object) -> String {
    let number = json::integer(port, "port").unwrap_or_default();
    let protocol = json::text(port, "protocol").unwrap_or("TCP");
    match json::integer(port, "nodePort") {
        Some(node_port) => format!("{number}:{node_port}/{protocol}"),
        None => format!("{number}/{protocol}"),
    }
}

fn external_ip(object: &Object, spec: &Object) -> Value {
    let mut addresses = Vec::new();
    let kind = json::text(spec, "type").unwrap_or("ClusterIP");
    match kind {
        "ExternalName" => return json::text(spec, "externalName").unwrap_or_default().into(),
        "LoadBalancer" => {
            let balancer = status(object).and_then(|status| json::object(status, "loadBalancer"));
            addresses.extend(
                balancer.into_iter().flat_map(|balancer| objects(balancer, "ingress")).filter_map(
                    |ingress| json::text(ingress, "ip").or_else(|| json::text(ingress, "hostname")),
                ),
            );
            addresses.sort_unstable();
            addresses.dedup();
        }
        _ => {}
    }
    addresses.extend(json::texts(spec, "externalIPs"));
    if addresses.is_empty() && kind == "LoadBalancer" {
        return "<pending>".into();
    }
    or_none(addresses.join(","))
}
