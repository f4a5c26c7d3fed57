//! The file of a bug report: what an agent knows, what it has done, and what the kernel of its node has.
//!
//! Owns: the format ([`Snapshot`]), the objects as manifests ([`objects`]), what was read from the kernel in a form of its own
//! ([`programmed`]), the firewall rules of other programs ([`rules`]), the compressed file ([`pack`], [`unpack`],
//! [`Snapshot::read`], [`create`]), and its text ([`text`]).
//!
//! ```text
//!  agent: Catalog, history, state ──Snapshot<O, R>──> pack ──control socket──> unpack ──┐
//!  command: kernel, rules, findings ────────────────────────────────────────────────────┴──> Snapshot ──> file ──> explain
//! ```
//!
//! The agent writes with its Catalog and history in place of lists, so that it holds one object at a time. A reader gets
//! lists. Names and meanings of the fields are stable within [`VERSION`]; fields may be added.
//!
//! A snapshot has neither tokens, certificates nor texts of annotations: everything in it is made from typed values, and
//! there is no type for these.
//!
//! Must not know where the values come from, HTTP, or command lines.

mod document;
mod file;
pub mod objects;
pub mod programmed;
pub mod rules;
pub mod text;

pub use document::{ApiServer, FORMAT, History, Kernel, Node, NodePort, Recorded, Snapshot, Unread, VERSION};
pub use file::{Error, create, pack, unpack};
