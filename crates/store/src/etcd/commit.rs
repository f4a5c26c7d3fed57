//! Converts a transaction into etcd's request, and etcd's answer into an outcome. Pure.

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

/// Maximum number of conditions, and of operations, in one transaction: etcd's default of `--max-txn-ops`.
const MOST_OPERATIONS: usize = 128;
/// Number of steps that a transaction may have, whatever they are: the write of `head` is one more operation.
pub(super) const MOST_STEPS: usize = MOST_OPERATIONS - 1;

/// Checks what etcd cannot check: that the positions fit, and that an expected revision matches as a whole. etcd
/// compares only its own part of it, without the position.
pub(super) fn check(
    transaction: &Transaction,
    published: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
) -> Result<(), CommitError> {
    let writes = transaction.steps.iter().filter(|step| !matches!(step, Step::Require { .. })).count();
    // The write of `head` is one more operation.
    let operations = transaction.steps.len().max(writes.saturating_add(1));
    if operations > MOST_OPERATIONS {
        return Err(CommitError::TooLarge(format!(
            "it has {operations} operations, etcd takes {MOST_OPERATIONS} (--max-txn-ops)"
        )));
    }
    let impossible = |step: &Step| {
        let Some(expected) = step.expected() else { return false };
        let known = published(step.resource(), step.key()).map(|object| object.revision());
        let other =
            known.filter(|known| *known != expected && mod_revision(*known) == mod_revision(expected));
        // An expected etcd revision of 0 would mean to etcd that the key must not exist.
        other.is_some() || mod_revision(expected) == 0
    };
    // The published state may be stale. But this condition does not hold in it and cannot hold in any newer state.
    if transaction.steps.iter().any(impossible) { transaction.judge(published) } else { Ok(()) }
}

/// Returns the request for a transaction, with the write of `head` if it writes anything.
pub(super) fn request(layout: &Layout, transaction: &Transaction) -> TxnRequest {
    let mut request = request_without_head(layout, transaction);
    if !request.success.is_empty() {
        let head = PutRequest { key: layout.head(), value: head_value() };
        request.success.push(RequestOp { request: Some(Request::Put(head)) });
    }
    request
}

/// Returns the request for a transaction without the write of `head`. A full etcd refuses each request that writes a
/// value, but it carries out one that only removes keys.
pub(super) fn request_without_head(layout: &Layout, transaction: &Transaction) -> TxnRequest {
    let mut request = TxnRequest::default();
    for step in &transaction.steps {
        let key = layout.key(step.resource(), step.key());
        request.compare.push(Compare {
            target: Target::Mod.into(),
            key: key.clone(),
            mod_revision: Some(step.expected().map_or(0, |expected| signed(mod_revision(expected)))),
            value: None,
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
    request
}

/// Returns true if etcd answered that it is full (its alarm `NOSPACE`). It may have carried out the request.
pub(super) fn is_full(failure: &Failure) -> bool {
    failure.status.code() == Code::ResourceExhausted && failure.text().contains("database space exceeded")
}

/// What a successful transaction has written.
#[derive(Debug)]
pub(super) struct Done {
    /// The revision of the last step that wrote; `None` if no step did.
    pub(super) revision: Option<u64>,
    /// The objects written, with their revisions.
    pub(super) objects: Vec<(Resource, Draft, u64)>,
}

/// Converts etcd's answer into the outcome of the transaction.
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

/// Returns the conflict of the first step whose condition does not hold, according to what etcd read in the same
/// transaction.
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

/// Converts the outcome of a transaction that removes objects, after etcd had answered that it is full. That first attempt may
/// have removed them.
pub(super) fn after_full(error: CommitError) -> CommitError {
    match error {
        CommitError::Conflict { actual: None, .. } => {
            CommitError::Unknown("etcd is full, and the object is gone".into())
        }
        error => error,
    }
}

/// Converts a failed call into the error of its transaction.
pub(super) fn failure(failure: &Failure) -> CommitError {
    let text = failure.text();
    let too_large = ["too large", "larger than max", "too many operations"];
    match failure.status.code() {
        _ if too_large.iter().any(|words| text.contains(words)) => CommitError::TooLarge(text),
        _ if !failure.sent => CommitError::Unavailable(text),
        // etcd may apply a request and then answer that it is full (`quotaApplierV3.Txn`).
        _ if is_full(failure) => CommitError::Unknown(text),
        // etcd itself refused the request before it carried anything out.
        Code::InvalidArgument
        | Code::ResourceExhausted
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition => CommitError::Unavailable(text),
        _ => CommitError::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    const NODE: Resource = Resource::Node;

    fn put(name: &str, expected: Option<u64>) -> Step {
        let value = portolan_schema::json::json!({"metadata": {"name": name}});
        Step::Put { resource: NODE, draft: Draft::new(NODE, value.as_object().unwrap()), expected }
    }

    #[test]
    fn the_limit_of_operations_counts_the_head() {
        let check = |puts: usize, requires: usize| {
            let mut steps: Vec<Step> = (0..puts).map(|number| put(&number.to_string(), None)).collect();
            let require = |number: usize| Step::Require {
                resource: NODE,
                key: format!("r{number}").into(),
                expected: None,
            };
            steps.extend((0..requires).map(require));
            let transaction = Transaction { steps };
            let request = request(&Layout::new("/p"), &transaction);
            let largest = request.compare.len().max(request.success.len()).max(request.failure.len());
            let outcome = super::check(&transaction, |_, _| None);
            assert_eq!(outcome.is_ok(), largest <= MOST_OPERATIONS, "{puts} {requires}");
            outcome
        };
        assert!(check(MOST_STEPS, 0).is_ok() && check(0, 128).is_ok() && check(100, 28).is_ok());
        for (puts, requires) in [(128, 0), (0, 129), (100, 29)] {
            let outcome = check(puts, requires);
            assert!(
                matches!(&outcome, Err(CommitError::TooLarge(text)) if text.contains("--max-txn-ops")),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn a_requirement_alone_writes_no_head() {
        let steps = vec![Step::Require { resource: NODE, key: "a".into(), expected: Some(revision(7, 3)) }];
        let request = request(&Layout::new("/p"), &Transaction { steps });
        assert!(request.success.is_empty());
        assert_eq!(request.compare[0].mod_revision, Some(7));
    }

    #[test]
    fn failures_say_whether_something_may_have_been_written() {
        let of = |status, sent| failure(&Failure { status, sent });
        let large = of(Status::invalid_argument("etcdserver: request is too large"), true);
        assert!(matches!(large, CommitError::TooLarge(_)));
        for status in
            [Status::resource_exhausted("etcdserver: too many requests"), Status::permission_denied("")]
        {
            assert!(matches!(of(status, true), CommitError::Unavailable(_)));
        }
        for status in [
            Status::unavailable("etcdserver: request timed out"),
            Status::deadline_exceeded(""),
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
            Status::unknown(""),
        ] {
            assert!(matches!(of(status.clone(), true), CommitError::Unknown(_)));
            assert!(matches!(of(status, false), CommitError::Unavailable(_)));
        }
    }

    #[test]
    fn an_object_that_is_gone_after_a_full_etcd_may_have_been_removed_by_the_same_request() {
        let conflict = |actual| CommitError::Conflict { step: 0, resource: NODE, key: "a".into(), actual };
        assert!(matches!(after_full(conflict(None)), CommitError::Unknown(_)));
        assert!(
            matches!(after_full(conflict(Some(7))), CommitError::Conflict { .. }),
            "another client's write"
        );
    }
}
