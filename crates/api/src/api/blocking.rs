//! The API's writes in blocking form, for threads without an async runtime.

use futures::executor::block_on;
use portolan_schema::{
    Resource,
    json::{Object, Value},
};
use portolan_store::{CommitError, Committed, Transaction};

use super::{Api, Part, Preconditions, Target, WriteOptions, WriteResult};
use crate::error::ApiError;

/// The writes of an [`Api`], each of which blocks the calling thread until it is done. Must not be called from async
/// code, whose thread it would block.
#[derive(Debug, Clone, Copy)]
pub struct Blocking<'a>(pub(super) &'a Api);

impl Blocking<'_> {
    /// Blocking form of [`Api::create`].
    pub fn create(
        self,
        resource: Resource,
        namespace: &str,
        object: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        block_on(self.0.create(resource, namespace, object, options))
    }

    /// Blocking form of [`Api::update`].
    pub fn update(
        self,
        target: Target<'_>,
        part: Part,
        object: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        block_on(self.0.update(target, part, object, options))
    }

    /// Blocking form of [`Api::merge_patch`].
    pub fn merge_patch(
        self,
        target: Target<'_>,
        part: Part,
        patch: Object,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        block_on(self.0.merge_patch(target, part, patch, options))
    }

    /// Blocking form of [`Api::delete`].
    pub fn delete(
        self,
        target: Target<'_>,
        preconditions: &Preconditions,
        options: WriteOptions,
    ) -> Result<WriteResult, ApiError> {
        block_on(self.0.delete(target, preconditions, options))
    }

    /// Blocking form of [`Api::apply`].
    pub fn apply(self, object: impl Into<Value>) -> Result<WriteResult, ApiError> {
        block_on(self.0.apply_value(object.into()))
    }

    /// Commits a transaction to the store without any checks, for tests that need objects which no API server would
    /// accept.
    pub fn commit(self, transaction: Transaction) -> Result<Committed, CommitError> {
        block_on(self.0.store.commit(transaction))
    }
}
