//! Answers that hold something until they are sent or given up.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

/// The body of an answer, and what ends with it.
pub(super) struct Guarded {
    body: UnsyncBoxBody<Bytes, Infallible>,
    held: Vec<Box<dyn Any + Send>>,
}

impl Guarded {
    pub(super) fn new(body: UnsyncBoxBody<Bytes, Infallible>, held: Vec<Box<dyn Any + Send>>) -> Self {
        Self { body, held }
    }

    /// The same, and it holds one thing more.
    pub(super) fn holding(mut self, thing: impl Any + Send) -> Self {
        self.held.push(Box::new(thing));
        self
    }
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
