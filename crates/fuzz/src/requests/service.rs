//! Requests of a client that creates, changes and deletes a few Services.

use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use portolan_model::world::{Ranges, random_service};
use serde_json::{Value, json};

use super::with_body;
use crate::script::Script;
use crate::{edits, patch, worlds};

/// The most Services.
pub(crate) const SERVICES: usize = 6;
/// The most odd values in a Service.
const EDITS: usize = 3;
const SERVICES_PATH: &str = "/api/v1/namespaces/default/services";
const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const PATCHES: [&str; 4] =
    ["application/merge-patch+json", "application/strategic-merge-patch+json", APPLY, JSON_PATCH];
/// Managers of fields. The target `patch` has objects with many more.
const MANAGERS: [&str; 3] = ["fieldManager=a", "fieldManager=c", "fieldManager=kubectl"];
/// Annotation of a Service that requests load-balancer addresses.
const REQUESTED: &str = "portolan.dev/load-balancer-ips";

/// Returns a request with a Service, or one that deletes a Service.
pub(super) fn request(script: &mut Script<'_>) -> Option<Request<Full<Bytes>>> {
    let index = script.below(SERVICES);
    let object = format!("{SERVICES_PATH}/svc-{index}");
    let (method, path, kind) = match script.below(8) {
        0..=2 => (Method::POST, SERVICES_PATH.to_owned(), JSON),
        3 => (Method::PUT, object, JSON),
        4 => (Method::PATCH, object, script.pick(&PATCHES)),
        5 => (Method::PUT, format!("{object}/status"), JSON),
        6 => (Method::PATCH, format!("{object}/status"), script.pick(&PATCHES)),
        _ => return with_body(&Method::DELETE, &object, JSON, Bytes::new()),
    };
    let query = match script.below(8) {
        0 => "fieldManager=a&dryRun=All",
        1 => "fieldManager=b&fieldValidation=Strict",
        _ if kind == APPLY => "fieldManager=a&force=true",
        _ => MANAGERS[script.below_by_length(MANAGERS.len())],
    };
    let service = service(index, script);
    let body = if kind == JSON_PATCH { patch::operations(&service, script) } else { service }.to_string();
    with_body(&method, &format!("{path}?{query}"), kind, body.into())
}

/// Returns a random Service, from which some fields that the server allocates are taken.
pub(crate) fn service(index: usize, script: &mut Script<'_>) -> Value {
    let mut service = random_service(&mut worlds::rng(script), index, &ranges());
    let lacks = script.byte();
    let fields = [
        ("/spec/clusterIP", 1),
        ("/spec/clusterIPs", 1),
        ("/spec/ipFamilies", 1 << 1),
        ("/spec/ports/0/nodePort", 1 << 2),
        ("/spec/ports/1/nodePort", 1 << 3),
        ("/spec/externalIPs", 1 << 4),
        ("/status/loadBalancer", 1 << 5),
    ];
    let lacking = fields.iter().filter(|(_, bit)| lacks & bit != 0);
    lacking.for_each(|(field, _)| edits::remove(&mut service, field));
    name_ports(&mut service);
    let spec = &mut service["spec"];
    if spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local" {
        spec["healthCheckNodePort"] = script.pick(&[json!(0), json!(30_001), json!(30_009)]);
    } else {
        edits::remove(spec, "/healthCheckNodePort");
    }
    let policy = script.pick(&[None, Some("SingleStack"), Some("PreferDualStack"), Some("RequireDualStack")]);
    if let (Some(policy), Some(spec)) = (policy, service["spec"].as_object_mut()) {
        spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    }
    if script.below(4) == 1 {
        let requested = script.pick(&["192.0.2.1", "192.0.2.1,2001:db8:1::1", "2001:db8:1::2", "192.0.2.9"]);
        service["metadata"]["annotations"] = json!({ REQUESTED: requested });
    }
    // Most Services have nothing odd.
    let most = script.below(2 * EDITS + 1).saturating_sub(EDITS);
    edits::value(&mut service, script, most);
    service
}

/// Gives the port without a name one, which each of several ports needs.
fn name_ports(service: &mut Value) {
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["name"] == "" {
            port["name"] = json!("c");
        }
    }
}

/// Returns few values of each kind, so that two Services often want the same one.
fn ranges() -> Ranges {
    let addresses =
        |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
    let example = Ranges::example();
    let mut cluster_ips = example.cluster_ips.clone();
    cluster_ips.ipv4 = addresses(&["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
    cluster_ips.ipv6 = addresses(&["fd00::2", "fd00::3", "fd00::4"]);
    Ranges {
        cluster_ips,
        load_balancer_ips: addresses(&["192.0.2.1", "192.0.2.2", "2001:db8:1::1", "203.0.113.1"]),
        ..example
    }
}
