//! What a full load would write, as lines for `iptables-restore`.
//!
//! The decisions are those of [`Planner::full`]. Only a save is read. A start also finds out, by a trial, whether rules can
//! refer to nfacct counters. A preview writes no trial: rules have counters if the rules that exist have them.

use portolan_engine::table::Table as Wanted;

use super::dataplane::pieces;
use super::options::{COUNTER_INVALID, COUNTER_LOCALHOST};
use super::program::Error;
use super::{IptablesOptions, Pieces, Planner, Present, Programs};

/// Returns what a full load would write with these programs for a table, one line each. Empty if the kernel has
/// everything. Changes nothing.
///
/// # Errors
/// The program failed.
pub fn preview(
    programs: &Programs,
    wanted: &Wanted,
    options: &IptablesOptions,
) -> Result<Vec<String>, Error> {
    let (mut present, mut has_counters) = (Present::default(), false);
    programs.save(&[], |line| {
        has_counters |= [COUNTER_INVALID, COUNTER_LOCALHOST].iter().any(|counter| refers_to(line, counter));
        present.line(line);
    })?;
    let options =
        IptablesOptions { count_invalid: has_counters, count_localhost: has_counters, ..options.clone() };
    Ok(lines(wanted, options, &present, pieces(programs.variant())))
}

/// Returns what a start would write for a table into empty tables of iptables, one line each.
pub fn preview_of_all(wanted: &Wanted, options: &IptablesOptions) -> Vec<String> {
    lines(wanted, options.clone(), &Present::default(), Pieces::One)
}

fn refers_to(line: &str, counter: &str) -> bool {
    line.starts_with("-A KUBE-") && line.split(' ').any(|word| word == counter)
}

fn lines(wanted: &Wanted, options: IptablesOptions, present: &Present, pieces: Pieces) -> Vec<String> {
    let mut planner = Planner::new(wanted.settings().clone(), options);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = planner.full(wanted, present, pieces, &mut text);
    text.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_with_a_counter_is_found() {
        let rule = "-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP";
        assert!(refers_to(rule, COUNTER_INVALID));
        assert!(!refers_to(rule, COUNTER_LOCALHOST));
        assert!(!refers_to(
            "-A OTHER -m nfacct --nfacct-name ct_state_invalid_dropped_pkts",
            COUNTER_INVALID
        ));
    }
}
