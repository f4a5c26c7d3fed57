//! Events: what an operator may want to know hours later.

use serde::{Deserialize, Serialize};

use super::Moment;
use crate::format::one_line;

/// A comparison, a repair, a replacement or a failure in one family.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecordedEvent {
    /// When it happened last.
    pub at: Moment,
    /// `compared`, `repaired`, `replaced` or `failed`.
    pub code: String,
    /// How often it happened without another event in between.
    pub times: u64,
    /// One sentence for the operator.
    pub text: String,
}

/// What an event is about.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// Everything was compared with the kernel, for a reason: see [`Family::reason`](crate::Family::reason).
    Compared(&'a str),
    /// A change of the rules by another program was repaired.
    Repaired,
    /// A data plane of this mode replaced another one.
    Replaced(&'a str),
    /// A commit failed with this error.
    Failed(&'a str),
    /// The removal of what deleted Services used failed with this error.
    CollectionFailed(&'a str),
}

impl RecordedEvent {
    /// Returns the event with its code and its text.
    pub fn new(what: What<'_>, at: Moment, times: u64) -> Self {
        let (code, text) = match what {
            What::Compared(reason) => ("compared", format!("everything was compared: {}", because(reason))),
            What::Repaired => {
                ("repaired", "another program had changed the rules; they were repaired".to_owned())
            }
            What::Replaced(mode) => {
                ("replaced", format!("the mode {mode} has programmed everything and is active"))
            }
            What::Failed(error) => ("failed", format!("a commit failed: {}", one_line(error))),
            What::CollectionFailed(error) => {
                ("failed", format!("what deleted Services used could not be removed: {}", one_line(error)))
            }
        };
        Self { at, code: code.to_owned(), times, text }
    }
}

/// Returns the reason of a comparison in words.
pub(crate) fn because(reason: &str) -> &str {
    match reason {
        "start" => "start",
        "failure" => "retry after a failure",
        "drift" => "another program changed the rules",
        "settings" => "new settings",
        "node" => "the node has changed",
        "periodic" => "periodic comparison",
        "verification" => "verification",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_a_code() {
        let event = |what| {
            let RecordedEvent { code, text, .. } = RecordedEvent::new(what, Moment::default(), 1);
            format!("{code}: {text}")
        };
        let all = [
            What::Compared("settings"),
            What::Repaired,
            What::Replaced("ipvs"),
            What::Failed("line 1\n  line 2\u{1b}[2J"),
            What::CollectionFailed("busy"),
        ];
        insta::assert_snapshot!(all.map(event).join("\n"), @r"
        compared: everything was compared: new settings
        repaired: another program had changed the rules; they were repaired
        replaced: the mode ipvs has programmed everything and is active
        failed: a commit failed: line 1; line 2 [2J
        failed: what deleted Services used could not be removed: busy
        ");
    }
}
