//! Warnings about values of a Service that are valid but probably not meant. Source: `pkg/api/service/warnings.go`.

use std::net::IpAddr;

use portolan_schema::json::{self, Object, Value};

use super::{is_headless, service_type};
use crate::kinds::service::validation::{HINTS_ANNOTATION, MODE_ANNOTATION};

/// Returns the warnings for the client.
pub(crate) fn warnings(object: &Object) -> Vec<String> {
    let empty = Object::new();
    let spec = json::object(object, "spec").unwrap_or(&empty);
    let mut remarks = Vec::new();
    let annotations = json::object(object, "metadata").and_then(|it| json::object(it, "annotations"));
    if annotations.is_some_and(|annotations| annotations.contains_key(HINTS_ANNOTATION)) {
        remarks.push(format!(
            "metadata.annotations[{HINTS_ANNOTATION}]: deprecated since v1.27; use {MODE_ANNOTATION}"
        ));
    }
    ignored(spec, &mut remarks);
    if json::text(spec, "trafficDistribution") == Some("PreferClose") {
        remarks.push("spec.trafficDistribution: PreferClose is deprecated; use PreferSameZone".to_owned());
    }
    spelling(spec, &mut remarks);
    remarks
}

/// Returns the warnings for a client that writes the status. Source: `pkg/registry/core/service/strategy.go`
/// (`serviceStatusStrategy`).
pub(crate) fn status_warnings(object: &Object) -> Vec<String> {
    let balancer = json::object(object, "status").and_then(|status| json::object(status, "loadBalancer"));
    let entries = balancer.map_or(&[][..], |balancer| json::list(balancer, "ingress"));
    let addresses = entries.iter().map(|entry| entry.get("ip").and_then(Value::as_str)).enumerate();
    addresses
        .filter_map(|(index, text)| respelled(&format!("status.loadBalancer.ingress[{index}].ip"), text?))
        .collect()
}

fn ignored(spec: &Object, remarks: &mut Vec<String>) {
    let has_external_ips = !json::list(spec, "externalIPs").is_empty();
    let is_external_name = service_type(spec) == "ExternalName";
    if is_headless(spec) {
        let affinity = json::text(spec, "sessionAffinity") == Some("ClientIP");
        for (key, is_set) in [
            ("loadBalancerIP", json::text(spec, "loadBalancerIP").is_some()),
            ("externalIPs", has_external_ips),
            ("sessionAffinity", affinity),
        ] {
            if is_set {
                remarks.push(format!("spec.{key}: ignored, as spec.clusterIP is None"));
            }
        }
    } else if has_external_ips && is_external_name {
        remarks.push("spec.externalIPs: ignored, as spec.type is ExternalName".to_owned());
    } else if has_external_ips {
        remarks.push("spec.externalIPs: deprecated since v1.36".to_owned());
    }
    if !is_external_name && json::text(spec, "externalName").is_some() {
        remarks.push("spec.externalName: ignored, as spec.type is not ExternalName".to_owned());
    }
}

/// Warns about addresses and ranges in a form that other programs may not find when they compare texts.
fn spelling(spec: &Object, remarks: &mut Vec<String>) {
    let single = json::text(spec, "loadBalancerIP").map(|text| ("spec.loadBalancerIP".to_owned(), text));
    let listed = ["clusterIPs", "externalIPs", "loadBalancerSourceRanges"].into_iter().flat_map(|key| {
        let texts = json::list(spec, key).iter().filter_map(Value::as_str).enumerate();
        texts.map(move |(index, text)| (format!("spec.{key}[{index}]"), text))
    });
    remarks.extend(single.into_iter().chain(listed).filter_map(|(field, text)| respelled(&field, text)));
}

/// Returns a warning if an address or a range is not in canonical form.
fn respelled(field: &str, text: &str) -> Option<String> {
    let canonical = canonical(text.trim()).filter(|canonical| canonical != text.trim())?;
    Some(format!("{field}: \"{text}\" is not in canonical form; write \"{canonical}\""))
}

fn canonical(text: &str) -> Option<String> {
    match text.split_once('/') {
        Some((address, length)) => Some(format!("{}/{length}", address.parse::<IpAddr>().ok()?)),
        None => Some(text.parse::<IpAddr>().ok()?.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use portolan_schema::json::json;

    use super::*;

    fn remarks(annotations: &Value, spec: &Value) -> Vec<String> {
        let object = json!({"metadata": {"annotations": annotations}, "spec": spec});
        let remarks = warnings(object.as_object().unwrap());
        remarks.into_iter().map(|text| text.split(": ").next().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_remark() {
        for (spec, fields) in [
            (json!({"clusterIP": "None", "loadBalancerIP": "1.2.3.4"}), &["spec.loadBalancerIP"][..]),
            (json!({"clusterIP": "None", "externalIPs": ["1.2.3.4"]}), &["spec.externalIPs"]),
            (json!({"clusterIP": "None", "sessionAffinity": "ClientIP"}), &["spec.sessionAffinity"]),
            (json!({"type": "ExternalName", "externalIPs": ["1.2.3.4"]}), &["spec.externalIPs"]),
            (json!({"externalIPs": ["1.2.3.4"]}), &["spec.externalIPs"]),
            (json!({"externalName": "a.example"}), &["spec.externalName"]),
            (json!({"trafficDistribution": "PreferClose"}), &["spec.trafficDistribution"]),
            (json!({"clusterIPs": ["10.0.0.1", "FD00::1"]}), &["spec.clusterIPs[1]"]),
            (json!({"loadBalancerIP": "fd00:0::1"}), &["spec.loadBalancerIP"]),
            (
                json!({"loadBalancerSourceRanges": [" 10.0.0.0/8", "FD00::/8"]}),
                &["spec.loadBalancerSourceRanges[1]"],
            ),
            (json!({"clusterIP": "None", "sessionAffinity": "None", "clusterIPs": ["None"]}), &[]),
            (json!({"type": "ExternalName", "externalName": "a.example"}), &[]),
        ] {
            assert_eq!(remarks(&json!({}), &spec), fields, "{spec}");
        }
        let annotation = format!("metadata.annotations[{HINTS_ANNOTATION}]");
        assert_eq!(remarks(&json!({HINTS_ANNOTATION: "auto"}), &json!({})), [annotation]);
    }

    #[test]
    fn the_form_of_addresses_in_the_status() {
        let ingress = json!([{"ip": "192.0.2.1"}, {"hostname": "a.example"}, {"ip": "FD00::1"}, {"ip": ""}]);
        let object =
            json!({"spec": {"loadBalancerIP": "FD00::2"}, "status": {"loadBalancer": {"ingress": ingress}}});
        let field = "status.loadBalancer.ingress[2].ip";
        let expected = format!("{field}: \"FD00::1\" is not in canonical form; write \"fd00::1\"");
        assert_eq!(status_warnings(object.as_object().unwrap()), [expected]);
        assert_eq!(status_warnings(json!({"spec": {}}).as_object().unwrap()), [""; 0]);
    }
}
