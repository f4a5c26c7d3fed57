use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{ListMeta, ListSplitter};
use crate::frame::InvalidBody;

type SplitResult = Result<(Vec<String>, Option<ListMeta>), InvalidBody>;

/// Returns the items and the page's metadata when `body` arrives in pieces of the given sizes.
fn split(body: &[u8], sizes: &[usize]) -> SplitResult {
    let mut splitter = ListSplitter::new("ServiceList");
    let mut items = Vec::new();
    let mut rest = body;
    let mut sizes = sizes.iter().copied().chain(std::iter::repeat(usize::MAX));
    while !rest.is_empty() {
        let (chunk, tail) = rest.split_at(sizes.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
        rest = tail;
        splitter.push(chunk, |item| {
            items.push(String::from_utf8_lossy(item).into_owned());
            Ok::<(), InvalidBody>(())
        })?;
    }
    Ok((items, splitter.finish()?))
}

fn meta(resource_version: &str, next: &str) -> ListMeta {
    ListMeta { resource_version: resource_version.into(), next: next.into() }
}

#[test]
fn go_form() {
    let body = br#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"abc","remainingItemCount":3},"items":[{"a":"]}\""},{"b":[1,{}]}]}
"#;
    let (items, page) = split(body, &[]).unwrap();
    assert_eq!(items, [r#"{"a":"]}\""}"#, r#"{"b":[1,{}]}"#]);
    assert_eq!(page, Some(meta("7", "abc")));
}

#[test]
fn any_order_any_spaces() {
    let body = b" {\n \"kind\" : \"ServiceList\", \"items\" : [ {\"a\" : 1} , {} ] , \"n\" : -1.5e3, \"t\":true ,\"metadata\" : { \"resourceVersion\" : \"9\" } } ";
    let (items, page) = split(body, &[1; 200]).unwrap();
    assert_eq!(items, [r#"{"a" : 1}"#, "{}"]);
    assert_eq!(page, Some(meta("9", "")));
}

#[test]
fn empty_lists() {
    for items in ["[]", "[ ]"] {
        let body =
            format!(r#"{{"items":{items},"metadata":{{"resourceVersion":"1"}},"kind":"ServiceList"}}"#);
        assert_eq!(split(body.as_bytes(), &[3; 40]).unwrap(), (vec![], Some(meta("1", ""))), "{items}");
    }
}

#[test]
fn a_body_that_is_not_a_list_is_not_an_empty_list() {
    for body in [
        &br#"{"kind":"Status","metadata":{},"code":500}"#[..],
        br#"{"kind":"ServiceList","metadata":{"resourceVersion":"1"}}"#,
        br#"{"kind":"ServiceList","items":[],"metadata":{}}"#,
        br#"{"kind":"ServiceList","items":[],"metadata":{"resourceVersion":5}}"#,
        br#"{"kind":"ServiceList","items":{},"metadata":{"resourceVersion":"1"}}"#,
        br#"{"kind":"ServiceList","items":[:],"metadata":{"resourceVersion":"1"}}"#,
        br#"{"items":[}"#,
        b"<html>",
        b"[]",
        b"{}{}",
    ] {
        assert!(split(body, &[]).is_err(), "{}", String::from_utf8_lossy(body));
    }
    for body in [&b""[..], b"{", br#"{"items":[{}"#, br#"{"items":[],"metadata":{"resourceVersion":"1"}"#] {
        assert_eq!(split(body, &[]).unwrap().1, None, "{}", String::from_utf8_lossy(body));
    }
}

#[test]
fn a_list_of_another_kind_or_none_has_no_end() {
    for (kind, found) in
        [(r#""PodList""#, "PodList"), (r#""Service""#, "Service"), ("7", "7"), ("null", "null")]
    {
        for body in [
            format!(r#"{{"kind":{kind},"metadata":{{"resourceVersion":"1"}},"items":[]}}"#),
            format!(r#"{{"items":[],"metadata":{{"resourceVersion":"1"}},"kind":{kind}}}"#),
        ] {
            let error = split(body.as_bytes(), &[3; 40]).unwrap_err();
            let said =
                matches!(&error, InvalidBody::Kind { wanted: "ServiceList", found: it } if **it == *found);
            assert!(said, "{body}: {error}");
        }
    }
    let error = split(br#"{"items":[],"metadata":{"resourceVersion":"1"}}"#, &[]).unwrap_err();
    assert!(error.to_string().starts_with(r#"kind "" where ServiceList was asked for"#), "{error}");
}

#[test]
fn items_before_the_kind_wait_for_it() {
    let body = |kind: &str| {
        format!(r#"{{"items":[{{"a":1}},7],"kind":"{kind}","metadata":{{"resourceVersion":"9"}}}}"#)
    };
    for size in [1, 3, 1000] {
        let (items, page) = split(body("ServiceList").as_bytes(), &[size; 80]).unwrap();
        assert_eq!(items, [r#"{"a":1}"#, "7"]);
        assert_eq!(page, Some(meta("9", "")));
        let mut splitter = ListSplitter::new("ServiceList");
        let mut items = 0;
        let outcome = body("PodList").as_bytes().chunks(size).try_for_each(|chunk| {
            splitter.push(chunk, |_| {
                items += 1;
                Ok::<(), InvalidBody>(())
            })
        });
        assert!(matches!(outcome, Err(InvalidBody::Kind { .. })));
        assert_eq!(items, 0, "none is handed on");
    }
}

#[test]
fn no_more_than_32_mib_of_items_wait() {
    let item = format!(r#"{{"a":"{}"}},"#, "x".repeat(1 << 20));
    for item in [item, "0,".repeat(1 << 20)] {
        let mut splitter = ListSplitter::new("ServiceList");
        splitter.push(br#"{"items":["#, |_| Ok::<(), InvalidBody>(())).unwrap();
        let mut push = || splitter.push(item.as_bytes(), |_| Ok::<(), InvalidBody>(())).err();
        let error = (0..33).find_map(|_| push()).unwrap();
        assert!(matches!(error, InvalidBody::LateKind), "{error}");
    }
}

#[test]
fn items_that_are_null_are_no_empty_list() {
    let body = br#"{"kind":"ServiceList","metadata":{"resourceVersion":"1"},"items":null}"#;
    let error = split(body, &[]).unwrap_err();
    assert_eq!(error.to_string(), "a list without items: they are null");
}

#[test]
fn an_endless_item_is_refused() {
    let mut splitter = ListSplitter::new("ServiceList");
    splitter.push(br#"{"items":[{"a":""#, |_| Ok::<(), InvalidBody>(())).unwrap();
    let chunk = vec![b'x'; 1 << 20];
    let error = (0..9).find_map(|_| splitter.push(&chunk, |_| Ok::<(), InvalidBody>(())).err()).unwrap();
    assert!(matches!(error, InvalidBody::TooLong), "{error}");
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i32>().prop_map(Json::from),
        "[a-z\\\\\"{}\\[\\],: \n\u{e9}]{0,12}".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::hash_map("[a-z\"\\\\]{0,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn items_are_the_items_however_cut(
        items in prop::collection::vec(any_json(), 0..6),
        other in any_json(),
        pretty in any::<bool>(),
        sizes in prop::collection::vec(1usize..20, 0..200),
    ) {
        let page = json!({"kind": "ServiceList", "other": other, "items": items, "metadata": {"resourceVersion": "3", "continue": "t"}});
        let body = if pretty { serde_json::to_vec_pretty(&page) } else { serde_json::to_vec(&page) }.unwrap();
        let (got, page) = split(&body, &sizes).unwrap();
        let got: Vec<Json> = got.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
        prop_assert_eq!(got, items);
        prop_assert_eq!(page, Some(meta("3", "t")));
    }

    #[test]
    fn no_body_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = split(&body, &[7; 50]);
    }
}
