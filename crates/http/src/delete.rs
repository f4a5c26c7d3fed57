//! DELETE: its options, from the body or the query, and its answer.

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use http::{Request, StatusCode};
use portolan_api::{
    Api, ApiError, DeleteOptions, Effect, FieldError, Preconditions, Propagation, WriteResult,
};
use portolan_schema::json::{Object, Value, json, type_name};

use super::{
    Answer, Arriving,
    accept::Content,
    bad_option, body, list,
    present::{self, Presenter},
    query::Query,
    route::{Collection, Named},
    write_options,
};

/// Maximum number of objects of a collection that are deleted concurrently.
const AT_ONCE: usize = 16;

/// The options that a client gives.
#[derive(Debug, Default)]
struct Asked {
    options: DeleteOptions,
    orphan_dependents: Option<bool>,
}

/// Deletes one object.
pub(super) async fn named(
    api: &Api,
    request: Request<Arriving>,
    query: &Query,
    presenter: &Presenter,
    named: &Named,
) -> Result<Answer, ApiError> {
    let asked = Asked::read(request, query).await?;
    let outcome = api.delete_with(named.target(), &asked.options).await?;
    answer(presenter, named, outcome, asked.orphan_dependents)
}

/// Deletes the objects that a list with the same query returns, and answers with that list. Stops at the first object
/// that cannot be deleted.
pub(super) async fn collection(
    api: &Api,
    request: Request<Arriving>,
    query: &Query,
    collection: &Collection,
) -> Result<Answer, ApiError> {
    let presenter = Presenter::new(request.headers(), query, collection.resource, Content::List)?;
    let options = Asked::read(request, query).await?.options;
    let (metadata, objects) = list::page(api, query, collection).await?;
    let deletions: Vec<BoxFuture<'_, _>> =
        objects.iter().map(|object| one_of(api, Named::of(collection, object), &options).boxed()).collect();
    let gone: Vec<Option<Bytes>> = stream::iter(deletions).buffered(AT_ONCE).try_collect().await?;
    presenter.list(&metadata, gone.into_iter().flatten().collect()).await
}

async fn one_of(api: &Api, named: Named, options: &DeleteOptions) -> Result<Option<Bytes>, ApiError> {
    match api.delete_with(named.target(), options).await {
        Ok(outcome) => Ok(Some(outcome.object)),
        Err(ApiError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Asked {
    /// Combines the options of the body and of the query, which must not contradict each other.
    async fn read(request: Request<Arriving>, query: &Query) -> Result<Self, ApiError> {
        let dry_run = write_options(request.headers(), query)?.dry_run;
        let in_query = Self::from_query(query)?;
        let mut asked = match body::read_delete_options(request).await? {
            Some(body) => Self::from_body(&body)?.and(&in_query)?,
            None => in_query,
        };
        asked.options.dry_run |= dry_run;
        Ok(asked)
    }

    fn from_body(body: &Object) -> Result<Self, ApiError> {
        if let Some(kind) = text(body, "kind", "kind")?.filter(|kind| !["", "DeleteOptions"].contains(kind)) {
            let (field, url) = ("kind", "DeleteOptions".to_owned());
            return Err(ApiError::Mismatch { field, body: kind.to_owned(), url });
        }
        let mut asked = Self::new(
            text(body, "propagationPolicy", "propagationPolicy")?,
            flag(body, "orphanDependents")?,
        )?;
        // No resource here is stopped gracefully, so the number has no effect. It must be a number, though.
        match body.get("gracePeriodSeconds") {
            Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {}
            None | Some(Value::Null) => {}
            Some(other) => return Err(wrong_type("gracePeriodSeconds", "an integer", other)),
        }
        // Every stored object can be read, so this has no effect, either.
        flag(body, "ignoreStoreReadErrorWithClusterBreakingPotential")?;
        for value in list(body, "dryRun")? {
            match value {
                Value::String(value) if value == "All" => asked.options.dry_run = true,
                Value::String(value) => return Err(bad_option("dryRun", value, &["All"])),
                other => return Err(wrong_type("dryRun[]", "a string", other)),
            }
        }
        match body.get("preconditions") {
            None | Some(Value::Null) => {}
            Some(Value::Object(given)) => {
                let owned = |key, field| text(given, key, field).map(|text| text.map(str::to_owned));
                asked.options.preconditions = Preconditions {
                    uid: owned("uid", "preconditions.uid")?,
                    resource_version: owned("resourceVersion", "preconditions.resourceVersion")?,
                };
            }
            Some(other) => return Err(wrong_type("preconditions", "an object", other)),
        }
        Ok(asked)
    }

    fn from_query(query: &Query) -> Result<Self, ApiError> {
        Self::new(query.get("propagationPolicy"), query.optional_flag("orphanDependents")?)
    }

    /// Adds the options of the query.
    fn and(mut self, query: &Self) -> Result<Self, ApiError> {
        match (self.options.propagation, query.options.propagation) {
            (Some(body), Some(query)) if body != query => {
                let why = "the body and the query ask for different policies";
                return Err(invalid(FieldError::invalid("propagationPolicy", format!("{query:?}"), why)));
            }
            (body, query) => self.options.propagation = body.or(query),
        }
        self.orphan_dependents = self.orphan_dependents.or(query.orphan_dependents);
        Ok(self)
    }

    fn new(policy: Option<&str>, orphan_dependents: Option<bool>) -> Result<Self, ApiError> {
        let propagation = match (policy, orphan_dependents) {
            (Some(_), Some(_)) => {
                let why = "orphanDependents and propagationPolicy cannot both be set";
                return Err(invalid(FieldError::invalid("propagationPolicy", policy, why)));
            }
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            (Some(other), None) => {
                let supported = ["Background", "Foreground", "Orphan"];
                return Err(invalid(FieldError::not_supported("propagationPolicy", other, &supported)));
            }
        };
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        Ok(Self { options, orphan_dependents })
    }
}

fn invalid(error: FieldError) -> ApiError {
    ApiError::InvalidOptions { what: "DeleteOptions", error }
}

fn flag(body: &Object, field: &str) -> Result<Option<bool>, ApiError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(wrong_type(field, "true or false", other)),
    }
}

/// Returns the text at `key`, an empty one included. `field` is its path for errors. An empty precondition differs
/// from none: no object meets it.
fn text<'a>(object: &'a Object, key: &str, field: &str) -> Result<Option<&'a str>, ApiError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(wrong_type(field, "a string", other)),
    }
}

fn list<'a>(body: &'a Object, field: &str) -> Result<&'a [Value], ApiError> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(elements)) => Ok(elements),
        Some(other) => Err(wrong_type(field, "a list", other)),
    }
}

fn wrong_type(field: &str, expected: &'static str, got: &Value) -> ApiError {
    ApiError::WrongType { field: field.to_owned(), expected, got: type_name(got) }
}

/// Answers with the object if it still exists or if its kind returns deleted objects, and with a Status otherwise.
fn answer(
    presenter: &Presenter,
    named: &Named,
    outcome: WriteResult,
    orphan_dependents: Option<bool>,
) -> Result<Answer, ApiError> {
    let info = named.resource.info();
    if outcome.effect != Effect::Deleted {
        // Upstream does this for this deprecated option only.
        let code = if orphan_dependents == Some(false) { StatusCode::ACCEPTED } else { StatusCode::OK };
        return presenter.object(code, outcome.object);
    }
    if info.delete_returns_object {
        return presenter.object(StatusCode::OK, outcome.object);
    }
    let object: Value = serde_json::from_slice(&outcome.object).unwrap_or_default();
    let uid = object.pointer("/metadata/uid").cloned().unwrap_or_default();
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": named.name, "group": info.group, "kind": info.plural, "uid": uid},
    });
    Ok(present::document(StatusCode::OK, presenter.format.encoding, false, &status))
}
