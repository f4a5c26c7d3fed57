use std::borrow::Cow;

use proptest::prelude::*;

use portolan_model::object::Encoded;

use super::{Frame, InvalidBody, LineSplitter, MAX_VALUE};

/// Returns the lines of `body` when it arrives in pieces of the given sizes, and the rest after the last line.
fn split(body: &[u8], sizes: &[usize]) -> Result<(Vec<Vec<u8>>, Vec<u8>), InvalidBody> {
    let mut splitter = LineSplitter::default();
    let mut lines = Vec::new();
    let mut rest = body;
    let mut sizes = sizes.iter().copied().chain(std::iter::repeat(usize::MAX));
    while !rest.is_empty() {
        let (chunk, tail) = rest.split_at(sizes.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
        rest = tail;
        splitter.push(chunk, |line| {
            lines.push(line.to_vec());
            Ok::<(), InvalidBody>(())
        })?;
    }
    Ok((lines, splitter.rest().to_vec()))
}

#[test]
fn a_line_over_the_limit_is_refused_before_it_is_kept() {
    let mut splitter = LineSplitter::default();
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..8 {
        splitter.push(&chunk, |_| Ok::<(), InvalidBody>(())).unwrap();
    }
    assert_eq!(splitter.rest().len(), MAX_VALUE);
    let error = splitter.push(b"x", |_| Ok::<(), InvalidBody>(())).unwrap_err();
    assert!(matches!(error, InvalidBody::TooLong), "{error}");
}

#[test]
fn a_long_line_leaves_no_long_buffer() {
    let mut splitter = LineSplitter::default();
    splitter.push(&vec![b'x'; 1 << 20], |_| Ok::<(), InvalidBody>(())).unwrap();
    splitter.push(b"\n", |_| Ok::<(), InvalidBody>(())).unwrap();
    assert!(splitter.carry.capacity() <= super::KEEP, "{}", splitter.carry.capacity());
}

#[test]
fn an_error_stops_the_lines() {
    let mut seen = 0;
    let result = LineSplitter::default().push(b"a\nb\nc\n", |line| {
        seen += 1;
        if line == b"b" { Err(InvalidBody::TooLong) } else { Ok(()) }
    });
    assert!(result.is_err());
    assert_eq!(seen, 2);
}

#[test]
fn peel_and_parse_agree_on_the_usual_form() {
    let line = br#"{"type":"MODIFIED","object":{"kind":"Service","metadata":{"name":"a}"}}}"#;
    let expected = Frame {
        event: Cow::Borrowed("MODIFIED"),
        object: Encoded::Json(br#"{"kind":"Service","metadata":{"name":"a}"}}"#),
    };
    assert_eq!(Frame::peel(line), Some(expected));
    assert_eq!(Frame::parse(line).unwrap(), Frame::peel(line));
}

#[test]
fn parse_takes_what_peel_does_not() {
    let line = br#" { "object" : {"a":1} , "extra":[], "type" : "ADDED" } "#;
    assert_eq!(Frame::peel(line), None);
    let frame = Frame::parse(line).unwrap().unwrap();
    assert_eq!((frame.event.as_ref(), frame.object), ("ADDED", Encoded::Json(br#"{"a":1}"#)));
}

#[test]
fn json_without_an_event_is_distinguished_from_invalid_json() {
    for line in [&b"42"[..], b"[]", b"{}", br#"{"type":7,"object":{}}"#, br#"{"type":"ADDED"}"#, b"null"] {
        assert_eq!(Frame::parse(line).unwrap(), None, "{}", String::from_utf8_lossy(line));
    }
    for line in [&b"<html>"[..], br#"{"type":"ADDED","object":{"#, b"", b"\xff\xfe"] {
        let error = Frame::parse(line).unwrap_err();
        assert!(matches!(error, InvalidBody::NotJson(_)), "{error}");
    }
}

#[test]
fn deep_nesting_is_no_stack_overflow() {
    let deep = vec![b'['; 1 << 20];
    assert!(Frame::parse(&deep).is_err());
}

proptest! {
    #[test]
    fn chunking_does_not_matter(
        lines in prop::collection::vec("[a-z{}\":]{0,40}", 0..20),
        sizes in prop::collection::vec(1usize..30, 0..60),
    ) {
        let body = lines.iter().fold(String::new(), |body, line| body + line + "\n") + "half";
        let (got, rest) = split(body.as_bytes(), &sizes).unwrap();
        let got: Vec<_> = got.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
        prop_assert_eq!(got, lines);
        prop_assert_eq!(rest, b"half".to_vec());
    }

    #[test]
    fn no_line_panics(line in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Frame::peel(&line);
        let _ = Frame::parse(&line);
    }
}
