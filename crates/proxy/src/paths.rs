//! The paths of what a running agent answers about itself: `control` serves them, and the subcommands ask for them.

/// The path of the web page.
pub(crate) const PAGE: &str = "/debug/portolan/";
/// The path of the state document.
pub(crate) const STATE: &str = "/debug/portolan/state";
/// The path of the pages of Services.
pub(crate) const SERVICES: &str = "/debug/portolan/services";
/// The path of the rates of Services.
pub(crate) const RATES: &str = "/debug/portolan/rates";
/// The path of the answer about one packet.
pub(crate) const EXPLAIN: &str = "/debug/portolan/explain";
/// The path of the agent's part of a snapshot.
pub(crate) const SNAPSHOT: &str = "/debug/portolan/snapshot";
