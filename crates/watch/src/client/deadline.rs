//! Limits the time from the sending of a request to the head of its answer.
//!
//! The limit is an extension of the request. The waits for the rate limit and for a plug-in come before and do not
//! count: they have limits of their own and are not a silence of the API server.

use std::time::Duration;

use http::Extensions;
use tokio::time;
use tower::BoxError;

/// Request extension: the answer has to begin within this time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerWithin(pub(crate) Duration);

/// No answer came within this time.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
pub(crate) struct Silent(pub(crate) Duration);

/// Waits for an answer, without a limit if `within` is `None`.
pub(crate) async fn in_time<T, E: Into<BoxError>>(
    within: Option<AnswerWithin>,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    match within {
        None => answer.await.map_err(Into::into),
        Some(AnswerWithin(limit)) => match time::timeout(limit, answer).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(Silent(limit).into()),
        },
    }
}

/// Returns the limit in a request's extensions.
pub(crate) fn of(extensions: &Extensions) -> Option<AnswerWithin> {
    extensions.get().copied()
}
