//! Lists: which revision, which page, and the answer streamed from the stored bytes.

pub(super) mod stream;
mod token;

use std::{sync::Arc, time::Duration};

use crate::json::{Value, json};

use self::token::Token;
use super::{Answer, present::Presenter, query::Query, route::Collection, selector};
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
pub(super) async fn answer(
    api: &Api,
    presenter: &Presenter,
    query: &Query,
    collection: &Collection,
) -> Result<Answer, ApiError> {
    let (metadata, objects) = page(api, query, collection).await?;
    presenter.list(&metadata, objects.iter().map(|object| object.body().clone()).collect()).await
}

/// The objects that a list request with the same query would answer with, and the metadata of that list.
pub(super) async fn page(
    api: &Api,
    query: &Query,
    collection: &Collection,
) -> Result<(Value, Vec<Arc<StoredObject>>), ApiError> {
    let selector = selector(query, collection)?;
    let page = Page::parse(query)?;
    fresh_enough(&**api.store(), collection.resource.stored(), page.freshness).await?;
    page.read(api, collection, &selector)
}

/// How new a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Freshness {
    /// Any state will do.
    #[default]
    Any,
    /// Not older than the moment of the request.
    Latest,
    /// Not older than a revision.
    Revision(u64),
    /// A revision that some server of the same store gave out. One that never was is for the store to say.
    Given(u64),
}

impl Freshness {
    /// What `resourceVersion` means to a read unless something else is said: absent, 0, or a revision.
    pub(super) fn of(revision: Option<u64>) -> Self {
        match revision {
            None => Self::Latest,
            Some(0) => Self::Any,
            Some(revision) => Self::Revision(revision),
        }
    }
}

/// Waits until what is published is as new as it must be, but not for ever.
pub(super) async fn fresh_enough(
    store: &dyn Store,
    resource: Resource,
    freshness: Freshness,
) -> Result<(), ApiError> {
    match freshness {
        Freshness::Any => Ok(()),
        Freshness::Latest => {
            store.refresh().await?;
            Ok(())
        }
        Freshness::Revision(revision) => wait_for(store, resource, revision).await,
        Freshness::Given(revision) => catch_up(store, revision).await,
    }
}

/// Another server of the same store may have given the revision out a moment ago.
async fn catch_up(store: &dyn Store, revision: u64) -> Result<(), ApiError> {
    if store.revision() < revision {
        store.refresh().await?;
    }
    Ok(())
}

async fn wait_for(store: &dyn Store, resource: Resource, revision: u64) -> Result<(), ApiError> {
    // The last write may have been of another resource, whose signal is not waited for.
    catch_up(store, revision).await?;
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
    freshness: Freshness,
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
        // Upstream answers a list of any state whole (`computeListLimit` of its storage). Proxies ask for one with a limit
        // when they start, and each further page would cost them of the few requests that they allow themselves.
        let limit = limit.filter(|_| revision != Some(0));
        let page = Self { limit, freshness: Freshness::of(revision), ..Self::default() };
        let exact_only = "is forbidden for resourceVersion 0 and unless resourceVersion is given";
        let match_field = "resourceVersionMatch";
        match (revision, matching) {
            (None, Some(_)) | (Some(0), Some("Exact")) => {
                Err(refused(FieldError::forbidden(match_field, exact_only)))
            }
            (None | Some(0), None) | (Some(0), Some("NotOlderThan")) => Ok(page),
            (Some(_), None) if limit.is_some() => Ok(Self { at: revision, ..page }),
            (Some(_), None | Some("NotOlderThan")) => Ok(page),
            (Some(_), Some("Exact")) => Ok(Self { at: revision, ..page }),
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
        // A page of a known revision needs nothing newer; one that goes on at the present does.
        let freshness = revision.map_or(Freshness::Latest, Freshness::Given);
        Ok(Self { at: revision, after: Some(after), limit, continued: true, freshness })
    }

    /// The list's metadata and the objects of the page.
    fn read(
        self,
        api: &Api,
        collection: &Collection,
        selector: &Selector,
    ) -> Result<(Value, Vec<Arc<StoredObject>>), ApiError> {
        let key = selector.key(collection.resource, collection.namespace.as_deref());
        let scope = Scope { after: self.after.as_deref(), key: key.as_deref(), ..collection.scope() };
        let snapshot = api.store().snapshot(collection.resource.stored(), &scope, self.at);
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
        Ok((metadata, page))
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
