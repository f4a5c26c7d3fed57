//! A preview says what the next full load writes, and writes nothing itself.

use std::process::Command;

use portolan_iptables::{IptablesOptions, preview};
use portolan_model::{Change, Family};

use super::example::settings;
use super::kernel::{Edited, VARIANTS, in_namespace};
use super::load::{driven, programs_of};

fn ruleset() -> String {
    let output = Command::new("nft").args(["-s", "list", "ruleset"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn after_a_commit_nothing_is_left_to_write() {
    for (seed, family) in (31..=33).zip(Family::BOTH.into_iter().cycle()) {
        for variant in VARIANTS {
            in_namespace(|| {
                let mut edited = Edited::new(seed, 8);
                let programs = programs_of(family, variant);
                let mut iptables = driven(programs_of(family, variant), settings(family));
                let of_family = |changes: Vec<Change>| -> Vec<Change> {
                    changes.into_iter().filter(|change| change.family == family).collect()
                };
                iptables.apply(&of_family(edited.first().0)).unwrap();
                let before = ruleset();
                let lines = preview(&programs, iptables.table(), &IptablesOptions::default()).unwrap();
                assert!(lines.iter().any(|line| line.starts_with("-A KUBE-SERVICES")), "{lines:#?}");
                assert_eq!(ruleset(), before, "nothing is written");
                iptables.resync().unwrap();
                let lines = preview(&programs, iptables.table(), &IptablesOptions::default()).unwrap();
                assert_eq!(lines, [""; 0], "seed {seed}, {variant:?}");
                iptables.apply(&of_family(edited.edit(4).0)).unwrap();
                let lines = preview(&programs, iptables.table(), &IptablesOptions::default()).unwrap();
                assert_eq!(lines, [""; 0], "seed {seed}, {variant:?}: after an edit");
            });
        }
    }
}
