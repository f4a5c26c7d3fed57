//! Edits that an input chooses. They turn what Portolan writes, or what a kernel or a client wrote, into something that readers
//! do not expect in one place, but understand up to there.
//!
//! Bytes that nothing is known of mostly fail at the first check of a reader.

mod frames;
mod lines;
mod value;

pub(crate) use frames::edit as frames;
pub(crate) use lines::edit as lines;
pub(crate) use value::{edit as value, pointers, remove};

/// The most edits of one input.
const MOST: usize = 64;
