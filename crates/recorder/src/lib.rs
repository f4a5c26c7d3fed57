//! The history of the node agent's last syncs, in a bounded number of bytes.
//!
//! Owns: what a record holds ([`Entry`]), its encoding, and the ring of encoded records ([`Recorder`]). Entries go in from
//! several threads. A [`History`] comes out, whose records are decoded one by one when they are read.
//!
//! ```text
//!  Entry ──encode, without lock──> bytes ──append──> open segment ──full──> segments, the oldest are dropped
//!                                                         └────────────copy──────┴──> History ──decode──> Record
//! ```
//!
//! - A record takes at most [`RECORD_MAX`] bytes: long texts are cut. So the cost of a record does not depend on the size of
//!   the cluster.
//! - The ring takes memory when it is written to, a segment at a time, and never more than its limit. With limit 0 an entry
//!   is not even made.
//! - The lock is held while a record's bytes are copied, or for a copy of the open segment. Full segments are shared.
//!
//! Pure: the time is an argument. Must not know Services, rules, the API server, or who reads the history. A caller must
//! not put secrets into an entry.

mod codec;
mod entry;
mod ring;

pub use codec::RECORD_MAX;
pub use entry::{Change, Commit, Drift, Entry, Note, ObjectEvent, Record, Size, Verb};
pub use ring::{History, Recorder};
