//! Writes rules as `iptables-save` prints them, and reads them from memory, for fuzz targets.

use portolan_engine::table::Table as Wanted;
use portolan_model::observed::Observed;

use super::interpreter::Tables;
use super::observe::Reading;
use super::saved::saved;
use super::{IptablesOptions, Pieces, Planner, Present};

/// What kube-proxy wrote on a node, as `iptables-save -c` prints it.
pub const KUBE_PROXY: &str = include_str!("observe/tests/kube-proxy.save");

/// Returns the rules of a table as `iptables-save -c` prints them, in a kernel that has no others.
pub fn save(table: &Wanted, options: IptablesOptions) -> String {
    let mut planner = Planner::new(table.settings().clone(), options);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = planner.full(table, &Present::default(), Pieces::One, &mut text);
    let line = |line: &str| match line.split_once(' ').zip(line.split(' ').nth(1)) {
        Some((("-A" | "-I", rest), chain)) => {
            let rule = rest.get(chain.len()..).unwrap_or_default().trim_start();
            format!("[1:60] -A {chain} {}\n", saved(table.family(), rule))
        }
        _ => format!("{line}\n{}", kernel_chains(line)),
    };
    text.lines().map(line).collect()
}

/// Returns the declarations of the chains that the kernel calls, if the line begins a table.
fn kernel_chains(line: &str) -> String {
    let chains: &[&str] = match line {
        "*filter" => &["INPUT", "FORWARD", "OUTPUT"],
        "*nat" => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
        "*mangle" => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
        _ => &[],
    };
    chains.iter().flat_map(|chain| [":", chain, " ACCEPT [5:300]\n"]).collect()
}

/// Returns what rules mean, and `None` if there are none of this mode or of kube-proxy. Also compares them with those of a
/// table, and removes them.
pub fn observe(table: &Wanted, save: &str) -> Option<Observed> {
    let mut present = Present::default();
    save.lines().map(uncounted).for_each(|line| present.line(line));
    let mut planner = Planner::new(table.settings().clone(), IptablesOptions::default());
    // Writing to a String cannot fail.
    let _ = planner.full(table, &present, Pieces::One, &mut String::new());
    present.removal(|_, _| false);
    let reading = Reading::of_save(table.family(), save)?;
    Some(reading.observed)
}

/// What a full load found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mended {
    /// Nothing to mend.
    Nothing,
    /// Something, which it has mended.
    Something,
    /// Rules that a kernel cannot have.
    Impossible,
}

/// Loads a save, and writes what a full load writes over it. Then nothing is left to write: whatever others have done to the
/// rules, one load mends it.
///
/// # Errors
/// Something is left to write, or the kernel would refuse the load. The text is for people.
pub fn mend(table: &Wanted, save: &str) -> Result<Mended, String> {
    let family = table.family();
    let mut kernel = Tables::empty();
    let loaded: String = save.lines().map(uncounted).filter_map(loadable).collect();
    if kernel.restore(&loaded, |_| {}).is_err() {
        return Ok(Mended::Impossible);
    }
    let full = |kernel: &Tables| {
        let mut text = String::new();
        let mut planner = Planner::new(table.settings().clone(), IptablesOptions::default());
        // Writing to a String cannot fail.
        let _ = planner.full(table, &kernel.present(family), Pieces::One, &mut text);
        text
    };
    let first = full(&kernel);
    if first.is_empty() {
        return Ok(Mended::Nothing);
    }
    kernel.restore(&first, |_| {}).map_err(|reason| format!("{reason}\n{first}over\n{loaded}"))?;
    let second = full(&kernel);
    if second.is_empty() {
        Ok(Mended::Something)
    } else {
        Err(format!("{second}after\n{first}over\n{loaded}"))
    }
}

/// Returns a line of a save as a restore reads it; `None` for the kernel's own chains and for comments.
fn loadable(line: &str) -> Option<String> {
    let is_own = line.starts_with(':') && !line.ends_with(" - [0:0]");
    (!is_own && !line.starts_with('#')).then(|| format!("{line}\n"))
}

/// Returns a line as `iptables-save` prints it without `-c`.
pub fn uncounted(line: &str) -> &str {
    match line.strip_prefix('[').and_then(|line| line.split_once("] ")) {
        Some((_, rule)) => rule,
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::world::Edited;
    use portolan_model::{Family, Settings};

    use super::*;
    use crate::name::is_of_service;

    fn world() -> Wanted {
        let mut edited = Edited::new(3, 4);
        edited.first();
        Wanted::with(Settings::plain(Family::Ipv4), edited.entries(Family::Ipv4))
    }

    #[test]
    fn a_chain_of_a_removed_service_that_others_lead_to_is_emptied() {
        let (table, none) = (world(), Wanted::new(Settings::plain(Family::Ipv4)));
        let save = save(&table, IptablesOptions::default());
        let (filter, nat) = save.split_once("*nat\n").expect("both tables");
        let chains = nat.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let mut count = 0;
        for chain in chains.filter(|chain| is_of_service(chain)) {
            let led = nat.replacen("COMMIT\n", &format!("-A OUTPUT -p tcp -j {chain}\nCOMMIT\n"), 1);
            assert_eq!(mend(&none, &format!("{filter}*nat\n{led}")), Ok(Mended::Something), "{chain}");
            count += 1;
        }
        assert!(count > 2, "{count}");
    }

    #[test]
    fn each_rule_that_is_missing_is_mended() {
        let table = world();
        let save = save(&table, IptablesOptions::default());
        assert_eq!(mend(&table, &save), Ok(Mended::Nothing));
        let rules = save.lines().filter(|line| line.starts_with('['));
        for rule in rules {
            let mended = mend(&table, &save.replacen(&format!("{rule}\n"), "", 1));
            assert_eq!(mended, Ok(Mended::Something), "{rule}");
        }
    }
}
