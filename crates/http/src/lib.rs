//! Requests and answers of the API server: maps paths to operations, and their outcomes to answers.
//!
//! Owns: routes, discovery and OpenAPI documents, the media types and limits of bodies, lists, watches, tables, the
//! media types of patches, gzip of large answers, and the attributes of a request for authorization.
//!
//! In: requests whose bodies are still arriving. Out: answers; those of lists and watches are sent straight from the
//! stored bytes.
//!
//! Must not know: connections, TLS, how clients authenticate and which roles there are, controllers. It contains no
//! rules of the API: these are in `portolan-api`. Questions about the client are answered from its [`Subject`], which
//! the caller provides.
//!
//! The path of a read: a snapshot of the store -> bytes on the wire. The path of a write: an object is decoded within
//! a memory budget, and passed to [`Api`].

mod accept;
mod age;
mod arriving;
mod attributes;
mod body;
mod chunk;
mod compress;
mod delete;
mod discovery;
mod duplicates;
mod list;
mod list_body;
mod patch;
mod present;
mod protobuf;
mod query;
mod review;
mod route;
mod table;
mod text_list;
mod watch;

use std::{collections::HashSet, convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use portolan_api::{
    Api, ApiError, Change, Effect, FieldError, FieldManager, Kept, Part, Refused, Selector, WriteOptions,
    WriteResult,
};
use portolan_schema::{
    json::{self, Object},
    resource::Storage,
    shape::FieldValidation,
};
use portolan_web::accepts_gzip;

use self::{
    accept::{Accept, Content, Encoding},
    present::Presenter,
    query::Query,
    route::{Collection, Named, Route},
};
pub use self::{
    arriving::{Arriving, Count, Leftover, arriving},
    attributes::{Attributes, Target},
    review::{Rule, Subject},
};

/// Maximum number of bytes of all warnings of an answer (apiserver, `endpoints/filters/warning.go`). Clients limit
/// the size of a head.
const WARNINGS_LIMIT: usize = 4 << 10;
/// Maximum number of warnings of an answer. Python's clients refuse a head with more than a hundred lines.
const MOST_WARNINGS: usize = 50;

/// An answer of the API server.
pub type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Answers requests from one [`Api`].
#[derive(Debug, Clone)]
pub struct Handler {
    api: Arc<Api>,
    /// Becomes true when the server stops. Watches end then.
    stopping: tokio::sync::watch::Receiver<bool>,
    /// Events that watches share.
    frames: Arc<watch::SharedFrames>,
    /// Memory budget for the bodies of requests.
    bodies: body::Budget,
}

impl Handler {
    /// Creates a handler. `stopping` becomes true when the server stops. `body_bytes` is the memory limit for the
    /// bodies of all concurrent requests.
    pub fn new(api: Arc<Api>, stopping: tokio::sync::watch::Receiver<bool>, body_bytes: usize) -> Self {
        Self { api, stopping, frames: Arc::default(), bodies: body::Budget::new(body_bytes) }
    }

    /// Answers one request. Converts errors into Status objects. `subject` is the client.
    pub async fn answer(&self, mut request: Request<Arriving>, subject: &dyn Subject) -> Answer {
        // Held until the request is done, because what was decoded lives as long.
        let share = Arc::new(self.bodies.share());
        request.extensions_mut().insert(Arc::clone(&share));
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let encoding = Accept::of(request.headers()).encoding().unwrap_or(Encoding::Json);
        let packed = accepts_gzip(request.headers());
        let answer = self.dispatch(request, subject).await.unwrap_or_else(|refused| {
            tracing::debug!(%method, path, code = refused.error.code(), error = %refused, "refused");
            refusal(&refused, encoding)
        });
        drop(share);
        tracing::trace!(%method, path, code = answer.status().as_u16(), "answered");
        if packed { compress::pack(answer) } else { answer }
    }

    async fn dispatch(&self, request: Request<Arriving>, subject: &dyn Subject) -> Result<Answer, Refused> {
        let route = Route::parse(request.uri().path())?;
        let deprecated = route.resource().and_then(|resource| resource.info().deprecated);
        let mut answered = self.follow(route, request, subject).await;
        if let Some(deprecated) = deprecated.map(str::to_owned) {
            match &mut answered {
                Ok(answer) => warn(answer.headers_mut(), &[deprecated]),
                Err(refused) => refused.warnings.insert(0, deprecated),
            }
        }
        answered
    }

    async fn follow(
        &self,
        route: Route,
        request: Request<Arriving>,
        subject: &dyn Subject,
    ) -> Result<Answer, Refused> {
        let path = request.uri().path();
        let is_reading = *request.method() == Method::GET;
        // Otherwise a path without its name would refer to the whole collection, and one without its subresource to
        // the object.
        if path.len() > 1 && path.ends_with('/') && !is_reading {
            return Err(route::empty_segment(path).into());
        }
        let query = Query::parse(request.uri().query().unwrap_or_default())?;
        if !is_reading && !matches!((&route, request.method()), (Route::Collection(_), &Method::DELETE)) {
            query.check_unselective()?;
        }
        match route {
            Route::Document(document) => {
                only(request.method(), &Method::GET)?;
                Ok(document.answer(request.headers(), &query)?)
            }
            Route::Collection(Collection { resource, namespace: None, watch: false })
                if resource.info().storage == Storage::Answered =>
            {
                review::answer(request, &query, resource, subject).await
            }
            Route::Collection(collection) => self.collection(request, &query, &collection).await,
            Route::Named(named) => self.named(request, &query, &named).await,
        }
    }

    async fn collection(
        &self,
        request: Request<Arriving>,
        query: &Query,
        collection: &Collection,
    ) -> Result<Answer, Refused> {
        let (headers, info) = (request.headers(), collection.resource.info());
        // A collection across all namespaces can only be read.
        let is_one_place = info.namespaced == collection.namespace.is_some();
        match *request.method() {
            Method::GET if !info.serves("list") => Err(not_allowed(request.method()).into()),
            Method::GET if collection.watch || query.flag("watch")? => {
                Ok(self.watch(headers, query, collection, None)?)
            }
            _ if collection.watch => Err(not_allowed(request.method()).into()),
            Method::GET => {
                let presenter = Presenter::new(headers, query, collection.resource, Content::List)?;
                Ok(list::answer(&self.api, &presenter, query, collection).await?)
            }
            Method::POST if info.writable && is_one_place => {
                let presenter = Presenter::new(headers, query, collection.resource, Content::Object)?;
                let options = write_options(headers, query)?;
                let validation = options.field_validation;
                let (object, remarks) = body::read_object(request, collection.resource, validation).await?;
                if let Err(error) = check_new(&object) {
                    return Err(Refused { error, warnings: remarks });
                }
                let namespace = collection.namespace.as_deref().unwrap_or_default();
                let created = self.api.create_with_warnings(collection.resource, namespace, object, options);
                written(&presenter, created.await, remarks)
            }
            Method::DELETE if info.collection_deletable && is_one_place => {
                Ok(delete::collection(&self.api, request, query, collection).await?)
            }
            _ => Err(not_allowed(request.method()).into()),
        }
    }

    async fn named(
        &self,
        request: Request<Arriving>,
        query: &Query,
        named: &Named,
    ) -> Result<Answer, Refused> {
        let reading = *request.method() == Method::GET && named.part != Part::Finalize;
        if reading && !named.resource.info().serves("get") {
            return Err(not_allowed(request.method()).into());
        }
        // As in Kubernetes, a subresource is not watched: `watch` in the query of a get has no effect.
        if reading && named.part == Part::Main && (named.watch || query.flag("watch")?) {
            return Ok(self.watch(request.headers(), query, &named.collection(), Some(&named.name))?);
        }
        let presenter = Presenter::new(request.headers(), query, named.resource, Content::Object)?;
        let target = named.target();
        if reading {
            let freshness = list::Freshness::of(query.number("resourceVersion")?);
            list::fresh_enough(&**self.api.store(), target.resource.stored(), freshness).await?;
            let object = self.api.store().get(target.resource.stored(), &target.key());
            let object = object.ok_or_else(|| target.not_found())?;
            return Ok(presenter.object(StatusCode::OK, object.body().clone())?);
        }
        let putting = *request.method() == Method::PUT;
        if !named.resource.info().writable || named.watch || named.part == Part::Finalize && !putting {
            return Err(not_allowed(request.method()).into());
        }
        let options = write_options(request.headers(), query)?;
        match *request.method() {
            Method::PUT => {
                let validation = options.field_validation;
                let (object, remarks) = body::read_object(request, named.resource, validation).await?;
                let change = Change::Replace(Kept::new(object));
                let changed = self.api.change_with_warnings(target, named.part, change, options);
                written(&presenter, changed.await, remarks)
            }
            Method::PATCH => {
                let validation = options.field_validation;
                let (change, remarks) = patch::read(request, target.resource, query, validation).await?;
                let changed = self.api.change_with_warnings(target, named.part, change, options);
                written(&presenter, changed.await, remarks)
            }
            Method::DELETE if named.part == Part::Main => {
                Ok(delete::named(&self.api, request, query, &presenter, named).await?)
            }
            _ => Err(not_allowed(request.method()).into()),
        }
    }

    fn watch(
        &self,
        headers: &HeaderMap,
        query: &Query,
        collection: &Collection,
        name: Option<&str>,
    ) -> Result<Answer, ApiError> {
        let presenter = Presenter::new(headers, query, collection.resource, Content::Watch)?;
        let (stopping, frames) = (self.stopping.clone(), Arc::clone(&self.frames));
        watch::answer(&self.api, stopping, presenter, frames, query, collection, name)
    }
}

fn selector(query: &Query, collection: &Collection) -> Result<Selector, ApiError> {
    let text = |name| query.get(name).unwrap_or_default();
    Selector::parse(collection.resource, text("labelSelector"), text("fieldSelector"))
}

/// Refuses a new object with a resourceVersion, because it was read from a server. Upstream refuses it, too, but as
/// an internal error (apiserver, `storage/errors.go`).
fn check_new(object: &Object) -> Result<(), ApiError> {
    let metadata = json::object(object, "metadata");
    let revision = metadata.and_then(|metadata| json::text(metadata, "resourceVersion"));
    match revision {
        None | Some("0") => Ok(()),
        Some(_) => Err(ApiError::WrongType {
            field: "metadata.resourceVersion".to_owned(),
            expected: "nothing in an object to be created",
            got: "the version of a stored one",
        }),
    }
}

fn write_options(headers: &HeaderMap, query: &Query) -> Result<WriteOptions, ApiError> {
    // `Query` has refused other values.
    let dry_run = query.get("dryRun").is_some();
    let field_validation = match query.get("fieldValidation") {
        Some("Ignore") => FieldValidation::Ignore,
        Some("Strict") => FieldValidation::Strict,
        _ => FieldValidation::Warn,
    };
    let field_manager = field_manager(headers, query)?;
    let namespace_must_exist = true;
    Ok(WriteOptions { dry_run, field_validation, namespace_must_exist, field_manager, keeps_owners: false })
}

/// Returns the field manager of a write: the name that the client gives, or else the name of its program.
fn field_manager(headers: &HeaderMap, query: &Query) -> Result<FieldManager, ApiError> {
    if let Some(name) = query.get("fieldManager").filter(|name| !name.is_empty()) {
        return FieldManager::new(name).map_err(|rule| ApiError::InvalidOptions {
            what: "Options",
            error: FieldError::invalid("fieldManager", name, rule),
        });
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    Ok(FieldManager::of_user_agent(agent.unwrap_or_default()))
}

fn bad_option(field: &str, value: &str, supported: &[&str]) -> ApiError {
    ApiError::InvalidOptions { what: "Options", error: FieldError::not_supported(field, value, supported) }
}

/// Answers a write. `remarks` are warnings about the text of the body, which precede those about the object.
fn written(
    presenter: &Presenter,
    outcome: Result<WriteResult, Refused>,
    remarks: Vec<String>,
) -> Result<Answer, Refused> {
    let mut outcome = match outcome {
        Ok(outcome) => outcome,
        Err(mut refused) => {
            refused.warnings.splice(0..0, remarks);
            return Err(refused);
        }
    };
    outcome.warnings.splice(0..0, remarks);
    let code = if outcome.effect == Effect::Created { StatusCode::CREATED } else { StatusCode::OK };
    let mut answer = presenter.object(code, outcome.object)?;
    warn(answer.headers_mut(), &outcome.warnings);
    Ok(answer)
}

/// Adds a header for each different warning, as long as the whole warning fits within the limits.
fn warn(headers: &mut HeaderMap, warnings: &[String]) {
    let (mut seen, mut room) = (HashSet::new(), WARNINGS_LIMIT);
    let once = warnings.iter().filter(|warning| seen.insert(warning.as_str()));
    for warning in once.take(MOST_WARNINGS) {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        let Some(left) = room.checked_sub(quoted.len()) else { return };
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            headers.append(header::WARNING, value);
            room = left;
        }
    }
}

fn refusal(refused: &Refused, encoding: Encoding) -> Answer {
    let error = &refused.error;
    let code = StatusCode::from_u16(error.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = present::document(code, encoding, false, &error.to_status());
    if let Some(seconds) = error.retry_after_seconds() {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    warn(answer.headers_mut(), &refused.warnings);
    answer
}

fn only(method: &Method, allowed: &Method) -> Result<(), ApiError> {
    if method == allowed { Ok(()) } else { Err(not_allowed(method)) }
}

fn not_allowed(method: &Method) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_sent_once_and_within_bounds() {
        let mut headers = HeaderMap::new();
        let given = ["a \"b\"".to_owned(), "a \"b\"".to_owned(), "line\nbreak".to_owned(), "c".to_owned()];
        warn(&mut headers, &given);
        let sent: Vec<_> = headers.get_all(header::WARNING).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(sent, [&br#"299 - "a \"b\"""#[..], br#"299 - "c""#]);
        let mut headers = HeaderMap::new();
        warn(&mut headers, &(0..1000).map(|number| format!("number {number:06}")).collect::<Vec<_>>());
        assert_eq!(headers.get_all(header::WARNING).iter().count(), MOST_WARNINGS);
        let mut headers = HeaderMap::new();
        warn(&mut headers, &["a", "b", "c"].map(|text| text.repeat(2000)));
        assert_eq!(headers.get_all(header::WARNING).iter().count(), 2);
    }
}
