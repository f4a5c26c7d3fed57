//! Lists: the revision, the page, and the answer, which is streamed from the stored bytes.

mod token;

use std::{sync::Arc, time::Duration};

use portolan_api::{Api, ApiError, FieldError, Selector};
use portolan_schema::{
    Resource,
    json::{Value, json},
};
use portolan_store::{Scope, Store, StoredObject};

use self::token::Token;
use super::{Answer, present::Presenter, query::Query, route::Collection, selector};

/// How long a read waits for a revision that is not published yet (upstream: 3 s).
const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// Answers a list request.
pub(super) async fn answer(
    api: &Api,
    presenter: &Presenter,
    query: &Query,
    collection: &Collection,
) -> Result<Answer, ApiError> {
    let (metadata, objects) = page(api, query, collection).await?;
    presenter.stored_list(&metadata, &objects).await
}

/// Returns the objects that a list request with the same query returns, and the metadata of that list.
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

/// The minimum revision of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Freshness {
    /// Any state is sufficient.
    #[default]
    Any,
    /// At least as new as the request.
    Latest,
    /// At least this revision.
    Revision(u64),
    /// A revision that a server of the same store has returned. If it was not, the store reports it as expired.
    Given(u64),
}

impl Freshness {
    /// Returns the meaning of `resourceVersion` for a read without further parameters: absent, 0, or a revision.
    pub(super) fn of(revision: Option<u64>) -> Self {
        match revision {
            None => Self::Latest,
            Some(0) => Self::Any,
            Some(revision) => Self::Revision(revision),
        }
    }
}

/// Waits until the published state is new enough. Returns an error for a [`Freshness::Revision`] that is not
/// published within [`FUTURE_WAIT`].
pub(super) async fn fresh_enough(
    store: &dyn Store,
    resource: Resource,
    freshness: Freshness,
) -> Result<(), ApiError> {
    match freshness {
        Freshness::Any => Ok(()),
        Freshness::Latest => {
            store.refresh_for_reads().await?;
            Ok(())
        }
        Freshness::Revision(revision) => wait_for(store, resource, revision).await,
        Freshness::Given(revision) => catch_up(store, revision).await,
    }
}

/// Refreshes the store if the revision is not published, because another server of the same store may have returned
/// it a moment ago.
async fn catch_up(store: &dyn Store, revision: u64) -> Result<(), ApiError> {
    if store.revision() < revision {
        store.refresh_for_reads().await?;
    }
    Ok(())
}

async fn wait_for(store: &dyn Store, resource: Resource, revision: u64) -> Result<(), ApiError> {
    // The last write may concern another resource, whose signal does not fire here.
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

pub(super) fn expired(error: portolan_store::Expired) -> ApiError {
    ApiError::Expired { requested: error.requested, oldest: error.oldest, continue_token: None }
}

/// The requested part of a list and its revision.
#[derive(Debug, Default)]
struct Page {
    /// The exact revision to read; `None` for the current one.
    at: Option<u64>,
    freshness: Freshness,
    after: Option<String>,
    limit: Option<usize>,
    /// True if the request has a continue token.
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
        // For resourceVersion 0, upstream ignores the limit and returns the whole list (`computeListLimit` of its
        // storage). Proxies request such a list with a limit when they start. Each further page would use up one of
        // the few requests that they allow themselves.
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
        // A page at a known revision needs nothing newer. A page at the current revision must be up to date.
        let freshness = revision.map_or(Freshness::Latest, Freshness::Given);
        Ok(Self { at: revision, after: Some(after), limit, continued: true, freshness })
    }

    /// Reads the page. Returns the list's metadata and the objects.
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

    /// Returns the error for a page at an expired revision. Its token lets the client continue at the current
    /// revision.
    fn expired(&self, error: portolan_store::Expired) -> ApiError {
        let token = self.after.clone().filter(|_| self.continued);
        let token = token.map(|after| Token { revision: None, after }.encode());
        ApiError::Expired { requested: error.requested, oldest: error.oldest, continue_token: token }
    }
}

fn refused(error: FieldError) -> ApiError {
    ApiError::InvalidOptions { what: "ListOptions", error }
}
