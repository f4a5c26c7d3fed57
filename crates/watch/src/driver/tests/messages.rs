//! Watches in protobuf have the meaning that they have in JSON.

use portolan_schema::Resource;
use portolan_schema::json::{Object, Value as Json, json as schema_json};
use portolan_schema::protobuf::{self, Form};

use super::*;

/// Returns an event in protobuf, in its frame.
fn message(event: &str, object: &Value) -> Vec<u8> {
    Form::Whole(Resource::Service).encode_watch_event(event, object.to_string().as_bytes()).unwrap()
}

fn bookmark(version: &str, is_end: bool) -> Vec<u8> {
    let annotations =
        if is_end { json!({"k8s.io/initial-events-end": "true", "other": "x"}) } else { json!({}) };
    message("BOOKMARK", &json!({"metadata": {"resourceVersion": version, "annotations": annotations}}))
}

fn status_object(code: u16, reason: &str) -> Object {
    let value: Json = schema_json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": "too old", "code": code,
        "details": {"retryAfterSeconds": 7, "causes": [{"reason": "ResourceVersionTooLarge", "message": "m"}]},
    });
    value.as_object().unwrap().clone()
}

fn listed_messages() -> Vec<u8> {
    [message("ADDED", &service("a", "3")), bookmark("10", true)].concat()
}

fn answer(body: Vec<u8>) -> Answer {
    Answer::Protobuf(200, vec![Step::Send(body)])
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_then_changes() {
    let changes =
        [message("MODIFIED", &service("b", "11")), message("DELETED", &service("a", "12"))].concat();
    let log = services([answer([listed_messages(), changes].concat())]).await;
    assert_eq!(log.events[..5], ["start", "+ns/a@3", "end", "+ns/b@11", "-ns/a"]);
    assert_eq!(log.queries(), [STREAM, "resourceVersion=12"]);
}

#[tokio::test(start_paused = true)]
async fn frames_that_arrive_in_pieces() {
    let body = [listed_messages(), bookmark("44", false), message("ADDED", &service("c", "45"))].concat();
    let pieces = body.chunks(7).map(|piece| Step::Send(piece.to_vec())).collect();
    let log = services([Answer::Protobuf(200, pieces)]).await;
    assert_eq!(log.events[..4], ["start", "+ns/a@3", "end", "+ns/c@45"]);
    assert_eq!(log.queries(), [STREAM, "resourceVersion=45"]);
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_cut_off_and_what_is_no_protobuf() {
    let mut body = [listed_messages(), message("ADDED", &service("b", "11"))].concat();
    body.pop();
    let log = services([answer(body)]).await;
    assert_eq!(log.events[..3], ["start", "+ns/a@3", "end"]);
    assert!(log.events[3].contains("resume") && log.queries()[1] == "resourceVersion=10", "{log:?}");

    let log = services([answer([&2_u32.to_be_bytes()[..], b"{}"].concat())]).await;
    assert!(log.events[1].contains("not protobuf"), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_kind_and_one_without_a_name() {
    let node =
        Form::Whole(Resource::Node).encode_watch_event("ADDED", br#"{"metadata":{"name":"n"}}"#).unwrap();
    let log = services([answer([listed_messages(), node].concat())]).await;
    assert!(log.events[3].contains("\"Node\" where Service was asked for"), "{log:?}");

    let nameless = message("ADDED", &json!({"metadata": {"namespace": "ns"}}));
    let log =
        services([answer([listed_messages(), nameless, message("ADDED", &service("b", "11"))].concat())])
            .await;
    assert!(log.events[3].contains("no usable metadata.name"), "{log:?}");
    assert_eq!(log.events[4], "+ns/b@11");
}

#[tokio::test(start_paused = true)]
async fn errors_in_events_and_in_answers() {
    let error = protobuf::encode_watch_event("ERROR", &status_object(410, "Expired")).unwrap();
    let log = services([answer([listed_messages(), error].concat())]).await;
    assert!(log.events[3].contains("relist") && log.events[3].contains("410 Expired (too old)"), "{log:?}");

    let refused = protobuf::encode(&status_object(503, "Timeout")).unwrap();
    let log = services([Answer::Protobuf(503, vec![Step::Send(refused)])]).await;
    assert!(log.events[0].contains("503 Timeout (too old)"), "a load balancer would say nothing: {log:?}");
}
