//! Edits that an input chooses of messages, lines, JSON and bytes.

mod bytes;
mod frames;
mod lines;
mod value;

pub(crate) use bytes::edit as bytes;
pub(crate) use frames::edit as frames;
pub(crate) use lines::edit as lines;
pub(crate) use value::{edit as value, pointers, remove};

/// The most edits of one input.
const MOST: usize = 64;
