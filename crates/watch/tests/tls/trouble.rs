//! The watch against an API server in trouble.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_model::Event;
use portolan_model::object::Kind;
use portolan_watch::{
    BackoffLimits, Client, ClientSettings, RequestDone, RestartReason, Timing, WatchEvent, Watcher, connect,
};
use tokio::sync::mpsc;
use tokio::time;

use crate::certificates::Authority;
use crate::home::Home;
use crate::server::{Answer, DEADLINE, Server};

const SERVICES: &str = "/api/v1/services";
fn object(event: &str, name: &str, version: u32) -> String {
    format!(
        r#"{{"type":"{event}","object":{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"{version}"}}}}}}
"#
    )
}

fn end_mark(version: u32) -> String {
    format!(
        r#"{{"type":"BOOKMARK","object":{{"kind":"Service","metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}
"#
    )
}

const GONE: &str = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}
"#;

/// A watch that a server closes is reported, unless it was open for a second, as it may be on a busy machine. This is tested on
/// paused time.
const EARLY: &str = "restart the API server closed the watch early";

/// The time limit for requests that are to be given up.
const IMPATIENT: Duration = Duration::from_millis(400);

fn page() -> Answer {
    Answer::Say(200, "", r#"{"kind":"ServiceList","metadata":{"resourceVersion":"9"},"items":[]}"#.to_owned())
}

/// Returns the events of the watch of Services as text, until `sought` has come the given number of times.
async fn play(
    server: &Server,
    home: &Home,
    authority: &Authority,
    sought: &str,
    times: usize,
) -> Vec<String> {
    let client = home.client(server, authority, "tokenFile: token").await;
    play_with(DEADLINE, client, (sought, times), |_| ()).await
}

/// Like [`play`], with `patience` as the limit of every wait. `after` is called with each event.
async fn play_with(
    patience: Duration,
    client: Client,
    (sought, times): (&str, usize),
    mut after: impl FnMut(&str),
) -> Vec<String> {
    let soon = Duration::from_millis(1);
    let backoff =
        BackoffLimits { initial: soon, other_initial: soon, refused: soon, ..BackoffLimits::default() };
    let timing = Timing { backoff, stream_pause: patience, answer: patience, ..Timing::default() };
    let (sender, mut events) = mpsc::unbounded_channel();
    let watcher = Watcher::new(client, "node-1").with_timing(timing);
    let counts = watcher.counts();
    let run = watcher.run(move |event| sender.send(event).unwrap());
    let mut seen = Vec::new();
    let collect = async {
        while seen.iter().filter(|event: &&String| event.starts_with(sought)).count() < times {
            let before = seen.len();
            tell(events.recv().await.unwrap(), &mut seen);
            seen[before..].iter().for_each(|reported| after(reported));
        }
    };
    tokio::select! {
        never = run => match never {},
        outcome = time::timeout(DEADLINE, collect) => outcome.expect("the event never came"),
    }
    let restarts = seen.iter().filter(|event| event.starts_with("restart")).count() as u64;
    let counted = counts.of(Kind::Service).restarts.load(std::sync::atomic::Ordering::Relaxed);
    assert!(counted >= restarts, "{counted} {seen:?}");
    seen
}

fn tell(event: WatchEvent, seen: &mut Vec<String>) {
    match event {
        WatchEvent::Objects(events) => seen.extend(events.iter().filter_map(|event| match event {
            Event::Service(object) => Some(format!("+{}", object.key)),
            Event::ServiceDeleted(key) => Some(format!("-{key}")),
            Event::ListStart(Kind::Service) => Some("start".to_owned()),
            Event::ListEnd(Kind::Service) => Some("end".to_owned()),
            _ => None,
        })),
        WatchEvent::Restarted { kind: Kind::Service, reason, relist, .. } => {
            let reason = match reason {
                RestartReason::Refused(status) => status.code.to_string(),
                RestartReason::ErrorEvent(status) => format!("event {}", status.code),
                RestartReason::Broken(_) => "broken".to_owned(),
                RestartReason::Silent(_) => "silent".to_owned(),
                other => other.to_string(),
            };
            seen.push(format!("restart {reason}{}", if relist { ", relist" } else { "" }));
        }
        WatchEvent::Fault { error, .. } => seen.push(format!("fault {error}")),
        WatchEvent::Restarted { .. } | WatchEvent::Heard(_) => {}
        WatchEvent::EmptyListHeld { known, .. } => seen.push(format!("held {known}")),
    }
}

async fn start() -> (Server, Home, Authority) {
    let authority = Authority::new("ca");
    let server = Server::start(authority.server(None)).await;
    let home = Home::new();
    home.write("token", "t");
    (server, home, authority)
}

#[tokio::test]
async fn an_expired_version_is_read_anew() {
    let (server, home, authority) = start().await;
    let feed = server.stream(SERVICES);
    feed.send(object("ADDED", "a", 1) + &end_mark(5) + GONE).unwrap();
    let again = server.stream(SERVICES);
    again.send(object("ADDED", "b", 6) + &end_mark(7)).unwrap();
    let seen = play(&server, &home, &authority, "end", 2).await;
    assert_eq!(seen, ["start", "+ns/a", "end", "restart event 410, relist", "start", "+ns/b", "end"]);
}

#[tokio::test]
async fn a_busy_server_is_left_alone_as_long_as_it_asks() {
    let (server, home, authority) = start().await;
    let busy = || Answer::Say(429, "Retry-After: 1\r\n", r#"{"kind":"Status","code":429}"#.to_owned());
    server.answer(SERVICES, [busy()]);
    server.stream(SERVICES).send(end_mark(5)).unwrap();
    let seen = play(&server, &home, &authority, "end", 1).await;
    assert_eq!(seen, ["restart 429", "start", "end"]);
    let requests = server.requests_for(SERVICES);
    let wait = requests[1].at - requests[0].at;
    // The longest wait is tested on paused time.
    assert!(wait >= Duration::from_secs(1), "{wait:?}");
}

#[tokio::test]
async fn a_server_that_fails_and_recovers() {
    let (server, home, authority) = start().await;
    let feed = server.stream(SERVICES);
    feed.send(end_mark(5)).unwrap();
    drop(feed);
    let fails = || Answer::Say(500, "", r#"{"kind":"Status","code":500}"#.to_owned());
    server.answer(SERVICES, [fails(), fails()]);
    server.stream(SERVICES).send(object("ADDED", "a", 6)).unwrap();
    let mut seen = play(&server, &home, &authority, "+", 1).await;
    seen.retain(|reported| reported != EARLY);
    assert_eq!(seen, ["start", "end", "restart 500", "restart 500", "+ns/a"]);
    let last = server.requests_for(SERVICES).pop().unwrap();
    assert!(last.line.contains("resourceVersion=5&"), "{}", last.line);
}

#[tokio::test]
async fn half_an_object_is_no_object() {
    let (server, home, authority) = start().await;
    let feed = server.stream(SERVICES);
    feed.send(end_mark(5) + &object("ADDED", "a", 6)).unwrap();
    feed.send(object("MODIFIED", "a", 7)[..40].to_owned()).unwrap();
    drop(feed);
    let half = object("ADDED", "b", 7);
    server.answer(SERVICES, [Answer::Cut(half[..half.len() / 2].to_owned())]);
    server.stream(SERVICES).send(object("ADDED", "c", 7)).unwrap();
    let seen = play(&server, &home, &authority, "+ns/c", 1).await;
    let truncated = "restart the answer ended in the middle of an object";
    assert_eq!(seen, ["start", "end", "+ns/a", truncated, "restart broken", "+ns/c"]);
    let lines: Vec<String> = server.requests_for(SERVICES).into_iter().map(|request| request.line).collect();
    assert!(lines[1..].iter().all(|line| line.contains("resourceVersion=6&")), "{lines:?}");
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_in_time() {
    let (server, home, authority) = start().await;
    server.answer(SERVICES, [Answer::Hang]);
    let pausing = server.stream(SERVICES);
    pausing.send(object("ADDED", "a", 1)).unwrap();
    // On a busy machine the time limit may end before the connection is made.
    server.answer(SERVICES, std::iter::repeat_with(page).take(50));
    let done = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&done);
    let settings = ClientSettings {
        on_request: Some(Arc::new(move |request: &RequestDone| {
            observed.lock().unwrap().push(request.clone());
        })),
        ..home.settings(&server, &authority, "tokenFile: token", "")
    };
    let client = connect(&settings).await.unwrap();
    let seen = play_with(IMPATIENT, client, ("end", 1), |_| ()).await;
    assert_eq!(seen[0], "restart silent, relist", "no answer at all: {seen:?}");
    assert!(seen.contains(&"end".to_owned()), "{seen:?}");
    let done = done.lock().unwrap();
    let given_up: Vec<&RequestDone> = done.iter().filter(|request| request.duration >= IMPATIENT).collect();
    assert!(given_up.iter().any(|request| request.code_label() == "<error>"), "{done:?}");
}

/// The wait for a credential does not count as silence of the API server.
#[tokio::test]
async fn a_slow_plug_in_is_waited_for() {
    let (server, home, authority) = start().await;
    server.stream(SERVICES).send(end_mark(5)).unwrap();
    server.answer(SERVICES, std::iter::repeat_with(page).take(50));
    let credential =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t"}}"#;
    home.write("credential", credential);
    let user = format!(
        "exec: {{command: /bin/sh, args: ['-c', 'sleep 1; cat {}'],
          apiVersion: client.authentication.k8s.io/v1}}",
        home.path("credential").display()
    );
    let client = home.client(&server, &authority, &user).await;
    // If the time limit applied, the plug-in would be killed and started again, for ever.
    let seen = play_with(IMPATIENT, client, ("end", 1), |_| ()).await;
    assert_eq!(seen.last().unwrap(), "end", "{seen:?}");
}

/// The server's certificate changes first, so that no connection can be made. Then its authority is written.
#[tokio::test]
async fn new_certificates_need_no_new_list() {
    let (server, home, authority) = start().await;
    let feed = server.stream(SERVICES);
    feed.send(object("ADDED", "a", 4) + &end_mark(5)).unwrap();
    server.answer(SERVICES, [Answer::Cut(object("ADDED", "b", 6))]);
    server.stream(SERVICES).send(object("ADDED", "c", 7)).unwrap();
    let client = home.client(&server, &authority, "tokenFile: token").await;
    let second = Authority::new("second");
    let second_tls = second.server(None);
    let mut feed = Some(feed);
    let mut seen = play_with(DEADLINE, client, ("+ns/c", 1), |reported| {
        if reported == "end" {
            server.state().tls = Arc::clone(&second_tls);
            feed = None;
        } else if reported.contains("UnknownIssuer") {
            home.write("ca.crt", &second.pem);
        }
    })
    .await;
    seen.retain(|reported| reported != EARLY);
    assert_eq!(seen[..5], ["start", "+ns/a", "end", "+ns/b", "restart broken"]);
    assert!(
        seen[5].contains("UnknownIssuer") && seen.iter().all(|reported| !reported.contains("relist")),
        "{seen:?}"
    );
    let requests = server.requests_for(SERVICES);
    let lines: Vec<&str> = requests.iter().map(|request| &*request.line).collect();
    assert!(lines[1].contains("resourceVersion=5&") && lines[2].contains("resourceVersion=6&"), "{lines:?}");
    assert_eq!(lines.len(), 3);
    assert_ne!(requests[1].connection, requests[2].connection);
}

#[tokio::test]
async fn a_token_that_the_server_no_longer_takes() {
    let (server, home, authority) = start().await;
    server.state().token = Some("t2".to_owned());
    server.stream(SERVICES).send(end_mark(5)).unwrap();
    let path = home.path("token");
    let mut refusals = 0;
    server.state().on_unauthorized = Some(Box::new(move || {
        refusals += 1;
        if refusals == 8 {
            std::fs::write(&path, "t2").unwrap();
        }
    }));
    let seen = play(&server, &home, &authority, "end", 1).await;
    assert_eq!(seen.last().unwrap(), "end");
    assert!(seen[..seen.len() - 2].iter().all(|event| event == "restart 401"), "{seen:?}");
}

#[tokio::test]
async fn the_reason_of_a_failed_request_includes_its_root_cause() {
    let (server, home, authority) = start().await;
    let reported = async |user: &str| {
        let client = home.client(&server, &authority, user).await;
        let (sender, mut reasons) = mpsc::unbounded_channel();
        let run = Watcher::new(client, "node-1").run(move |event| {
            if let WatchEvent::Restarted { reason, .. } = event {
                sender.send(reason).unwrap();
            }
        });
        tokio::select! {
            never = run => match never {},
            reason = time::timeout(DEADLINE, reasons.recv()) => reason.unwrap().unwrap(),
        }
    };
    let missing = "exec: {command: /nonexistent/plugin, apiVersion: client.authentication.k8s.io/v1, \
        installHint: get it}";
    let reason = reported(missing).await;
    assert!(matches!(reason, RestartReason::Credentials(_)), "{reason}");
    let text = reason.to_string();
    assert!(text.starts_with("no credentials: exec plug-in ") && text.ends_with("; get it"), "{text}");
    assert_eq!(text.matches("/nonexistent/plugin").count(), 1, "{text}");

    server.state().tls = Authority::new("other").server(None);
    let reason = reported("tokenFile: token").await;
    assert!(matches!(reason, RestartReason::Unreachable(_)), "{reason}");
    assert!(reason.to_string().contains("UnknownIssuer"), "{reason}");
}
