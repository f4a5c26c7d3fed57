//! Lists: which revision, which page, and the answer streamed from the stored bytes.

mod stream;
mod token;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::BodyExt;
use serde_json::json;

use self::{stream::ListBody, token::Token};
use super::{Answer, query::Query, route::Collection, selector};
use crate::{
    api::Api,
    error::{ApiError, FieldError},
    resource::Resource,
    selector::Selector,
    store::{Scope, Store, StoredObject},
};

/// How long a read waits for a revision that has not happened yet (upstream: 3 s).
const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// Answers a list request.
pub(super) async fn answer(api: &Api, query: &Query, collection: &Collection) -> Result<Answer, ApiError> {
    let selector = selector(query, collection)?;
    let page = Page::parse(query)?;
    if let Some(revision) = page.not_older_than {
        wait_for(&**api.store(), collection.resource, revision).await?;
    }
    page.read(api, collection, &selector)
}

/// The objects that match now.
pub(super) fn current(
    api: &Api,
    collection: &Collection,
    selector: &Selector,
) -> Result<Vec<Arc<StoredObject>>, ApiError> {
    let snapshot = api.store().snapshot(collection.resource, &collection.scope(), None).map_err(expired)?;
    Ok(snapshot.objects.into_iter().filter(|object| selector.matches(object)).collect())
}

/// A complete list as an answer.
pub(super) fn whole(resource: Resource, revision: u64, objects: Vec<Bytes>) -> Answer {
    let info = resource.info();
    let metadata = json!({"resourceVersion": revision.to_string()});
    stream(ListBody::new(&format!("{}List", info.kind), info.api_version, &metadata, objects))
}

/// Waits until the store has reached `revision`, but not for ever.
pub(super) async fn wait_for(store: &dyn Store, resource: Resource, revision: u64) -> Result<(), ApiError> {
    let mut signal = store.subscribe(resource);
    let reached = async {
        while store.revision() < revision {
            if signal.changed().await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(FUTURE_WAIT, reached).await;
    let current = store.revision();
    if current < revision { Err(ApiError::FutureRevision { requested: revision, current }) } else { Ok(()) }
}

pub(super) fn expired(error: crate::store::Expired) -> ApiError {
    ApiError::Expired { requested: error.requested, oldest: error.oldest, continue_token: None }
}

/// What part of which revision was asked for.
#[derive(Debug, Default)]
struct Page {
    /// The exact revision to read, if not the current one.
    at: Option<u64>,
    not_older_than: Option<u64>,
    after: Option<String>,
    limit: Option<usize>,
    /// Whether `at` comes from a continue token.
    continued: bool,
}

impl Page {
    fn parse(query: &Query) -> Result<Self, ApiError> {
        let revision = query.number("resourceVersion")?;
        let limit = query.number("limit")?.filter(|limit| *limit > 0);
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let matching = query.get("resourceVersionMatch").filter(|text| !text.is_empty());
        if query.get("sendInitialEvents").is_some_and(|text| !text.is_empty()) {
            return Err(refused(FieldError::forbidden("sendInitialEvents", "is for watches only")));
        }
        if let Some(token) = query.get("continue").filter(|text| !text.is_empty()) {
            return Self::continued(token, limit, revision, matching);
        }
        let page = Self { limit, ..Self::default() };
        let exact_only = "is forbidden for resourceVersion 0 and unless resourceVersion is given";
        let match_field = "resourceVersionMatch";
        match (revision, matching) {
            (None, Some(_)) | (Some(0), Some("Exact")) => {
                Err(refused(FieldError::forbidden(match_field, exact_only)))
            }
            (None | Some(0), None) | (Some(0), Some("NotOlderThan")) => Ok(page),
            (Some(_), None) if limit.is_some() => Ok(Self { at: revision, not_older_than: revision, ..page }),
            (Some(_), None | Some("NotOlderThan")) => Ok(Self { not_older_than: revision, ..page }),
            (Some(_), Some("Exact")) => Ok(Self { at: revision, not_older_than: revision, ..page }),
            (_, Some(other)) => {
                Err(refused(FieldError::not_supported(match_field, other, &["Exact", "NotOlderThan"])))
            }
        }
    }

    fn continued(
        token: &str,
        limit: Option<usize>,
        revision: Option<u64>,
        matching: Option<&str>,
    ) -> Result<Self, ApiError> {
        if matching.is_some() {
            let why = "is forbidden together with continue";
            return Err(refused(FieldError::forbidden("resourceVersionMatch", why)));
        }
        if let Some(revision) = revision.filter(|revision| *revision > 0) {
            let reason = "may not be given together with continue";
            return Err(ApiError::BadParameter {
                parameter: "resourceVersion",
                value: revision.to_string(),
                reason,
            });
        }
        let Token { revision, after } = Token::decode(token).ok_or_else(|| ApiError::BadParameter {
            parameter: "continue",
            value: token.to_owned(),
            reason: "not a token that this server gave out",
        })?;
        Ok(Self { at: revision, after: Some(after), limit, continued: true, not_older_than: None })
    }

    fn read(self, api: &Api, collection: &Collection, selector: &Selector) -> Result<Answer, ApiError> {
        let scope = Scope { after: self.after.as_deref(), ..collection.scope() };
        let snapshot = api.store().snapshot(collection.resource, &scope, self.at);
        let snapshot = snapshot.map_err(|error| self.expired(error))?;
        let mut rest = snapshot.objects.into_iter();
        let limit = self.limit.unwrap_or(usize::MAX);
        let page: Vec<Arc<StoredObject>> =
            rest.by_ref().filter(|object| selector.matches(object)).take(limit).collect();
        let mut metadata = json!({"resourceVersion": snapshot.revision.to_string()});
        let remaining = rest.len();
        let more = page.len() == limit && rest.any(|object| selector.matches(&object));
        if let (true, Some(last), Some(metadata)) = (more, page.last(), metadata.as_object_mut()) {
            let token = Token { revision: Some(snapshot.revision), after: last.key().to_owned() };
            metadata.insert("continue".to_owned(), token.encode().into());
            if selector.is_everything() {
                metadata.insert("remainingItemCount".to_owned(), remaining.into());
            }
        }
        let info = collection.resource.info();
        let objects = page.into_iter().map(|object| object.body().clone()).collect();
        Ok(stream(ListBody::new(&format!("{}List", info.kind), info.api_version, &metadata, objects)))
    }

    /// A page of a revision that is gone: the client may go on at the current one.
    fn expired(&self, error: crate::store::Expired) -> ApiError {
        let token = self.after.clone().filter(|_| self.continued);
        let token = token.map(|after| Token { revision: None, after }.encode());
        ApiError::Expired { requested: error.requested, oldest: error.oldest, continue_token: token }
    }
}

fn refused(error: FieldError) -> ApiError {
    ApiError::InvalidOptions { what: "ListOptions", error }
}

fn stream(body: ListBody) -> Answer {
    let mut answer = Response::new(body.boxed_unsync());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
