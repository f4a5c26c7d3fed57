//! The removal of kube-proxy's chains from the older iptables, by what `iptables-save` prints. Only chains that are there are removed,
//! and none that stays.
//!
//! Choices edit rules of kube-proxy, or of Portolan. Other inputs are the text.

use std::collections::BTreeSet;

use portolan_iptables::IptablesOptions;
use portolan_iptables::fuzzing::{KUBE_PROXY, save, uncounted};
use portolan_leftovers::removal_of;
use portolan_model::Family;

use crate::script::Script;
use crate::{edits, worlds};

/// A chain that stays.
const KEPT: &str = "KUBE-FORWARD";

/// Removes the chains.
pub(crate) fn run(bytes: &[u8]) {
    let text = match Script::of(bytes) {
        Some(mut script) => {
            let text = match script.below(2) {
                0 => KUBE_PROXY.to_owned(),
                _ => save(&worlds::table(&mut script), IptablesOptions::default()),
            };
            edits::lines(&without_counters(&text), &mut script).replace('\r', "")
        }
        // A line may end in a carriage return, but `iptables-save` prints none.
        None => String::from_utf8_lossy(bytes).replace('\r', ""),
    };
    for family in Family::BOTH {
        check(&text, &removal_of(family, &text, |_, chain| chain == KEPT));
    }
}

/// Returns a save without counters.
fn without_counters(save: &str) -> String {
    save.lines().flat_map(|line| [uncounted(line), "\n"]).collect()
}

fn check(save: &str, removal: &str) {
    let there: BTreeSet<(&str, &str)> = chains(save).collect();
    for chain in chains(removal) {
        assert!(there.contains(&chain), "{chain:?} is not there");
        assert!(chain.1.starts_with("KUBE-") && chain.1 != KEPT, "{chain:?} stays");
    }
    let rules: BTreeSet<&str> = save.lines().filter_map(|line| line.strip_prefix("-A ")).collect();
    for rule in removal.lines().filter_map(|line| line.strip_prefix("-D ")) {
        assert!(rules.contains(rule), "`{rule}` is not there");
    }
}

/// Returns the chains that a text declares, with their tables.
fn chains(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut table = "";
    text.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let chain = line.strip_prefix(':')?.split(' ').next()?;
        Some((table, chain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_kube_proxy_are_removed() {
        let save = without_counters(KUBE_PROXY);
        let removal = removal_of(Family::Ipv4, &save, |_, chain| chain == KEPT);
        check(&save, &removal);
        assert!(chains(&removal).count() > 20 && removal.contains("-D "), "{removal}");
    }
}
