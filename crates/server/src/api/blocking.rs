//! The same calls for plain threads.

use crate::json::Value;
use futures::executor::block_on;

use super::{Api, Outcome, Part, Preconditions, Target, WriteOptions};
use crate::{
    error::ApiError,
    json::Object,
    resource::Resource,
    store::{CommitError, Committed, Transaction},
};

/// The writes of an [`Api`], each waiting on the calling thread until it is done. Not for async code, whose thread it
/// would hold up.
#[derive(Debug, Clone, Copy)]
pub struct Blocking<'a>(pub(super) &'a Api);

impl Blocking<'_> {
    /// [`Api::create`].
    pub fn create(
        self,
        resource: Resource,
        namespace: &str,
        object: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        block_on(self.0.create(resource, namespace, object, options))
    }

    /// [`Api::update`].
    pub fn update(
        self,
        target: Target<'_>,
        part: Part,
        object: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        block_on(self.0.update(target, part, object, options))
    }

    /// [`Api::merge_patch`].
    pub fn merge_patch(
        self,
        target: Target<'_>,
        part: Part,
        patch: Object,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        block_on(self.0.merge_patch(target, part, patch, options))
    }

    /// [`Api::delete`].
    pub fn delete(
        self,
        target: Target<'_>,
        preconditions: &Preconditions,
        options: WriteOptions,
    ) -> Result<Outcome, ApiError> {
        block_on(self.0.delete(target, preconditions, options))
    }

    /// [`Api::apply`].
    pub fn apply(self, object: impl Into<Value>) -> Result<Outcome, ApiError> {
        block_on(self.0.apply_value(object.into()))
    }

    /// Writes to the store itself, past all rules: for tests that need what no API server would take.
    pub fn commit(self, transaction: Transaction) -> Result<Committed, CommitError> {
        block_on(self.0.store.commit(transaction))
    }
}
