//! DELETE: its options, from the body or the query, and what it answers.

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use http::{Request, StatusCode};
use serde_json::{Value, json};

use super::{
    Answer, Arriving,
    accept::Content,
    bad_option, body, list,
    present::{self, Presenter},
    query::Query,
    route::{Collection, Named},
    write_options,
};
use crate::{
    api::{Api, DeleteOptions, Effect, Outcome, Preconditions, Propagation},
    error::{ApiError, FieldError},
    json::{self as fields, Object, type_name},
};

/// Objects of a collection that are being deleted at once.
const AT_ONCE: usize = 16;

/// Options as a client gives them.
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

/// Deletes what a list with the same query would show, and answers with that list; stops at the first that cannot be
/// deleted.
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
    /// From the body; from the query if the body is empty.
    async fn read(request: Request<Arriving>, query: &Query) -> Result<Self, ApiError> {
        let dry_run = write_options(request.headers(), query)?.dry_run;
        let mut asked = match body::read_delete_options(request).await? {
            Some(body) => Self::from_body(&body)?,
            None => Self::from_query(query)?,
        };
        asked.options.dry_run |= dry_run;
        Ok(asked)
    }

    fn from_body(body: &Object) -> Result<Self, ApiError> {
        if let Some(kind) = fields::text(body, "kind").filter(|kind| *kind != "DeleteOptions") {
            let (field, url) = ("kind", "DeleteOptions".to_owned());
            return Err(ApiError::Mismatch { field, body: kind.to_owned(), url });
        }
        let mut asked = Self::new(fields::text(body, "propagationPolicy"), flag(body, "orphanDependents")?)?;
        for value in fields::texts(body, "dryRun") {
            match value {
                "All" => asked.options.dry_run = true,
                other => return Err(bad_option("dryRun", other, &["All"])),
            }
        }
        if let Some(given) = fields::object(body, "preconditions") {
            let text = |key| fields::text(given, key).map(str::to_owned);
            asked.options.preconditions =
                Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
        }
        Ok(asked)
    }

    fn from_query(query: &Query) -> Result<Self, ApiError> {
        let policy = query.get("propagationPolicy").filter(|text| !text.is_empty());
        // Nothing here is stopped gracefully, so the number says nothing; it must be one, though.
        query.number("gracePeriodSeconds")?;
        Self::new(policy, query.optional_flag("orphanDependents")?)
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
        Some(other) => Err(ApiError::WrongType {
            field: field.to_owned(),
            expected: "true or false",
            got: type_name(other),
        }),
    }
}

/// The object while it is still there, and where its kind answers so; a Status otherwise.
fn answer(
    presenter: &Presenter,
    named: &Named,
    outcome: Outcome,
    orphan_dependents: Option<bool>,
) -> Result<Answer, ApiError> {
    let info = named.resource.info();
    if outcome.effect != Effect::Deleted {
        // As upstream does for this old option alone.
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
