use crate::json::json;

use super::*;

fn conformed(resource: Resource, value: Value) -> Result<(Object, Vec<String>), String> {
    let Value::Object(mut object) = value else { panic!("an object") };
    let unknown = conform(resource, &mut object).map_err(|error| error.to_string())?;
    Ok((object, unknown))
}

#[test]
fn wrong_types_name_their_path() {
    let port = |port: Value| json!({"spec": {"ports": [{"port": 1}, port]}});
    for (body, message) in [
        (port(json!({"port": "80"})), "spec.ports[1].port: expected a 32-bit integer, got string"),
        (
            port(json!({"port": 80.5})),
            "spec.ports[1].port: expected a 32-bit integer, got number with a fraction",
        ),
        (
            port(json!({"port": 80.0})),
            "spec.ports[1].port: expected a 32-bit integer, got number with a fraction",
        ),
        (
            port(json!({"port": 5_000_000_000_i64})),
            "spec.ports[1].port: expected a 32-bit integer, got integer",
        ),
        (port(json!(null)), "spec.ports[1]: expected an object, got null"),
        (
            port(json!({"targetPort": true})),
            "spec.ports[1].targetPort: expected a 32-bit integer or a string, got boolean",
        ),
        (
            json!({"metadata": {"labels": {"a.b/c": 1}}}),
            "metadata.labels[a.b/c]: expected a string, got integer",
        ),
        (json!({"spec": []}), "spec: expected an object, got list"),
    ] {
        assert_eq!(conformed(Resource::Service, body).unwrap_err(), message);
    }
}

#[test]
fn nulls_and_unknown_fields_are_dropped_and_the_latter_reported() {
    let body = json!({
        "metadata": {"name": "a", "creationTimestamp": null},
        "spec": {"typo": 1, "type": null, "ports": [{"port": 80, "nodeport": 1}]},
        "extra": {},
    });
    let (object, mut unknown) = conformed(Resource::Service, body).unwrap();
    unknown.sort();
    assert_eq!(unknown, ["extra", "spec.ports[0].nodeport", "spec.typo"]);
    assert_eq!(Value::from(object), json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}));
}

#[test]
fn zero_values_that_mean_absence_are_dropped() {
    let body = json!({
        "metadata": {"name": "a", "labels": {}, "annotations": {"a": ""}, "finalizers": [], "generation": 0},
        "spec": {
            "publishNotReadyAddresses": false, "clusterIP": "", "externalIPs": [], "healthCheckNodePort": 0, "selector": {},
            "ipFamilyPolicy": "", "allocateLoadBalancerNodePorts": false,
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
            "ports": [{"name": "", "port": 0, "nodePort": 0, "targetPort": 0, "appProtocol": ""}],
        },
        "status": {"loadBalancer": {"ingress": []}},
    });
    let kept = json!({
        "metadata": {"name": "a", "annotations": {"a": ""}},
        "spec": {
            "ipFamilyPolicy": "", "allocateLoadBalancerNodePorts": false,
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
            "ports": [{"port": 0, "targetPort": 0, "appProtocol": ""}],
        },
        "status": {"loadBalancer": {}},
    });
    let (object, _) = conformed(Resource::Service, body.clone()).unwrap();
    assert_eq!(Value::from(object), kept);
    let Value::Object(mut object) = body.clone() else { panic!("an object") };
    drop_absent(Resource::Service, &mut object);
    assert_eq!(Value::from(object), kept);
    let Value::Object(mut object) = body.clone() else { panic!("an object") };
    assert_eq!(conform_configuration(Resource::Service, &mut object), Ok(Vec::new()));
    assert_eq!(Value::from(object), body);
    let slice = json!({"addressType": "IPv4", "endpoints": [], "ports": []});
    let (object, _) = conformed(Resource::EndpointSlice, slice.clone()).unwrap();
    assert_eq!(Value::from(object), slice);
}

#[test]
fn moments_and_amounts_are_kept_in_one_form() {
    let body = json!({
        "metadata": {"creationTimestamp": "2026-11-21T23:03:57.9+02:00"},
        "status": {"capacity": {"cpu": 4, "memory": "4Gi", "x": "-1.5e3"}},
    });
    let (object, unknown) = conformed(Resource::Node, body).unwrap();
    assert!(unknown.is_empty());
    assert_eq!(
        Value::from(object),
        json!({
            "metadata": {"creationTimestamp": "2026-11-21T21:03:57Z"},
            "status": {"capacity": {"cpu": "4", "memory": "4Gi", "x": "-1500"}},
        })
    );
    let lease = json!({"spec": {"renewTime": "2026-11-21T21:03:57Z"}});
    let (object, _) = conformed(Resource::Lease, lease).unwrap();
    assert_eq!(Value::from(object), json!({"spec": {"renewTime": "2026-11-21T21:03:57.000000Z"}}));
    for (resource, body, message) in [
        (
            Resource::Lease,
            json!({"spec": {"renewTime": "yesterday"}}),
            "spec.renewTime: expected an RFC 3339 time, got string",
        ),
        (
            Resource::Node,
            json!({"status": {"capacity": {"cpu": "4 apples"}}}),
            "status.capacity[cpu]: expected a quantity such as 100m or 4Gi, got string",
        ),
        (
            Resource::Node,
            json!({"status": {"capacity": {"cpu": true}}}),
            "status.capacity[cpu]: expected a quantity such as 100m or 4Gi, got boolean",
        ),
    ] {
        assert_eq!(conformed(resource, body).unwrap_err(), message);
    }
}
