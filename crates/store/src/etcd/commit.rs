//! A transaction as etcd takes it, and what its answer means. Pure.

use std::sync::Arc;

use portolan_schema::Resource;
use tonic::Code;

use super::{
    client::Failure,
    layout::{self, Layout, head_value, mod_revision, position, revision, signed, unsigned},
    messages::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, Request, RequestOp, Target, TxnRequest,
        TxnResponse,
    },
};
use crate::{CommitError, Draft, Step, StoredObject, Transaction};

/// The most conditions, and the most operations, that etcd takes in one transaction unless it is started with another
/// `--max-txn-ops`.
const MOST_OPERATIONS: usize = 128;

/// Checks what etcd cannot: that positions fit, and that a revision is wholly the object's, not only etcd's part of it.
pub(super) fn check(
    transaction: &Transaction,
    published: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
) -> Result<(), CommitError> {
    let writes = transaction.steps.iter().filter(|step| !matches!(step, Step::Require { .. })).count();
    // One more is the head.
    let operations = transaction.steps.len().max(writes.saturating_add(1));
    if operations > MOST_OPERATIONS {
        return Err(CommitError::TooLarge(format!(
            "it has {operations} operations, etcd takes {MOST_OPERATIONS} (--max-txn-ops)"
        )));
    }
    for (index, step) in transaction.steps.iter().enumerate() {
        let Some(expected) = step.expected() else { continue };
        let known = published(step.resource(), step.key()).map(|object| object.revision());
        let other =
            known.is_some_and(|known| known != expected && mod_revision(known) == mod_revision(expected));
        // To etcd, 0 would mean that it must not exist.
        if other || mod_revision(expected) == 0 {
            return Err(step.conflict(index, known));
        }
    }
    Ok(())
}

/// The request.
pub(super) fn request(layout: &Layout, transaction: &Transaction) -> TxnRequest {
    let mut request = TxnRequest::default();
    for step in &transaction.steps {
        let key = layout.key(step.resource(), step.key());
        request.compare.push(Compare {
            target: Target::Mod.into(),
            key: key.clone(),
            mod_revision: Some(step.expected().map_or(0, |expected| signed(mod_revision(expected)))),
        });
        let read = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        request.failure.push(RequestOp { request: Some(Request::Range(read)) });
        let write = match step {
            Step::Put { draft, .. } => {
                let value = layout::encode(draft, position(request.success.len()).unwrap_or_default());
                Request::Put(PutRequest { key, value })
            }
            Step::Remove { .. } => Request::DeleteRange(DeleteRangeRequest { key }),
            Step::Require { .. } => continue,
        };
        request.success.push(RequestOp { request: Some(write) });
    }
    if !request.success.is_empty() {
        let head = PutRequest { key: layout.head(), value: head_value() };
        request.success.push(RequestOp { request: Some(Request::Put(head)) });
    }
    request
}

/// What a transaction that etcd carried out has written.
#[derive(Debug)]
pub(super) struct Done {
    /// The revision of the last step that wrote, if any did.
    pub(super) revision: Option<u64>,
    /// The objects put, with their revisions.
    pub(super) objects: Vec<(Resource, Draft, u64)>,
}

/// What etcd's answer means.
pub(super) fn outcome(transaction: Transaction, answer: &TxnResponse) -> Result<Done, CommitError> {
    if !answer.succeeded {
        return Err(conflict(&transaction, answer));
    }
    let at = answer.header.as_ref().map_or(0, |header| unsigned(header.revision));
    let mut done = Done { revision: None, objects: Vec::new() };
    let writes = transaction.steps.into_iter().filter(|step| !matches!(step, Step::Require { .. }));
    for (index, step) in writes.enumerate() {
        let revision = revision(at, position(index).unwrap_or_default());
        done.revision = Some(revision);
        if let Step::Put { resource, draft, .. } = step {
            done.objects.push((resource, draft, revision));
        }
    }
    Ok(done)
}

/// The first condition that does not hold, by what etcd read in its place.
fn conflict(transaction: &Transaction, answer: &TxnResponse) -> CommitError {
    let mut unknown = None;
    for (index, step) in transaction.steps.iter().enumerate() {
        let range = answer.responses.get(index).and_then(|response| response.range.as_ref());
        let found = range.and_then(|range| range.kvs.first());
        let actual = found.map(|kv| revision(unsigned(kv.mod_revision), layout::position_of(&kv.value)));
        if actual.map(mod_revision) != step.expected().map(mod_revision) {
            return step.conflict(index, actual);
        }
        unknown.get_or_insert_with(|| step.conflict(index, None));
    }
    unknown
        .unwrap_or_else(|| CommitError::Unavailable("etcd refused a transaction without conditions".into()))
}

/// What a failed call means for its transaction.
pub(super) fn failure(failure: &Failure) -> CommitError {
    let text = failure.text();
    let too_large = ["too large", "larger than max", "too many operations"];
    match failure.status.code() {
        _ if too_large.iter().any(|words| text.contains(words)) => CommitError::TooLarge(text),
        _ if !failure.sent => CommitError::Unavailable(text),
        // etcd said so itself, and before it did anything.
        Code::InvalidArgument
        | Code::ResourceExhausted
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition => CommitError::Unavailable(text),
        _ => CommitError::Unknown(text),
    }
}
