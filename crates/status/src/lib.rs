//! What the node agent says about itself: the state document ([`AgentState`]), Services as they are programmed
//! ([`ServicePage`]), the busiest of them ([`ServiceRates`]), what is wrong ([`problems`]), documents as text ([`text`]), the
//! live view of a terminal ([`live`]), and the web page that shows them ([`page`]).
//!
//! The agent fills in the documents and serves them as JSON; commands and pages read them. Names and meanings of the
//! fields are stable within [`VERSION`]; fields may be added. A field that is missing is read as its default, so that
//! a command can read the documents of other versions of the agent.
//!
//! The live view is written by hand, in lines of text. It has neither input nor widgets, and ratatui would add 27 crates to an
//! agent that runs as root on every node.
//!
//! Pure: values in, values out. Ages are in the documents, so that no clock is needed to show them. Must not know where
//! the values come from, HTTP, or how a document reaches its reader. Documents have neither secrets nor addresses of clients.

mod counters;
mod document;
mod format;
pub mod live;
pub mod page;
pub mod problems;
mod rates;
mod services;
#[cfg(test)]
mod tests;
pub mod text;

pub use document::{
    Agent, AgentState, Conntrack, Drift, Family, Health, Moment, Objects, Problem, RecordedEvent,
    RefusedPort, Relay, Sync, Totals, Watch, WatchFailure, What,
};
pub use rates::{Busiest, Reading, ServiceRate, ServiceRates};
pub use services::{
    Candidate, Choice, Counters, Endpoint, Frontend, Passed, Refused, Service, ServicePage, ServicePort,
};

/// The version of the documents.
pub const VERSION: u32 = 1;
