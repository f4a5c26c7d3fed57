//! Why a write failed.

/// Why an object was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The object has another version (409). The newest version arrives as an [`Input`](crate::Input).
    #[error("the object was changed meanwhile")]
    Conflict,
    /// The object does not exist (404).
    #[error("the object does not exist")]
    Gone,
    /// Anything else. The write is tried again.
    #[error("{0}")]
    Failed(String),
}
