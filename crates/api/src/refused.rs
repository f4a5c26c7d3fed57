//! A refusal, together with the warnings about the refused request. Clients get both.

use portolan_store::CommitError;
use thiserror::Error;

use crate::error::ApiError;

/// A refused request.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{error}")]
pub struct Refused {
    /// Why it was refused.
    pub error: ApiError,
    /// Warnings about the request, such as unknown fields.
    pub warnings: Vec<String>,
}

impl Refused {
    /// Adds warnings before those that there are.
    pub(crate) fn with_warnings(mut self, earlier: Vec<String>) -> Self {
        self.warnings.splice(0..0, earlier);
        self
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self { error, warnings: Vec::new() }
    }
}

impl From<CommitError> for Refused {
    fn from(error: CommitError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}
