use crate::json::json;
use proptest::prelude::*;

use super::*;

fn run(document: Value, patch: Value) -> Result<Value, String> {
    JsonPatch::decode(patch).and_then(|patch| patch.apply(document)).map_err(|error| error.to_string())
}

#[test]
fn operations_do_what_the_rfc_says() {
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let from = |op: &str, from: &str, path: &str| json!({"op": op, "from": from, "path": path});
    for (document, operation, expected) in [
        // The examples of RFC 6902, appendix A.
        (json!({"foo": "bar"}), add("/baz", json!("qux")), json!({"baz": "qux", "foo": "bar"})),
        (json!({"foo": ["bar", "baz"]}), add("/foo/1", json!("qux")), json!({"foo": ["bar", "qux", "baz"]})),
        (json!({"baz": "qux", "foo": "bar"}), json!({"op": "remove", "path": "/baz"}), json!({"foo": "bar"})),
        (
            json!({"foo": ["bar", "qux", "baz"]}),
            json!({"op": "remove", "path": "/foo/1"}),
            json!({"foo": ["bar", "baz"]}),
        ),
        (json!({"a": 1}), json!({"op": "replace", "path": "/a", "value": 2}), json!({"a": 2})),
        (json!({"a": {"b": 1}, "c": {}}), from("move", "/a/b", "/c/d"), json!({"a": {}, "c": {"d": 1}})),
        (json!({"a": [1, 2, 3]}), from("move", "/a/0", "/a/2"), json!({"a": [2, 3, 1]})),
        (json!({"foo": "bar"}), add("/child", json!({"x": {}})), json!({"child": {"x": {}}, "foo": "bar"})),
        (
            json!({"/": 9, "~1": 10}),
            json!({"op": "test", "path": "/~01", "value": 10}),
            json!({"/": 9, "~1": 10}),
        ),
        (json!({"foo": ["bar"]}), add("/foo/-", json!(["abc"])), json!({"foo": ["bar", ["abc"]]})),
        // Other examples.
        (json!({"a": [1]}), from("copy", "/a", "/b"), json!({"a": [1], "b": [1]})),
        (json!({"a": {"b/c": 1}}), json!({"op": "remove", "path": "/a/b~1c"}), json!({"a": {}})),
        (json!({"a": 1}), add("", json!([])), json!([])),
        (json!({"a": [1, 2]}), json!({"op": "remove", "path": "/a/-1"}), json!({"a": [1]})),
        (json!({"a": [1, 2]}), add("/a/-1", json!(3)), json!({"a": [1, 2, 3]})),
        (json!({}), json!({"op": "test", "path": "/a", "value": null}), json!({})),
        (json!({"a": 1}), json!({"op": "test", "path": "", "value": {"a": 1}, "more": 0}), json!({"a": 1})),
    ] {
        assert_eq!(run(document, json!([operation])).unwrap(), expected, "{operation}");
    }
}

#[test]
fn an_impossible_operation_fails_the_patch() {
    for (operation, reason) in [
        (json!({"op": "test", "path": "/a", "value": 2}), "(test /a): the value is another one"),
        (json!({"op": "remove", "path": "/x"}), "(remove /x): nothing is at \"x\""),
        (json!({"op": "replace", "path": "/x", "value": 1}), "nothing is at \"x\""),
        (json!({"op": "add", "path": "/x/y~1z", "value": 1}), "(add /x/y~1z): nothing is at \"x\""),
        (json!({"op": "add", "path": "/a/b", "value": 1}), "through a value of type integer"),
        (json!({"op": "add", "path": "/l/3", "value": 1}), "\"3\" is not an index"),
        (json!({"op": "replace", "path": "/l/2", "value": 1}), "\"2\" is not an index"),
        (json!({"op": "remove", "path": "/l/-3"}), "\"-3\" is not an index"),
        (json!({"op": "remove", "path": "/l/-"}), "\"-\" is not an index"),
        (json!({"op": "remove", "path": "/l/99999999999999999999"}), "is not an index"),
        (json!({"op": "move", "from": "/o", "path": "/o/p"}), "into itself"),
    ] {
        let document = json!({"a": 1, "l": [1, 2], "o": {}});
        let error = JsonPatch::decode(json!([{"op": "test", "path": "/a", "value": 1}, operation]))
            .unwrap()
            .apply(document)
            .unwrap_err();
        let PatchError::Failed(text) = &error else { panic!("{error:?}") };
        assert!(text.starts_with("JSON patch operation 1 (") && text.contains(reason), "{text}");
    }
}

#[test]
fn messages_stay_short() {
    let operation = json!([{"op": "remove", "path": format!("/{}", "\u{e9}".repeat(100_000))}]);
    let message = run(json!({}), operation).unwrap_err();
    assert!(message.len() < 1100 && message.ends_with("..."), "{message}");
}

#[test]
fn malformed_patches_are_refused() {
    for (patch, reason) in [
        (json!({}), "a JSON patch is a list of operations"),
        (json!([1]), "operation 0: it is not an object"),
        (json!([{"path": "/a"}]), "op is not one of"),
        (json!([{"op": "ADD", "path": "/a", "value": 1}]), "op is not one of"),
        (json!([{"op": "add", "value": 1}]), "it has no path"),
        (json!([{"op": "add", "path": "/a"}]), "it has no value"),
        (json!([{"op": "copy", "path": "/a"}]), "it has no from"),
        (json!([{"op": "add", "path": 1, "value": 1}]), "path is not a string"),
        (json!([{"op": "add", "path": "a", "value": 1}]), "starts with /"),
    ] {
        let error = JsonPatch::decode(patch).unwrap_err();
        assert!(matches!(&error, PatchError::Malformed(text) if text.contains(reason)), "{error:?}");
    }
}

#[test]
fn a_patch_cannot_grow_without_bounds() {
    let operation = json!({"op": "test", "path": "", "value": {}});
    let many = |count: usize| JsonPatch::decode(Value::from(vec![operation.clone(); count]));
    assert_eq!(many(MAX_OPERATIONS).unwrap().apply(json!({})).unwrap(), json!({}));
    assert!(matches!(many(MAX_OPERATIONS + 1), Err(PatchError::TooLarge(_))));

    let doubling: Vec<Value> =
        (0..64).map(|number| json!({"op": "copy", "from": "/l", "path": format!("/l/{number}")})).collect();
    let error = JsonPatch::decode(doubling.into()).unwrap().apply(json!({"l": ["x"]})).unwrap_err();
    assert!(matches!(error, PatchError::TooLarge(_)), "{error:?}");

    let mut path = String::new();
    let nesting: Vec<Value> = (0..200)
        .map(|_| {
            path.push_str("/a");
            json!({"op": "add", "path": path, "value": {}})
        })
        .collect();
    let error = run(json!({}), nesting.into()).unwrap_err();
    assert!(error.contains("nested deeper"), "{error}");

    let first = json!({"op": "remove", "path": "/0"});
    let shuffle: Vec<Value> = std::iter::repeat_n(first, MAX_OPERATIONS).collect();
    let error = JsonPatch::decode(shuffle.into()).unwrap().apply(vec![0; 200_000].into()).unwrap_err();
    assert!(matches!(error, PatchError::TooLarge(_)), "{error:?}");
}

proptest! {
    #[test]
    fn adding_and_removing_what_was_added_changes_nothing(
        list in proptest::collection::vec(0..9_i32, 0..6), index in 0..6_usize, value in 0..9_i32,
    ) {
        let document = json!({"l": list});
        let path = format!("/l/{}", index.min(list.len()));
        let patch = json!([{"op": "add", "path": path, "value": value}, {"op": "remove", "path": path}]);
        prop_assert_eq!(run(document.clone(), patch).unwrap(), document);
    }
}
