//! A scripted API server without sockets, so that tests can pause the clock.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http_body_util::StreamBody;
use portolan_model::Event;
use portolan_model::object::Kind;
use tokio::sync::Notify;
use tokio::time::{self, Instant};
use tower::BoxError;

use crate::client::deadline;
use crate::counts::KindCounts;
use crate::driver::Driver;
use crate::request::Collection;
use crate::timing::Timing;
use crate::watch_event::WatchEvent;

/// How the fake server answers one request.
pub(super) enum Answer {
    /// No connection can be made.
    Refuse,
    /// There is never an answer.
    Never,
    /// Status code, optional `Retry-After`, and the steps of the body.
    Say(u16, Option<&'static str>, Vec<Step>),
    /// Status code and the steps of a body in protobuf.
    Protobuf(u16, Vec<Step>),
    /// Different answers to a list and to a watch.
    ByQuery { list: Box<Answer>, watch: Box<Answer> },
}

impl Answer {
    fn to(self, is_list: bool) -> Self {
        match self {
            Self::ByQuery { list, watch } => *if is_list { list } else { watch },
            answer => answer,
        }
    }
}

/// One step of a body.
pub(super) enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// No further data, and no end of the body.
    Hang,
    /// The connection breaks.
    Break,
}

/// A 200 with the body in one chunk.
pub(super) fn ok(body: impl Into<Vec<u8>>) -> Answer {
    Answer::Say(200, None, vec![Step::Send(body.into())])
}

/// A 200 with the body in steps.
pub(super) fn steps(steps: impl Into<Vec<Step>>) -> Answer {
    Answer::Say(200, None, steps.into())
}

/// A refusal without a body.
pub(super) fn status(code: u16) -> Answer {
    Answer::Say(code, None, Vec::new())
}

/// What happened until the driver sent one request more than the script has answers.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The URI of each request.
    pub(super) requests: Vec<String>,
    /// Time from the first request to each request.
    pub(super) times: Vec<Duration>,
    /// Events as text; see [`render`].
    pub(super) events: Vec<String>,
    /// Number of events in each batch.
    pub(super) batches: Vec<usize>,
    pub(super) restarts: u64,
    pub(super) lists: u64,
    pub(super) unreadable: u64,
    /// When each `WatchEvent::Heard` came.
    pub(super) heard_at: Vec<Instant>,
}

struct Script {
    answers: VecDeque<Answer>,
    requests: Vec<(String, Instant)>,
}

/// Runs one reflector of this kind against the script.
pub(super) async fn play(kind: Kind, answers: impl IntoIterator<Item = Answer>) -> Log {
    play_with(Timing::default(), kind, answers).await
}

/// Like [`play`], with other timeouts.
pub(super) async fn play_with(timing: Timing, kind: Kind, answers: impl IntoIterator<Item = Answer>) -> Log {
    play_counting(&KindCounts::default(), timing, kind, answers).await
}

/// Like [`play_with`], with counters that an earlier run may have used.
pub(super) async fn play_counting(
    counts: &KindCounts,
    timing: Timing,
    kind: Kind,
    answers: impl IntoIterator<Item = Answer>,
) -> Log {
    let script =
        Arc::new(Mutex::new(Script { answers: answers.into_iter().collect(), requests: Vec::new() }));
    let done = Arc::new(Notify::new());
    let client = client(Arc::clone(&script), Arc::clone(&done));
    let log = RefCell::new(Log::default());
    let sink = RefCell::new(|event| render(&mut log.borrow_mut(), event));
    let driver = Driver::new(&client, Collection::new(kind, "node-1"), timing, &sink, counts);
    tokio::select! {
        never = driver.run() => match never {},
        () = done.notified() => {}
    }
    let mut log = log.take();
    let script = script.lock().unwrap();
    let start = script.requests[0].1;
    log.times = script.requests.iter().map(|(_, at)| *at - start).collect();
    log.requests = script.requests.iter().map(|(uri, _)| uri.clone()).collect();
    log.restarts = counts.restarts.load(Ordering::Relaxed);
    log.lists = counts.lists.load(Ordering::Relaxed);
    log.unreadable = counts.unreadable.load(Ordering::Relaxed);
    log
}

fn client(script: Arc<Mutex<Script>>, done: Arc<Notify>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let answer = {
            let mut script = script.lock().unwrap();
            script.requests.push((request.uri().to_string(), Instant::now()));
            let is_list = !request.uri().to_string().contains("&resourceVersion=");
            script.answers.pop_front().map(|answer| answer.to(is_list))
        };
        let done = Arc::clone(&done);
        let within = deadline::of(request.extensions());
        let answer = async move {
            match answer {
                Some(Answer::Refuse) => {
                    Err(BoxError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)))
                }
                Some(Answer::Say(code, retry_after, steps)) => Ok(say(code, retry_after, steps)),
                Some(Answer::Protobuf(code, steps)) => {
                    let mut answer = say(code, None, steps);
                    let content_type =
                        HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch");
                    answer.headers_mut().insert(CONTENT_TYPE, content_type);
                    Ok(answer)
                }
                Some(Answer::ByQuery { .. }) => unreachable!("one of the two was taken"),
                Some(Answer::Never) => Ok(std::future::pending::<Response>().await),
                None => {
                    done.notify_one();
                    Ok(std::future::pending().await)
                }
            }
        };
        deadline::in_time(within, answer)
    });
    kube::Client::new(service, "default")
}

type Response =
    http::Response<std::pin::Pin<Box<dyn http_body::Body<Data = Bytes, Error = BoxError> + Send>>>;

fn say(code: u16, retry_after: Option<&'static str>, steps: Vec<Step>) -> Response {
    let body = stream::unfold(steps.into_iter(), |mut steps| async move {
        loop {
            match steps.next()? {
                Step::Send(bytes) => return Some((Ok(http_body::Frame::data(Bytes::from(bytes))), steps)),
                Step::Wait(duration) => time::sleep(duration).await,
                Step::Hang => std::future::pending::<()>().await,
                Step::Break => return Some((Err(BoxError::from("reset by peer")), steps)),
            }
        }
    });
    let mut response = http::Response::builder().status(code);
    if let Some(retry_after) = retry_after {
        response = response.header("Retry-After", retry_after);
    }
    response.body(Box::pin(StreamBody::new(body)) as _).unwrap()
}

/// Writes an event as a line: `start`, `end`, `+key@version`, `-key`, `restart …`, `fault …`.
fn render(log: &mut Log, event: WatchEvent) {
    match event {
        WatchEvent::Objects(events) => {
            log.batches.push(events.len());
            log.events.extend(events.iter().map(object));
        }
        WatchEvent::Heard(_) => log.heard_at.push(Instant::now()),
        WatchEvent::EmptyListHeld { known, .. } => log.events.push(format!("held: {known}")),
        WatchEvent::Restarted { reason, relist, .. } => {
            let how = if relist { "relist" } else { "resume" };
            log.events.push(format!("{how}: {reason}"));
        }
        WatchEvent::Fault { error, .. } => log.events.push(format!("fault: {error}")),
    }
}

fn object(event: &Event) -> String {
    match event {
        Event::Service(object) => format!("+{}@{}", object.key, object.resource_version),
        Event::EndpointSlice(object) => format!("+{}@{}", object.key, object.resource_version),
        Event::Node(object) => format!("+{}@{}", object.key, object.resource_version),
        Event::ServiceCidr(object) => format!("+{}@{}", object.key, object.resource_version),
        Event::ServiceDeleted(key)
        | Event::EndpointSliceDeleted(key)
        | Event::NodeDeleted(key)
        | Event::ServiceCidrDeleted(key) => format!("-{key}"),
        Event::ListStart(_) => "start".to_owned(),
        Event::ListEnd(_) => "end".to_owned(),
        Event::ServiceCidrsUnavailable => "unavailable".to_owned(),
    }
}
