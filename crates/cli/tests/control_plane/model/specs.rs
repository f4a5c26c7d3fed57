//! Random Services: every type, both families, addresses and node ports from ranges so small that they collide.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::{Run, request};

const NAMESPACES: [&str; 2] = ["one", "two"];
const NAMES: usize = 20;
/// Number of addresses and ports that are requested by value.
pub(crate) const ASKED: u16 = 24;
pub(crate) const FIRST_PORT: u16 = 30_000;
const TYPES: [&str; 7] =
    ["ClusterIP", "ClusterIP", "NodePort", "NodePort", "LoadBalancer", "Headless", "ExternalName"];

pub(crate) fn make_namespaces(run: &Run) {
    for name in NAMESPACES {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let (status, answer) = request(run, run.site.addresses()[0], "POST", "/api/v1/namespaces", &body);
        assert_eq!(status, 201, "{answer}");
    }
}

/// Returns one of the few objects that all clients write.
pub(crate) fn target(rng: &mut Rng) -> (&'static str, String) {
    (pick(rng, &NAMESPACES), format!("service-{}", rng.usize(..NAMES)))
}

pub(crate) fn address(number: u16, is_ipv6: bool) -> String {
    if is_ipv6 { format!("fd00:96::{number:x}") } else { format!("10.96.0.{number}") }
}

/// Returns a load-balancer address.
pub(crate) fn balancer(number: u16, is_ipv6: bool) -> String {
    if is_ipv6 { format!("2001:db8::{number:x}") } else { format!("192.0.2.{number}") }
}

/// Returns a status with a load-balancer address, which may be of another Service.
pub(crate) fn status(rng: &mut Rng) -> Value {
    let address = balancer(rng.u16(1..=ASKED), rng.u8(..4) == 0);
    let ingress = if rng.u8(..4) == 0 { json!(null) } else { json!([{"ip": address}]) };
    json!({"loadBalancer": {"ingress": ingress}})
}

/// Returns a complete spec.
pub(crate) fn spec(rng: &mut Rng) -> Value {
    let kind = pick(rng, &TYPES);
    if kind == "ExternalName" {
        return json!({"type": kind, "externalName": "example.org", "ports": ports(rng, false)});
    }
    let mut spec = json!({"ports": ports(rng, matches!(kind, "NodePort" | "LoadBalancer"))});
    if kind == "Headless" {
        spec["clusterIP"] = json!("None");
        return spec;
    }
    spec["type"] = json!(kind);
    if kind == "LoadBalancer" && rng.bool() {
        spec["externalTrafficPolicy"] = json!("Local");
        if rng.u8(..3) == 0 {
            spec["healthCheckNodePort"] = json!(port(rng));
        }
    }
    families(rng, &mut spec);
    if kind == "LoadBalancer" && rng.u8(..3) == 0 {
        spec["loadBalancerIP"] = json!(balancer(rng.u16(1..=ASKED), spec["ipFamilies"][0] == "IPv6"));
    }
    spec
}

fn families(rng: &mut Rng, spec: &mut Value) {
    let is_ipv6 = rng.u8(..4) == 0;
    let (first, second) = if is_ipv6 { ("IPv6", "IPv4") } else { ("IPv4", "IPv6") };
    if is_ipv6 {
        spec["ipFamilies"] = json!([first]);
    }
    let is_dual = rng.u8(..3) == 0;
    if is_dual {
        spec["ipFamilyPolicy"] = pick(rng, &["PreferDualStack", "RequireDualStack"]).into();
        if rng.bool() {
            spec["ipFamilies"] = json!([first, second]);
        }
    }
    if rng.u8(..3) == 0 {
        let asked = address(rng.u16(1..=ASKED), is_ipv6);
        spec["clusterIPs"] = json!([asked]);
        if is_dual && rng.bool() {
            spec["clusterIPs"] = json!([asked, address(rng.u16(1..=ASKED), !is_ipv6)]);
        }
        spec["clusterIP"] = json!(asked);
    }
}

fn ports(rng: &mut Rng, with_node_ports: bool) -> Value {
    let one = |number: u16, rng: &mut Rng| {
        let mut one = json!({"name": format!("p{number}"), "port": 80 + number, "protocol": pick(rng, &["TCP", "UDP"])});
        if with_node_ports && rng.u8(..3) == 0 {
            one["nodePort"] = json!(port(rng));
        }
        one
    };
    (0..rng.u16(1..=2)).map(|number| one(number, rng)).collect()
}

fn port(rng: &mut Rng) -> u16 {
    FIRST_PORT + rng.u16(..ASKED)
}

/// Returns a change of a spec by a client that has read the object.
pub(crate) fn change(rng: &mut Rng, old: &Value) -> Value {
    let has_addresses = |spec: &Value| spec["clusterIP"].as_str().is_some_and(|text| text != "None");
    let mut new = old.clone();
    match rng.u8(..6) {
        // Only the marker changes.
        0 => {}
        1 | 2 => {
            let with_node_ports = matches!(old["type"].as_str(), Some("NodePort" | "LoadBalancer"));
            new["ports"] = ports(rng, with_node_ports);
        }
        3 if has_addresses(old) => {
            let dual = old["clusterIPs"].as_array().is_some_and(|list| list.len() == 2);
            new["ipFamilyPolicy"] = json!(if dual { "SingleStack" } else { "PreferDualStack" });
        }
        // The whole spec changes. The addresses mostly stay.
        _ => {
            new = spec(rng);
            if has_addresses(old)
                && new["type"] != "ExternalName"
                && new["clusterIP"] != "None"
                && rng.u8(..5) > 0
            {
                for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                    new[field] = old[field].clone();
                }
            }
        }
    }
    new
}

/// Returns a merge patch of a spec by a client that has not read the object.
pub(crate) fn patch(rng: &mut Rng) -> Value {
    let mut patch = Map::new();
    match rng.u8(..4) {
        0 => drop(
            patch.insert("type".to_owned(), pick(rng, &["ClusterIP", "NodePort", "LoadBalancer"]).into()),
        ),
        1 => drop(patch.insert("sessionAffinity".to_owned(), pick(rng, &["None", "ClientIP"]).into())),
        2 => drop(patch.insert("ports".to_owned(), ports(rng, false))),
        _ => {}
    }
    Value::Object(patch)
}

fn pick(rng: &mut Rng, of: &[&'static str]) -> &'static str {
    of[rng.usize(..of.len())]
}
