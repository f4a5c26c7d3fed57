//! Explains one packet: who sends it, which Service port it meets, and what happens to it, step by step.
//!
//! A [`Question`] and [`Facts`] go in, a [`Report`] or the reason why there is none comes out of [`answer`]. The report has
//! three sides:
//!
//! - what is **wanted**: the verdict of `model::oracle` with its reasons, and the choice of each endpoint;
//! - what is **programmed**, if it was read from the kernel: the differences of `model::observed` that concern the packet;
//! - what else decides: connections that conntrack has of the flow, rules of other programs, reverse-path filters and routes, if
//!   these were read.
//!
//! ```text
//! Question ──resolve──> client and destination ──oracle──> verdict ──> Report ──text──> lines for a terminal
//!                Facts ──┘                          Facts ──┘
//! ```
//!
//! Questions and reports are serialisable in both directions: an agent answers over HTTP. The names of their
//! fields and their codes stay the same while [`VERSION`] does.
//!
//! The crate is pure. It must not know I/O, the API server, how modes program rules, or command lines.

mod answer;
mod facts;
mod legs;
mod nearest;
mod obstacles;
mod programmed;
mod question;
mod report;
mod resolve;
mod reverse_path;
mod routing;
mod text;

pub use answer::answer;
pub use facts::{
    Connection, Facts, FamilyView, Filter, Known, Lead, NodeView, Pod, Routes, Services, Strictness, Way,
};
pub use question::{Flow, ParseError, Question, Sender, ServicePortRef, Target};
pub use report::{
    Affinity, Client, ClientKind, ConnectionReport, Connections, DecidedBy, Destination, DifferenceReport,
    EndpointReport, Fate, Filtered, FrontendKind, Masquerade, MasqueradeUse, Nearest, Note, Obstacle,
    ObstacleKind, Outcome, Programmed, Report, ReversePath, Routing, RoutingFault, Source, Stage, Step,
    VERSION, Wanted,
};
pub use resolve::{Ends, Unanswerable, ends, sender_pod};
pub use text::{Style, printable};

#[cfg(test)]
mod tests;
