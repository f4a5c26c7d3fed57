//! Answers to the four watchers of the node agent: any status, any body, cut anywhere, broken off anywhere. There is no panic,
//! and objects are removed at the end of a list only if that list had a start.
//!
//! Choices make answers of an API server that knows what was asked, with odd values. Any other input is a list of answers, separated
//! by bytes 0. Each has a byte for the status and the end of the body, a byte for the length of its chunks, and the body.

mod server;

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use portolan_model::object::Kind;
use portolan_model::{Catalog, Event};
use portolan_watch::{Client, WatchEvent, Watcher};
use tokio::sync::Notify;
use tower::BoxError;

use crate::script::Script;

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<http_body::Frame<Bytes>, BoxError>>>>;

/// The statuses, of which 200 is the most likely.
const STATUSES: [u16; 16] = [200, 200, 200, 200, 200, 200, 200, 200, 200, 400, 401, 403, 404, 410, 429, 503];
/// In the first byte of an answer: the connection breaks after the body.
const BREAKS: u8 = 1 << 4;
/// In the first byte of an answer: the body is in protobuf. Each of its bytes 1 and 2 stands for a byte 0 and 1.
const PROTOBUF: u8 = 1 << 5;
/// Chunks of an answer are made longer so that there are no more of them.
const MOST_CHUNKS: usize = 64;

/// Runs the watchers until they ask for more answers than there are.
pub(crate) fn run(bytes: &[u8]) {
    consume(bytes);
}

fn consume(bytes: &[u8]) -> Consumer {
    let (answer, answers): (Answer, VecDeque<Vec<u8>>) = match Script::of(bytes) {
        Some(mut script) => (server::answer, server::choices(&mut script).into()),
        None => (answered, bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()),
    };
    // With a paused clock, a delay passes as soon as nothing else is to be done.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let done = Arc::new(Notify::new());
        let watcher = Watcher::new(client(answer, answers, Arc::clone(&done)), "n1");
        let consumer = RefCell::new(Consumer::default());
        tokio::select! {
            never = watcher.run(|event| consumer.borrow_mut().take(event)) => match never {},
            () = done.notified() => {}
        }
        consumer.into_inner()
    })
}

/// Returns the answer to a request for a path with a query, which is chosen by some bytes.
type Answer = fn(&str, &[u8]) -> Result<http::Response<Body>, BoxError>;

/// Returns a client that answers from the list, and says when it is at its end.
fn client(make: Answer, answers: VecDeque<Vec<u8>>, done: Arc<Notify>) -> Client {
    let answers = Arc::new(Mutex::new(answers));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let answer = answers.lock().unwrap().pop_front();
        let done = Arc::clone(&done);
        async move {
            if let Some(answer) = answer {
                return make(&request.uri().to_string(), &answer);
            }
            done.notify_one();
            std::future::pending().await
        }
    });
    Client::new(service, "default")
}

/// Returns an answer whose bytes are all chosen.
fn answered(_: &str, answer: &[u8]) -> Result<http::Response<Body>, BoxError> {
    let (how, length, body) = match answer {
        [how, length, body @ ..] => (*how, *length, body),
        _ => return Err(BoxError::from("connection refused")),
    };
    let is_protobuf = how & PROTOBUF != 0;
    let shifted = |byte: &u8| if is_protobuf && matches!(byte, 1 | 2) { byte - 1 } else { *byte };
    let body: Vec<u8> = body.iter().map(shifted).collect();
    let status = STATUSES.get(usize::from(how % BREAKS)).copied().unwrap_or(200);
    response(status, is_protobuf, &body, length, how & BREAKS != 0)
}

/// Returns an answer whose body comes in chunks of `length` bytes, and then breaks off if `breaks` is true.
fn response(
    status: u16,
    is_protobuf: bool,
    body: &[u8],
    length: u8,
    breaks: bool,
) -> Result<http::Response<Body>, BoxError> {
    let least = body.len().div_ceil(MOST_CHUNKS);
    let chunks = body.chunks(usize::from(length).max(least).max(1));
    let mut frames: Vec<Result<_, BoxError>> =
        chunks.map(|chunk| Ok(http_body::Frame::data(Bytes::copy_from_slice(chunk)))).collect();
    if breaks {
        frames.push(Err("reset by peer".into()));
    }
    let content_type = if is_protobuf { "application/vnd.kubernetes.protobuf" } else { "application/json" };
    let answer = http::Response::builder().status(status).header("Content-Type", content_type);
    Ok(answer.body(StreamBody::new(stream::iter(frames)))?)
}

/// What the agent does with the events.
struct Consumer {
    catalog: Catalog,
    /// The collections of which a list has started and not ended.
    listing: BTreeSet<Kind>,
    restarts: usize,
}

impl Default for Consumer {
    fn default() -> Self {
        Self { catalog: Catalog::new("n1"), listing: BTreeSet::new(), restarts: 0 }
    }
}

impl Consumer {
    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Objects(events) => events.into_iter().for_each(|event| self.object(event)),
            WatchEvent::Restarted { reason, .. } => {
                self.restarts += 1;
                assert!(!reason.to_string().is_empty());
            }
            WatchEvent::Fault { error, .. } => assert!(!error.to_string().is_empty()),
            WatchEvent::Heard(_) | WatchEvent::EmptyListHeld { .. } => {}
        }
    }

    fn object(&mut self, event: Event) {
        match &event {
            // A second start restarts the list.
            Event::ListStart(kind) => {
                self.listing.insert(*kind);
            }
            Event::ListEnd(kind) => {
                assert!(self.listing.remove(kind), "{kind}: a list ends that did not start");
            }
            _ => {}
        }
        drop(self.catalog.apply(event));
        drop(self.catalog.take_changes());
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Family;

    use super::*;

    #[test]
    fn answers_with_choices_lead_to_service_ports() {
        let (mut forwardings, mut restarts) = (0, 0);
        for seed in 0..64 {
            let consumer = consume(&crate::script::random(seed, 1024));
            forwardings += consumer.catalog.forwardings(Family::Ipv4).count();
            restarts += consumer.restarts;
        }
        assert!(forwardings > 16 && restarts > 64, "{forwardings} {restarts}");
    }
}
