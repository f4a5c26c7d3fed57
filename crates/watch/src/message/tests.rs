use portolan_schema::Resource;
use portolan_schema::json::json;
use portolan_schema::protobuf::Form;
use proptest::prelude::*;

use super::*;

/// Splits a body that arrives in pieces of these sizes. Returns the messages, and whether the last frame was whole.
fn split(body: &[u8], sizes: &[usize]) -> Result<(Vec<Vec<u8>>, bool), InvalidBody> {
    let (mut splitter, mut messages, mut rest) = (MessageSplitter::default(), Vec::new(), body);
    let mut sizes = sizes.iter().copied().chain(std::iter::repeat(usize::MAX));
    while !rest.is_empty() {
        let (chunk, tail) = rest.split_at(sizes.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
        rest = tail;
        splitter.push(chunk, |message| {
            messages.push(message.to_vec());
            Ok::<(), InvalidBody>(())
        })?;
    }
    Ok((messages, splitter.is_complete()))
}

fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
    let frame =
        |message: &Vec<u8>| [&u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat();
    messages.iter().flat_map(frame).collect()
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_messages(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..10),
        sizes in proptest::collection::vec(1..30_usize, 0..100),
        missing in 0..30_usize,
    ) {
        let body = framed(&messages);
        prop_assert_eq!(split(&body, &sizes).unwrap(), (messages.clone(), true));
        let cut_off = &body[..body.len().saturating_sub(missing)];
        let (found, is_complete) = split(cut_off, &sizes).unwrap();
        prop_assert!(messages.starts_with(&found));
        prop_assert_eq!(is_complete, framed(&found).len() == cut_off.len());
    }

    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = event(&bytes);
        let _ = opened(&bytes);
        let _ = opened(&[MAGIC, &bytes].concat());
    }
}

#[test]
fn a_frame_is_no_longer_than_an_object() {
    let longest = u32::try_from(MAX_VALUE - LENGTH).unwrap();
    assert!(split(&longest.to_be_bytes(), &[]).is_ok());
    for sizes in [&[][..], &[2]] {
        let outcome = split(&(longest + 1).to_be_bytes(), sizes);
        assert!(matches!(outcome, Err(InvalidBody::TooLong)), "{outcome:?}");
    }
}

#[test]
fn an_event_of_the_api_server() {
    let object = json!({"metadata": {"name": "a", "namespace": "b"}}).to_string();
    let body = Form::Whole(Resource::Service).encode_watch_event("ADDED", object.as_bytes()).unwrap();
    let (messages, _) = split(&body, &[]).unwrap();
    let frame = event(&messages[0]).unwrap();
    assert_eq!(frame.event, "ADDED");
    assert!(matches!(frame.object, Encoded::Protobuf { kind: "Service", message } if !message.is_empty()));
    assert!(matches!(event(b"{}"), Err(InvalidBody::NotProtobuf(_))));
}

#[test]
fn an_object_without_a_form_in_protobuf_is_json() {
    assert_eq!(opened(b"{}").unwrap(), Encoded::Json(b"{}"));
    let unknown = [MAGIC, &[0x12, 2, b'{', b'}', 0x22, 16], b"application/json"].concat();
    assert_eq!(opened(&unknown).unwrap(), Encoded::Json(b"{}"));
    assert!(matches!(opened(&unknown[..10]), Err(InvalidBody::NotProtobuf(_))));
}
