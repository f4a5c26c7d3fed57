use serde_json::json;

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
