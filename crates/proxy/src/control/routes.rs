//! The table of paths.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode};
use portolan_node::metrics::SERVICE_METRICS;
use portolan_web::{self as web, Answer, PLAIN, Promise, Reply};
use serde::Serialize;

use super::{Control, RequestPermit, explain, page, rates, service_metrics, services, snapshot, state};
use crate::paths::{EXPLAIN, PAGE, RATES, SERVICES, SNAPSHOT, STATE};

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entrance {
    /// The control socket, which only its owner and its group may use.
    Socket,
    /// The metrics port.
    Metrics,
}

/// A path with its answer.
struct Route {
    method: Method,
    path: &'static str,
    /// Whether the metrics port serves it, too. Only for what changes nothing and has no secrets.
    is_on_metrics: bool,
    answer: Make,
}

/// Makes an answer. It keeps the place until its work is done, also if the client has gone.
type Make = fn(Arc<Control>, Request<Bytes>, RequestPermit) -> Promise;

const fn get(path: &'static str, answer: Make) -> Route {
    Route { method: Method::GET, path, is_on_metrics: true, answer }
}

/// A question in the body. Only for the control socket.
const fn post(path: &'static str, answer: Make) -> Route {
    Route { method: Method::POST, path, is_on_metrics: false, answer }
}

const fn get_on_socket(path: &'static str, answer: Make) -> Route {
    Route { method: Method::GET, path, is_on_metrics: false, answer }
}

/// All paths.
static ROUTES: [Route; 7] = [
    get(PAGE, |_, request, _| Box::pin(std::future::ready(page::answer(&request)))),
    get(STATE, |control, request, place| Box::pin(state::answer(control, request, place))),
    get(SERVICES, |control, request, place| Box::pin(services::answer(control, request, place))),
    get(RATES, |control, request, place| Box::pin(rates::answer(control, request, place))),
    get(SERVICE_METRICS, |control, request, place| {
        Box::pin(service_metrics::answer(control, request, place))
    }),
    post(EXPLAIN, |control, request, place| Box::pin(explain::answer(control, request, place))),
    // Its size is that of all objects, and it names the API server.
    get_on_socket(SNAPSHOT, |control, request, place| Box::pin(snapshot::answer(control, request, place))),
];

/// Returns the reply to a request. `None` for an unknown path.
pub(crate) fn reply(control: &Arc<Control>, request: &Request<Bytes>, entrance: Entrance) -> Option<Reply> {
    let route = ROUTES.iter().find(|route| route.path == request.uri().path());
    let route = route.filter(|route| entrance == Entrance::Socket || route.is_on_metrics)?;
    let is_head = route.method == Method::GET && request.method() == Method::HEAD;
    if request.method() != route.method && !is_head {
        let text = format!("use {} here\n", route.method);
        return Some(web::answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, text).into());
    }
    let (control, request) = (Arc::clone(control), request.clone());
    Some(Reply::Later(Box::pin(async move {
        let Some(place) = control.place() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; ask again");
        };
        (route.answer)(Arc::clone(&control), request, place).await
    })))
}

/// Returns an answer with one line of text.
pub(super) fn plain(status: StatusCode, text: &str) -> Answer {
    web::answer(status, PLAIN, format!("{text}\n"))
}

/// Makes a document on a thread for blocking work, and returns it as JSON, compressed if the client asks for that. The
/// thread frees the place: it goes on if the client hangs up.
pub(super) async fn document<T: Serialize>(
    request: &Request<Bytes>,
    place: RequestPermit,
    make: impl FnOnce() -> T + Send + 'static,
) -> Answer {
    let headers = request.headers().clone();
    let answering = crate::blocking::run(move || {
        let _place = place;
        json(&headers, &make())
    });
    answering.await.unwrap_or_else(|error| failed(&error))
}

/// Returns a value as JSON, compressed if the client asks for that. Takes a moment for a long one.
pub(super) fn json<T: Serialize>(headers: &HeaderMap, value: &T) -> Answer {
    match serde_json::to_string(value) {
        Ok(text) => {
            let answer = web::answer(StatusCode::OK, web::JSON, Bytes::new());
            web::compressed(headers, answer, text)
        }
        Err(error) => failed(&error.into()),
    }
}

/// Returns the answer if the work for one has failed.
pub(super) fn failed(error: &anyhow::Error) -> Answer {
    plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use portolan_node::health::Health;
    use tokio::sync::oneshot;

    use super::super::AT_ONCE;
    use super::*;
    use crate::modes::RelayCounters;

    #[tokio::test]
    async fn a_client_that_hangs_up_frees_no_place_before_its_document_is_made() {
        let health = Arc::new(Health::new(Duration::MAX));
        let (control, _questions) = Control::new("v1".into(), health, RelayCounters::default());
        let (started, starts) = oneshot::channel();
        let (finish, finishes) = mpsc::channel::<()>();
        let make = move || {
            let _ = started.send(());
            finishes.recv().is_ok()
        };
        let request = Request::new(Bytes::new());
        let answering = document(&request, control.place().expect("a place"), make);
        tokio::select! {
            _ = answering => panic!("the document is not made yet"),
            started = starts => started.expect("the work starts"),
        }
        assert_eq!(control.at_once.available_permits(), AT_ONCE - 1, "the work goes on");
        finish.send(()).expect("the work goes on");
        let all = u32::try_from(AT_ONCE).expect("a small number");
        let places = control.at_once.acquire_many(all).await.expect("the end of the work frees the place");
        assert!(control.place().is_none(), "{places:?}");
    }
}
