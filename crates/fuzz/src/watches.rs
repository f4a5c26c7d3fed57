//! Answers to the four watchers of the node agent: any status, any body, cut anywhere, broken off anywhere. There is no panic,
//! and objects are removed at the end of a list only if that list had a start.
//!
//! The input is a list of answers, separated by bytes 0. Each has a byte for the status and the end of the body, a byte for the
//! length of its chunks, and the body.

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

type Body = StreamBody<stream::Iter<std::vec::IntoIter<Result<http_body::Frame<Bytes>, BoxError>>>>;

/// The statuses, of which 200 is the most likely.
const STATUSES: [u16; 16] = [200, 200, 200, 200, 200, 200, 200, 200, 200, 400, 401, 403, 404, 410, 429, 503];
/// In the first byte of an answer: the connection breaks after the body.
const BREAKS: u8 = 1 << 4;
/// In the first byte of an answer: the body is in protobuf. Each of its bytes 1 and 2 stands for a byte 0 and 1.
const PROTOBUF: u8 = 1 << 5;
/// An answer in more chunks than this is cut.
const MOST_CHUNKS: usize = 64;

/// Runs the watchers until they ask for more answers than there are.
pub(crate) fn run(bytes: &[u8]) {
    let answers: VecDeque<Vec<u8>> = bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    // With a paused clock, a delay passes as soon as nothing else is to be done.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let done = Arc::new(Notify::new());
        let watcher = Watcher::new(client(answers, Arc::clone(&done)), "node");
        let consumer = RefCell::new(Consumer::default());
        tokio::select! {
            never = watcher.run(|event| consumer.borrow_mut().take(event)) => match never {},
            () = done.notified() => {}
        }
    });
}

/// Returns a client that answers from the list, and says when it is at its end.
fn client(answers: VecDeque<Vec<u8>>, done: Arc<Notify>) -> Client {
    let answers = Arc::new(Mutex::new(answers));
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let answer = answers.lock().unwrap().pop_front();
        let done = Arc::clone(&done);
        async move {
            if let Some(answer) = answer {
                return answered(&answer);
            }
            done.notify_one();
            std::future::pending().await
        }
    });
    Client::new(service, "default")
}

fn answered(answer: &[u8]) -> Result<http::Response<Body>, BoxError> {
    let (how, length, body) = match answer {
        [how, length, body @ ..] => (*how, *length, body),
        _ => return Err(BoxError::from("connection refused")),
    };
    let is_protobuf = how & PROTOBUF != 0;
    let shifted = |byte: &u8| if is_protobuf && matches!(byte, 1 | 2) { byte - 1 } else { *byte };
    let body: Vec<u8> = body.iter().map(shifted).collect();
    let chunks = body.chunks(usize::from(length).max(1)).take(MOST_CHUNKS);
    let mut frames: Vec<Result<_, BoxError>> =
        chunks.map(|chunk| Ok(http_body::Frame::data(Bytes::copy_from_slice(chunk)))).collect();
    if how & BREAKS != 0 {
        frames.push(Err("reset by peer".into()));
    }
    let status = STATUSES.get(usize::from(how % BREAKS)).copied().unwrap_or(200);
    let content_type = if is_protobuf { "application/vnd.kubernetes.protobuf" } else { "application/json" };
    let answer = http::Response::builder().status(status).header("Content-Type", content_type);
    Ok(answer.body(StreamBody::new(stream::iter(frames)))?)
}

/// What the agent does with the events.
struct Consumer {
    catalog: Catalog,
    /// The collections of which a list has started and not ended.
    listing: BTreeSet<Kind>,
}

impl Default for Consumer {
    fn default() -> Self {
        Self { catalog: Catalog::new("node"), listing: BTreeSet::new() }
    }
}

impl Consumer {
    fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Objects(events) => events.into_iter().for_each(|event| self.object(event)),
            WatchEvent::Restarted { reason, .. } => assert!(!reason.to_string().is_empty()),
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
