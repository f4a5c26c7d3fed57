//! The table of paths.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use portolan_web::{self as web, Answer, PLAIN, Promise, Reply};
use serde::Serialize;

use super::{Control, services, state};

/// The path of the state document.
pub(crate) const STATE: &str = "/debug/portolan/state";
/// The path of the pages of Services.
pub(crate) const SERVICES: &str = "/debug/portolan/services";

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
    answer: fn(Arc<Control>, Request<Bytes>) -> Promise,
}

const fn get(path: &'static str, answer: fn(Arc<Control>, Request<Bytes>) -> Promise) -> Route {
    Route { method: Method::GET, path, is_on_metrics: true, answer }
}

/// All paths.
static ROUTES: [Route; 2] = [
    get(STATE, |control, request| Box::pin(state::answer(control, request))),
    get(SERVICES, |control, request| Box::pin(services::answer(control, request))),
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
        let Some(_place) = control.place() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once; ask again");
        };
        (route.answer)(Arc::clone(&control), request).await
    })))
}

/// Returns an answer with one line of text.
pub(super) fn plain(status: StatusCode, text: &str) -> Answer {
    web::answer(status, PLAIN, format!("{text}\n"))
}

/// Makes a document on a thread for blocking work, and returns it as JSON, compressed if the client asks for that.
pub(super) async fn document<T: Serialize>(
    request: &Request<Bytes>,
    make: impl FnOnce() -> T + Send + 'static,
) -> Answer {
    let headers = request.headers().clone();
    let answering = crate::blocking::run(move || -> anyhow::Result<Answer> {
        let text = serde_json::to_string(&make())?;
        let answer = web::answer(StatusCode::OK, web::JSON, Bytes::new());
        Ok(web::compressed(&headers, answer, text))
    });
    let answer = answering.await.flatten();
    answer.unwrap_or_else(|error| plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error:#}")))
}
