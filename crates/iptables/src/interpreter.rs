//! A small model of `iptables-restore --noflush`, for tests.

use std::collections::BTreeMap;

use portolan_model::Family;

use super::Present;
use super::saved::saved;

type Chains = BTreeMap<String, Vec<String>>;

/// Tables with their chains and rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tables(BTreeMap<String, Chains>);

impl Tables {
    /// Returns tables that have only the kernel's own chains.
    pub(super) fn empty() -> Self {
        let table = |chains: &[&str]| chains.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
        Self(BTreeMap::from([
            ("mangle".to_owned(), table(&["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"])),
            ("filter".to_owned(), table(&["INPUT", "FORWARD", "OUTPUT"])),
            ("nat".to_owned(), table(&["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"])),
        ]))
    }

    /// Runs a restore. Each table takes effect as a whole or not at all. Calls `seen` after each table.
    pub(super) fn restore(&mut self, text: &str, mut seen: impl FnMut(&Self)) -> Result<(), String> {
        let mut open: Option<(String, Chains)> = None;
        for (number, line) in text.lines().enumerate() {
            let fail = |why: &str| format!("line {}: {why}: {line}", number + 1);
            if let Some(table) = line.strip_prefix('*') {
                let chains = self.0.get(table).ok_or_else(|| fail("no such table"))?;
                if open.replace((table.to_owned(), chains.clone())).is_some() {
                    return Err(fail("the table before is open"));
                }
                continue;
            }
            let (table, chains) = open.as_mut().ok_or_else(|| fail("no table is open"))?;
            if line == "COMMIT" {
                check(chains)?;
                self.0.insert(std::mem::take(table), std::mem::take(chains));
                open = None;
                seen(self);
            } else {
                run(line, chains).map_err(|why| fail(&why))?;
            }
        }
        open.map_or(Ok(()), |(table, _)| Err(format!("{table} is never committed")))
    }

    /// Returns the rules of a chain, if it exists.
    pub(super) fn chain(&self, table: &str, chain: &str) -> Option<&[String]> {
        self.0.get(table)?.get(chain).map(Vec::as_slice)
    }

    /// Returns the names of a table's chains.
    pub(super) fn chains(&self, table: &str) -> Vec<&str> {
        self.0.get(table).map(|chains| chains.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Returns what a save of these tables would give.
    pub(super) fn present(&self, family: Family) -> Present {
        let mut present = Present::default();
        for (table, chains) in &self.0 {
            present.line(&format!("*{table}"));
            for chain in chains.keys() {
                present.line(&format!(":{chain} - [0:0]"));
            }
            for (chain, rules) in chains {
                for rule in rules {
                    let is_jump = !chain.starts_with("KUBE-");
                    let rule = if is_jump { rule.clone() } else { saved(family, rule) };
                    present.line(&format!("-A {chain} {rule}"));
                }
            }
            present.line("COMMIT");
        }
        present
    }

    /// Returns the tables with the rules of Services in shared chains sorted. A rule that has to be last stays last.
    pub(super) fn unordered(mut self) -> Self {
        for (table, chains) in &mut self.0 {
            for (chain, rules) in chains.iter_mut() {
                let last = usize::from(table == "nat" && chain == "KUBE-SERVICES");
                if ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"]
                    .contains(&chain.as_str())
                {
                    let end = rules.len().saturating_sub(last);
                    rules[..end].sort();
                }
            }
        }
        self
    }
}

fn run(line: &str, chains: &mut Chains) -> Result<(), String> {
    if let Some(chain) = line.strip_prefix(':') {
        let chain = chain.strip_suffix(" - [0:0]").ok_or("not a chain of users")?;
        if chain.len() > 28 {
            return Err("too long a name".to_owned());
        }
        chains.insert(chain.to_owned(), Vec::new());
        return Ok(());
    }
    let (operation, rest) = line.split_once(' ').ok_or("no operation")?;
    let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    if !chains.contains_key(chain) {
        return Err("no such chain".to_owned());
    }
    let target = target(rule);
    if operation != "-X"
        && target.is_some_and(|target| target.starts_with("KUBE-") && !chains.contains_key(target))
    {
        return Err("no such target".to_owned());
    }
    let rules = chains.entry(chain.to_owned()).or_default();
    match operation {
        "-A" => rules.push(rule.to_owned()),
        "-I" => rules.insert(0, rule.to_owned()),
        "-D" => {
            let place = rules.iter().position(|known| known == rule).ok_or("no such rule")?;
            rules.remove(place);
        }
        "-X" if rules.is_empty() => {
            chains.remove(chain);
            check(chains)?;
        }
        _ => return Err("not possible".to_owned()),
    }
    Ok(())
}

/// Returns an error if a rule leads to a missing chain.
fn check(chains: &Chains) -> Result<(), String> {
    for (chain, rules) in chains {
        for rule in rules {
            if target(rule).is_some_and(|target| target.starts_with("KUBE-") && !chains.contains_key(target))
            {
                return Err(format!("{chain} leads nowhere: {rule}"));
            }
        }
    }
    Ok(())
}

fn target(rule: &str) -> Option<&str> {
    let (_, target) = rule.rsplit_once("-j ")?;
    target.split(' ').next()
}
