use portolan_schema::json::json;

use super::*;

fn with(base: &Value, more: &Value) -> Object {
    let mut object = base.as_object().unwrap().clone();
    for (key, value) in more.as_object().unwrap() {
        if value.is_null() {
            object.remove(key);
        } else {
            object.insert(key.clone(), value.clone());
        }
    }
    object
}

fn new_form(more: &Value) -> Object {
    let base = json!({
        "metadata": {"name": "e", "namespace": "a"}, "eventTime": "2026-11-21T21:03:57.000000Z",
        "regarding": {"kind": "Service", "namespace": "a", "name": "b"}, "type": "Warning",
        "reason": "Full", "action": "Allocate", "note": "no address is left",
        "reportingController": "portolan", "reportingInstance": "n1",
    });
    with(&base, more)
}

fn old_form(more: &Value) -> Object {
    let base = json!({
        "metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": "a", "name": "b"},
        "reason": "Full", "message": "no address is left", "count": 1,
        "firstTimestamp": "2026-11-21T21:03:57Z", "source": {"component": "x"},
    });
    with(&base, more)
}

fn faults(resource: Resource, object: &Object, old: Option<&Object>) -> Vec<String> {
    validate(resource, object, old).iter().map(FieldError::brief).collect()
}

#[test]
fn a_new_event_is_complete() {
    let long = "x".repeat(2000);
    for (more, fault) in [
        (json!({"eventTime": null}), "Required eventTime"),
        (json!({"type": "Odd"}), "Invalid type"),
        (json!({"reportingController": "a b"}), "Invalid reportingController"),
        (json!({"reportingInstance": null}), "Required reportingInstance"),
        (json!({"reportingInstance": long}), "Invalid reportingInstance"),
        (json!({"action": null}), "Required action"),
        (json!({"action": long}), "Invalid action"),
        (json!({"reason": null}), "Required reason"),
        (json!({"reason": long}), "Invalid reason"),
        (json!({"note": long}), "Invalid message"),
        (json!({"regarding": {"name": "b"}}), "Invalid involvedObject.namespace"),
        (json!({"series": {"count": 1, "lastObservedTime": "x"}}), "Invalid series.count"),
        (json!({"series": {"count": 2}}), "Required series.lastObservedTime"),
        (json!({"deprecatedCount": 1}), "Invalid count"),
        (json!({"deprecatedSource": {"host": "a"}}), "Invalid source"),
        (json!({"deprecatedFirstTimestamp": "x"}), "Invalid firstTimestamp"),
        (json!({"deprecatedLastTimestamp": "x"}), "Invalid lastTimestamp"),
    ] {
        assert_eq!(faults(Resource::Event, &new_form(&more), None), [fault]);
    }
    let unnamed = new_form(&json!({"reportingController": null}));
    let expected = ["Required reportingController", "Invalid reportingController"];
    assert_eq!(faults(Resource::Event, &unnamed, None), expected);
    let fine = new_form(&json!({"deprecatedSource": {}, "deprecatedCount": 0}));
    assert_eq!(faults(Resource::Event, &fine, None), Vec::<String>::new());
    let cluster = json!({"metadata": {"namespace": "default"}, "regarding": {"kind": "Node", "name": "n"}});
    assert_eq!(faults(Resource::Event, &new_form(&cluster), None), Vec::<String>::new());
}

#[test]
fn only_the_series_of_a_new_event_changes() {
    let old = new_form(&json!({}));
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-11-21T21:04:57.000000Z"}});
    assert_eq!(faults(Resource::Event, &new_form(&series), Some(&old)), Vec::<String>::new());
    for (key, field) in
        [("note", "message"), ("type", "type"), ("related", "related"), ("deprecatedCount", "count")]
    {
        let changed = new_form(&json!({(key): "other"}));
        assert_eq!(faults(Resource::Event, &changed, Some(&old)), [format!("Invalid {field}")]);
    }
    // A stored series is not validated again.
    let bad = new_form(&json!({"series": {"count": 1}}));
    assert_eq!(faults(Resource::Event, &bad, Some(&bad)), Vec::<String>::new());
    assert_eq!(faults(Resource::Event, &bad, Some(&old)).len(), 2);
}

#[test]
fn core_events_only_agree_on_their_namespace() {
    assert_eq!(faults(Resource::CoreEvent, &old_form(&json!({})), None), Vec::<String>::new());
    for (more, expected) in [
        (json!({"involvedObject": {"namespace": "b"}}), vec!["Invalid involvedObject.namespace"]),
        (json!({"involvedObject": {}}), vec!["Invalid involvedObject.namespace"]),
        (json!({"involvedObject": {}, "metadata": {"namespace": "default"}}), vec![]),
        (json!({"type": "Odd", "message": "x".repeat(2000)}), vec![]),
        (
            json!({"eventTime": "2026-11-21T21:03:57.000000Z"}),
            vec![
                "Required reportingComponent",
                "Invalid reportingComponent",
                "Required reportingInstance",
                "Required action",
            ],
        ),
    ] {
        assert_eq!(faults(Resource::CoreEvent, &old_form(&more), None), expected, "{more}");
    }
    let old = old_form(&json!({}));
    let counted = old_form(&json!({"count": 2, "message": "again"}));
    assert_eq!(faults(Resource::CoreEvent, &counted, Some(&old)), Vec::<String>::new());
}
