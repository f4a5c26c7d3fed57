//! The report of `portolan check`.

use std::fmt::Write as _;

use portolan_proxy::preflight::{CheckResult, Item, Part};
use serde::Serialize;

/// Version of the form of a [`Report`]. It changes if a field is removed or gets another meaning.
const VERSION: u32 = 1;

/// Everything that was found out.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: u32,
    /// The worst outcome.
    pub(super) outcome: CheckResult,
    items: Vec<Item>,
}

impl Report {
    pub(super) fn new(mut items: Vec<Item>) -> Self {
        items.sort_by_key(|item| item.part);
        let outcome = items.iter().map(|item| item.outcome).max().unwrap_or(CheckResult::Ok);
        Self { version: VERSION, outcome, items }
    }

    /// Returns the report for people. Control characters in texts from outside are replaced by spaces.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        for items in self.items.chunk_by(|a, b| a.part == b.part) {
            let _ = writeln!(text, "{}", items.first().map_or("", |item| heading(item.part)));
            for Item { outcome, text: what, mend, .. } in items {
                let what = what.replace(char::is_control, " ");
                let _ = writeln!(text, "  {:<8} {what}", word(*outcome));
                if let Some(mend) = mend {
                    let _ = writeln!(text, "           mend: {}", mend.replace(char::is_control, " "));
                }
            }
        }
        let count = |outcome| self.items.iter().filter(|item| item.outcome == outcome).count();
        let (failures, warnings) = (count(CheckResult::Failure), count(CheckResult::Warning));
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let _ =
            writeln!(text, "{failures} failure{}, {warnings} warning{}", plural(failures), plural(warnings));
        text
    }
}

const fn heading(part: Part) -> &'static str {
    match part {
        Part::Configuration => "configuration",
        Part::Mode => "mode",
        Part::Node => "node",
        Part::Ports => "ports",
        Part::Api => "API server",
        Part::Surroundings => "surroundings",
    }
}

const fn word(outcome: CheckResult) -> &'static str {
    match outcome {
        CheckResult::Ok => "ok",
        CheckResult::Warning => "warning",
        CheckResult::Failure => "failure",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::new(vec![
            Item::new(Part::Api, CheckResult::Failure, "the API server\ncannot be reached")
                .with_mend("check it"),
            Item::new(Part::Configuration, CheckResult::Ok, "the flags can be used"),
            Item::new(Part::Mode, CheckResult::Warning, "the mode was not tried"),
        ])
    }

    #[test]
    fn the_text() {
        insta::assert_snapshot!(report().text(), @r"
        configuration
          ok       the flags can be used
        mode
          warning  the mode was not tried
        API server
          failure  the API server cannot be reached
                   mend: check it
        1 failure, 1 warning
        ");
    }

    #[test]
    fn the_json() {
        assert_eq!(Report::new(Vec::new()).outcome, CheckResult::Ok);
        let json = serde_json::to_value(report()).expect("plain values");
        assert_eq!(json["outcome"], "failure");
        assert_eq!(json["items"][0]["part"], "configuration");
        assert_eq!(json["items"][2]["mend"], "check it");
        assert!(json["items"][1].get("mend").is_none());
    }
}
