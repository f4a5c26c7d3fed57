//! The rules and kernel settings of a node, in a form in which two states can be compared.

use std::collections::{BTreeMap, BTreeSet};

use portolan_testkit::Namespace;

/// Prints the state of a network namespace.
const DUMP: &str = include_str!("../cleanup/dump");
/// The title of the section with nftables rules.
const RULESET: &str = "nft list ruleset";

/// The parts of a state in order, by section. A part is a line, or an element of a set.
pub(crate) type State = BTreeMap<String, Vec<String>>;

/// Returns the state of a node.
pub(crate) fn of(node: &Namespace) -> State {
    let dump = node.output("bash", &["-c", DUMP]).unwrap();
    let (mut state, mut title) = (State::new(), String::new());
    for line in dump.lines() {
        if let Some(next) = line.strip_prefix("== ") {
            next.clone_into(&mut title);
        } else if title == RULESET {
            state.entry(title.clone()).or_default().extend(elements(line).map(str::to_owned));
        } else {
            state.entry(title.clone()).or_default().push(line.to_owned());
        }
    }
    for parts in state.values_mut() {
        parts.sort();
    }
    state
}

/// Returns the lines of all sections with rules.
pub(crate) fn rules(node: &Namespace) -> Vec<String> {
    let is_rules = |title: &str| title == RULESET || title.ends_with("-save");
    of(node).into_iter().filter(|(title, _)| is_rules(title)).flat_map(|(_, lines)| lines).collect()
}

/// Returns what two states do not have in common, each part as often as one state has it more than the other.
pub(crate) fn difference(before: &State, after: &State) -> Vec<String> {
    let titles: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let of = |state: &State, title: &String| state.get(title).cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for title in titles {
        let mut added = of(after, title);
        for part in of(before, title) {
            match added.iter().position(|other| *other == part) {
                Some(position) => drop(added.remove(position)),
                None => lines.push(format!("- {title}: {part}")),
            }
        }
        lines.extend(added.iter().map(|part| format!("+ {title}: {part}")));
    }
    lines
}

/// Returns the elements of a set in a line, or the line. The kernel lists elements in no fixed order, several in a line.
fn elements(line: &str) -> impl Iterator<Item = &str> {
    let line = line.trim().trim_start_matches("elements = { ").trim_end_matches('}').trim_end();
    line.split(", ").map(|element| element.trim_end_matches(',')).filter(|element| !element.is_empty())
}
