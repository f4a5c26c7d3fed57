//! How long an answer may take to begin, counted from when its request is sent.
//!
//! Who asks says so in an extension of the request. The wait for a turn and the run of a plug-in come before: they
//! are our own, have limits of their own, and are no silence of the API server.

use std::time::Duration;

use http::Extensions;
use tokio::time;
use tower::BoxError;

/// The extension of a request: its answer has to begin within this time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerWithin(pub(crate) Duration);

/// No answer came in this time.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
pub(crate) struct Silent(pub(crate) Duration);

/// Waits for an answer, without end if nobody says how long.
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

/// What the extensions of a request say.
pub(crate) fn of(extensions: &Extensions) -> Option<AnswerWithin> {
    extensions.get().copied()
}
