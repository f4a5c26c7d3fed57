use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                found.insert(reference.to_owned());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

fn documents() -> Vec<Value> {
    let versions: BTreeSet<&str> = Resource::served().map(|resource| resource.info().api_version).collect();
    versions.into_iter().map(v3).chain([v2()]).collect()
}

#[test]
fn every_reference_leads_somewhere() {
    for document in documents() {
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 3);
        for reference in found {
            let schema = document.pointer(reference.trim_start_matches('#'));
            assert!(schema.is_some_and(Value::is_object), "{reference}");
        }
    }
}

#[test]
fn operations_are_named_once_and_name_their_kind() {
    for document in documents() {
        let mut names = BTreeSet::new();
        for item in document["paths"].as_object().unwrap().values() {
            for (method, operation) in
                item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters")
            {
                assert!(names.insert(operation["operationId"].to_string()), "{}", operation["operationId"]);
                let gvk = &operation["x-kubernetes-group-version-kind"];
                assert!(gvk["group"].is_string() && gvk["kind"].is_string(), "{method} {gvk}");
            }
        }
    }
}

#[test]
fn documents_contain_what_kubectl_reads() {
    let document = v3("v1");
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/services/{name}"]["patch"];
    let gvk = json!({"group": "", "version": "v1", "kind": "Service"});
    assert_eq!(patch["x-kubernetes-group-version-kind"], gvk);
    assert_eq!(patch["x-kubernetes-action"], "patch");
    let parameters: BTreeSet<&str> =
        patch["parameters"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    for name in ["dryRun", "fieldManager", "fieldValidation", "force"] {
        assert!(parameters.contains(name), "{name}");
    }
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["io.k8s.api.core.v1.Service"]["x-kubernetes-group-version-kind"], json!([gvk]));
    let ports = &schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"];
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "port");
    assert_eq!(ports["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(ports["x-kubernetes-list-type"], "map");
    assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["port", "protocol"]));
    assert_eq!(schemas["io.k8s.api.core.v1.ServicePort"]["required"], json!(["port"]));
    let status = &schemas["io.k8s.api.core.v1.Service"]["properties"]["status"];
    assert_eq!(status["allOf"][0]["$ref"], "#/components/schemas/io.k8s.api.core.v1.ServiceStatus");
}

/// Returns number and content of each field of a message. The content is empty if it is not length-delimited.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = usize::try_from(varint(&mut bytes)).unwrap();
        let content = if key & 7 == 2 { bytes.split_at(length) } else { bytes.split_at(0) };
        found.push((key >> 3, content.0));
        bytes = content.1;
    }
    found
}

fn field(bytes: &[u8], tag: u64) -> &[u8] {
    fields(bytes).into_iter().find(|(it, _)| *it == tag).unwrap().1
}

#[test]
fn the_protobuf_form_says_the_same() {
    let document = v2();
    let bytes = to_protobuf(&document);
    assert_eq!(field(&bytes, 1), b"2.0");
    let definitions = fields(field(&bytes, 9));
    assert_eq!(definitions.len(), document["definitions"].as_object().unwrap().len());
    let spec = definitions
        .iter()
        .find(|(_, it)| field(it, 1) == b"io.k8s.api.core.v1.ServiceSpec")
        .map(|(_, it)| field(it, 2))
        .unwrap();
    let properties = fields(field(spec, 25));
    let property = |name: &str| {
        let (_, property) = properties.iter().find(|(_, it)| field(it, 1) == name.as_bytes()).unwrap();
        field(property, 2)
    };
    let ports = property("ports");
    assert_eq!(field(field(ports, 22), 1), b"array");
    assert_eq!(field(field(field(ports, 23), 1), 1), b"#/definitions/io.k8s.api.core.v1.ServicePort");
    let markers = fields(ports).into_iter().filter(|(tag, _)| *tag == 31).map(|(_, it)| it);
    let key = markers.into_iter().find(|it| field(it, 1) == b"x-kubernetes-patch-merge-key").unwrap();
    assert_eq!(field(field(key, 2), 2), b"\"port\"");
    let kind = property("type");
    assert_eq!(field(field(kind, 5), 2), b"\"ClusterIP\"");
    let values = fields(kind).into_iter().filter(|(tag, _)| *tag == 20).map(|(_, it)| field(it, 2));
    assert_eq!(
        values.collect::<Vec<_>>().join(&b' '),
        br#""ClusterIP" "ExternalName" "LoadBalancer" "NodePort""#
    );
    let paths = fields(field(&bytes, 8));
    assert_eq!(paths.len(), document["paths"].as_object().unwrap().len());
    assert!(paths.iter().all(|(tag, _)| *tag == 2));
}

#[test]
fn everything_is_described() {
    for document in documents() {
        let schemas = document.pointer("/components/schemas").unwrap_or(&document["definitions"]);
        let mut nameless = Vec::new();
        let mut count = 0;
        for (name, schema) in schemas.as_object().unwrap() {
            let properties = schema["properties"].as_object().into_iter().flatten();
            let properties = properties.map(|(property, schema)| (format!("{name}.{property}"), schema));
            for (place, schema) in std::iter::once((name.to_string(), schema)).chain(properties) {
                count += 1;
                if schema["description"].as_str().is_none_or(|text| text.trim().is_empty()) {
                    nameless.push(place);
                }
            }
        }
        assert!(nameless.is_empty() && count > 20, "{count} descriptions, none of {nameless:#?}");
    }
}

/// Returns the values (`enum`) and the default of each property that has one of them. `[]` stands for the elements of a
/// list.
fn restrictions(schemas: &Value) -> BTreeMap<String, (Value, Value)> {
    let mut found = BTreeMap::new();
    for (name, schema) in schemas.as_object().unwrap() {
        for (property, schema) in schema["properties"].as_object().into_iter().flatten() {
            for (place, schema) in [("", schema), ("[]", &schema["items"])] {
                let restriction = (schema["enum"].clone(), schema["default"].clone());
                if restriction != (Value::Null, Value::Null) {
                    found.insert(format!("{name}.{property}{place}"), restriction);
                }
            }
        }
    }
    found
}

#[test]
fn values_and_defaults_of_all_properties() {
    let protocols = json!(["SCTP", "TCP", "UDP"]);
    let policies = json!(["Cluster", "Local"]);
    let types = json!(["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    let expected = [
        ("core.v1.ClientIPConfig.timeoutSeconds", Value::Null, json!(10800)),
        ("core.v1.EndpointPort.protocol", protocols.clone(), json!("TCP")),
        ("core.v1.NamespaceStatus.phase", json!(["Active", "Terminating"]), Value::Null),
        ("core.v1.NodeStatus.phase", json!(["Pending", "Running", "Terminated"]), Value::Null),
        ("core.v1.PodSpec.restartPolicy", json!(["Always", "Never", "OnFailure"]), Value::Null),
        (
            "core.v1.PodStatus.phase",
            json!(["Failed", "Pending", "Running", "Succeeded", "Unknown"]),
            Value::Null,
        ),
        ("core.v1.PortStatus.protocol", protocols.clone(), Value::Null),
        ("core.v1.ServicePort.protocol", protocols.clone(), json!("TCP")),
        ("core.v1.ServiceSpec.externalTrafficPolicy", policies.clone(), Value::Null),
        ("core.v1.ServiceSpec.internalTrafficPolicy", policies, Value::Null),
        ("core.v1.ServiceSpec.ipFamilies[]", json!(["IPv4", "IPv6"]), Value::Null),
        (
            "core.v1.ServiceSpec.ipFamilyPolicy",
            json!(["PreferDualStack", "RequireDualStack", "SingleStack"]),
            Value::Null,
        ),
        ("core.v1.ServiceSpec.sessionAffinity", json!(["ClientIP", "None"]), json!("None")),
        ("core.v1.ServiceSpec.type", types, json!("ClusterIP")),
        ("core.v1.Taint.effect", json!(["NoExecute", "NoSchedule", "PreferNoSchedule"]), Value::Null),
        ("discovery.v1.EndpointPort.protocol", protocols, json!("TCP")),
        ("discovery.v1.EndpointSlice.addressType", json!(["FQDN", "IPv4", "IPv6"]), Value::Null),
    ];
    let expected: BTreeMap<String, (Value, Value)> = expected
        .into_iter()
        .map(|(place, values, default)| (format!("io.k8s.api.{place}"), (values, default)))
        .collect();
    let mut of_v3 = BTreeMap::new();
    for document in documents() {
        if let Some(schemas) = document.pointer("/components/schemas") {
            of_v3.extend(restrictions(schemas));
        }
    }
    assert_eq!(restrictions(&v2()["definitions"]), expected);
    assert_eq!(of_v3, expected);
}
