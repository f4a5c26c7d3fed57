//! kube-proxy's chains in the kernel's older iptables. Only its own programs can change them.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};

use portolan_model::Family;

use super::Error;
use super::chains::{Entries, FIREWALL, KUBELETS, Plan, RemovedChains, TABLES, keep_firewall, plan};
use super::firewall;
use super::found::Found;
use portolan_iptables::Variant;
use portolan_iptables::netlink::Jump;
use portolan_ipvs::Jump as Entry;

/// The programs that read and write the rules of a family.
struct Programs {
    save: &'static str,
    restore: &'static str,
}

const IPV4: Programs = Programs { save: "iptables-legacy-save", restore: "iptables-legacy-restore" };
const IPV6: Programs = Programs { save: "ip6tables-legacy-save", restore: "ip6tables-legacy-restore" };
/// Their names where only one iptables is installed.
const IPV4_ONLY: Programs = Programs { save: "iptables-save", restore: "iptables-restore" };
const IPV6_ONLY: Programs = Programs { save: "ip6tables-save", restore: "ip6tables-restore" };

/// Removes the chains and the rules that lead to them, each table in one transaction. Chains for which `keep` (called
/// with table and chain) returns true stay. Of the rules that lead to these, those of `entries` are removed.
pub(super) fn remove_chains(
    family: Family,
    keep: impl Fn(&str, &str) -> bool,
    entries: Entries,
) -> Result<RemovedChains, Error> {
    let Some(programs) = programs(family)? else { return Ok(RemovedChains::default()) };
    let saved = run(programs.save, &[], "")?;
    let (input, outcome) = removal(family, &String::from_utf8_lossy(&saved.stdout), keep, entries);
    if !input.is_empty() {
        run(programs.restore, &["--noflush", "--wait", "5"], &input)?;
    }
    Ok(outcome)
}

/// Lists what [`remove_chains`] would remove.
pub(super) fn find_chains(
    family: Family,
    keep: impl Fn(&str, &str) -> bool,
    entries: Entries,
    found: &mut Found,
) -> Result<(), Error> {
    let Some(programs) = programs(family)? else { return Ok(()) };
    let saved = run(programs.save, &[], "")?;
    for (table, plan) in plans(family, &String::from_utf8_lossy(&saved.stdout), keep, entries) {
        plan.list(Variant::Legacy, family, table, found);
    }
    Ok(())
}

/// Returns true if kubelet has left its chains in the tables of a family.
pub(super) fn has_chains_of_kubelet(family: Family) -> Result<bool, Error> {
    let Some(programs) = programs(family)? else { return Ok(false) };
    let saved = run(programs.save, &[], "")?;
    let saved = String::from_utf8_lossy(&saved.stdout);
    let mut chains = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    Ok(chains.any(|chain| KUBELETS.contains(&chain)))
}

/// Returns true if this chain of a table has rules.
pub(super) fn has_rules(family: Family, (table, chain): (&str, &str)) -> Result<bool, Error> {
    let Some(programs) = programs(family)? else { return Ok(false) };
    let saved = run(programs.save, &["-t", table], "")?;
    let rule = format!("-A {chain} ");
    Ok(String::from_utf8_lossy(&saved.stdout).lines().any(|line| line.starts_with(&rule)))
}

/// What a save shows about the IPVS mode.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Traces {
    /// A rule jumps from the one chain to the other.
    pub(super) leads: bool,
    /// The number of rules that refer to the set.
    pub(super) references: u32,
}

/// Looks for a jump (`way`: a table, and the chains from and to which it leads), and for rules that refer to a set.
pub(super) fn find(family: Family, way: (&str, &str, &str), set: &str) -> Result<Traces, Error> {
    let Some(programs) = programs(family)? else { return Ok(Traces::default()) };
    let saved = run(programs.save, &[], "")?;
    Ok(found(&String::from_utf8_lossy(&saved.stdout), way, set))
}

fn found(saved: &str, (table, from, to): (&str, &str, &str), set: &str) -> Traces {
    let (mut found, mut is_there) = (Traces::default(), false);
    let reference = format!(" --match-set {set} ");
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            is_there = name == table;
        }
        found.leads |= is_there && jump(line).is_some_and(|jump| (&*jump.from, &*jump.to) == (from, to));
        found.references = found.references.saturating_add(line.contains(&reference).into());
    }
    found
}

/// Returns the programs for the tables of a family; `None` if there are no tables.
fn programs(family: Family) -> Result<Option<Programs>, Error> {
    let (named, only, file) = match family {
        Family::Ipv4 => (IPV4, IPV4_ONLY, "/proc/thread-self/net/ip_tables_names"),
        Family::Ipv6 => (IPV6, IPV6_ONLY, "/proc/thread-self/net/ip6_tables_names"),
    };
    // The list of the tables in this network namespace. Most hosts have none, and no such file.
    let present = match std::fs::read_to_string(file) {
        Ok(present) => present,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(Error::Unreadable { file, family, source }),
    };
    let tables: Vec<&str> = present.lines().filter(|table| TABLES.contains(table)).collect();
    if tables.is_empty() {
        Ok(None)
    } else if is_there(named.save) {
        Ok(Some(named))
    } else if is_legacy(only.save) {
        Ok(Some(only))
    } else {
        Err(Error::NoProgram { family, tables: tables.join(", "), program: named.restore })
    }
}

fn is_there(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    version.is_ok_and(|output| output.status.success())
}

/// Returns true if the program is not a front end of nftables, whose rules are removed over netlink.
fn is_legacy(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("legacy"))
}

fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<Output, Error> {
    let output =
        run_with_input(program, arguments, input).map_err(|source| Error::Start { program, source })?;
    if output.status.success() {
        return Ok(output);
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Failed { program, status: output.status, message })
}

fn run_with_input(program: &str, arguments: &[&str], input: &str) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program fails, its exit status and message say why.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

/// Returns the restore that removes the chains of a save, and what it removes.
fn removal(
    family: Family,
    saved: &str,
    keep: impl Fn(&str, &str) -> bool,
    entries: Entries,
) -> (String, RemovedChains) {
    let (mut text, mut outcome) = (String::new(), RemovedChains::default());
    for (table, plan) in plans(family, saved, keep, entries) {
        if !plan.is_empty() {
            let _ = writeln!(text, "*{table}");
            for jump in &plan.rules {
                let _ = writeln!(text, "-D {}", jump.rule);
            }
            // A declaration empties the chain.
            for chain in &plan.chains {
                let _ = writeln!(text, ":{chain} - [0:0]");
            }
            for chain in &plan.chains {
                let _ = writeln!(text, "-X {chain}");
            }
            text.push_str("COMMIT\n");
        }
        outcome.add(plan);
    }
    (text, outcome)
}

/// Returns the removals from each table of a save.
fn plans(
    family: Family,
    saved: &str,
    keep: impl Fn(&str, &str) -> bool,
    entries: Entries,
) -> Vec<(&str, Plan<&str>)> {
    let (mut plans, mut lines) = (Vec::new(), saved.lines().peekable());
    while let Some(line) = lines.next() {
        let Some(table) = line.strip_prefix('*') else { continue };
        let (mut chains, mut jumps, mut has_others) = (Vec::new(), Vec::new(), false);
        let (entries, mut unused) = (entries(table), Vec::new());
        // A table also ends where the next one begins. Otherwise, chains of the next table would be removed from this one.
        let is_of_table = |line: &&str| *line != "COMMIT" && !line.starts_with('*');
        while let Some(line) = lines.next_if(is_of_table) {
            if let Some(chain) = line.strip_prefix(':') {
                chains.extend(chain.split(' ').next().map(str::to_owned));
            }
            let rule =
                line.strip_prefix("-A ").and_then(|rule| rule.strip_prefix(FIREWALL)?.strip_prefix(' '));
            has_others |= rule.is_some_and(|rule| !firewall::is_ours_in_words(family, rule));
            let jump = jump(line);
            let is_unused = |jump: &&Jump<&str>| entries.iter().any(|entry| is_entry(entry, jump));
            unused.extend(jump.as_ref().filter(is_unused).cloned());
            jumps.extend(jump);
        }
        let is_kept = keep(table, FIREWALL);
        let firewall = keep_firewall(&mut chains, table, is_kept, has_others);
        chains.retain(|chain| !keep(table, chain));
        plans.push((table, Plan { firewall, ..plan(table, chains.into_iter(), jumps).and(unused) }));
    }
    plans
}

/// Returns where a rule of a save leads, with the rule without its `-A`.
fn jump(line: &str) -> Option<Jump<&str>> {
    let rule = line.strip_prefix("-A ")?;
    let from = rule.split(' ').next()?;
    let way = [" -j ", " -g "].into_iter().filter_map(|flag| Some(rule.rfind(flag)? + flag.len())).max()?;
    let to = rule.get(way..)?.split(' ').next()?;
    Some(Jump { from: from.to_owned(), to: to.to_owned(), rule })
}

/// Returns true if the rule is `entry`.
fn is_entry(entry: &Entry, jump: &Jump<&str>) -> bool {
    let rule = jump.rule.strip_prefix(entry.from).and_then(|rule| rule.strip_prefix(' '));
    rule.is_some_and(|rule| rule.trim_end() == entry.rule())
}

/// Returns the restore that removes the chains of a save, for fuzz targets. Chains for which `keep` returns true stay.
#[cfg(feature = "fuzzing")]
pub fn removal_of(family: Family, saved: &str, keep: impl Fn(&str, &str) -> bool) -> String {
    removal(family, saved, keep, |_| Vec::new()).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_ipvs::own_jumps;

    const NONE: Entries = |_| Vec::new();

    #[test]
    fn a_save_shows_the_jump_of_the_ipvs_mode_and_references_to_a_set() {
        let saved = "\
*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -p tcp -m set --match-set PORTOLAN-REJECT dst,dst -j REDIRECT --to-ports 1
-A KUBE-SERVICES -m set --match-set PORTOLAN-REJECT-NOT dst,dst -j ACCEPT
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
*filter
-A KUBE-PROXY-FIREWALL -p tcp -m set --match-set PORTOLAN-REJECT dst,dst -j REJECT --reject-with tcp-reset
-A KUBE-SERVICES -j KUBE-OTHER
COMMIT
";
        let find = |table, to, set| found(saved, (table, "KUBE-SERVICES", to), set);
        let both = Traces { leads: true, references: 2 };
        assert_eq!(find("nat", "KUBE-NODE-PORT", "PORTOLAN-REJECT"), both);
        assert_eq!(find("nat", "KUBE-OTHER", "PORTOLAN-6-REJECT"), Traces::default());
    }

    #[test]
    fn only_jumps_of_the_ipvs_mode_to_a_kept_chain_are_removed() {
        let saved = "\
*filter
:INPUT ACCEPT [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL
-A OUTPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
COMMIT
";
        let (text, outcome) = removal(Family::Ipv4, saved, |_, _| true, |table| own_jumps(table).collect());
        assert_eq!(outcome, RemovedChains { rules: 2, ..RemovedChains::default() });
        insta::assert_snapshot!(text, @r#"
        *filter
        -D INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
        -D FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
        COMMIT
        "#);
        // If the chain is removed, too, each rule is removed only once.
        let (text, outcome) = removal(Family::Ipv4, saved, |_, _| false, |table| own_jumps(table).collect());
        assert_eq!((outcome.chains, outcome.rules), (1, 0), "{text}");
        assert_eq!(text.matches("-D INPUT -m comment").count(), 1, "{text}");
    }

    #[test]
    fn a_table_ends_where_the_next_one_begins() {
        let saved = "*nat\n:KUBE-SVC-X - [0:0]\n*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n";
        let (text, _) = removal(Family::Ipv4, saved, |_, _| false, NONE);
        let nat = "*nat\n:KUBE-SVC-X - [0:0]\n-X KUBE-SVC-X\nCOMMIT\n";
        assert_eq!(text, format!("{nat}*filter\n:KUBE-FORWARD - [0:0]\n-X KUBE-FORWARD\nCOMMIT\n"));
    }

    #[test]
    fn from_saved_rules_to_their_removal() {
        let saved = "\
# Generated by iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-X - [0:0]
-A PREROUTING -m comment --comment \"kubernetes -j NOWHERE portals\" -j KUBE-SERVICES
-A PREROUTING -i eth0 -j DNAT --to-destination 10.0.0.1
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-X
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
COMMIT
";
        let (text, outcome) = removal(Family::Ipv4, saved, |_, _| false, NONE);
        assert_eq!(outcome, RemovedChains { chains: 2, ..RemovedChains::default() });
        insta::assert_snapshot!(text, @r#"
        *nat
        -D PREROUTING -m comment --comment "kubernetes -j NOWHERE portals" -j KUBE-SERVICES
        :KUBE-SERVICES - [0:0]
        :KUBE-SVC-X - [0:0]
        -X KUBE-SERVICES
        -X KUBE-SVC-X
        COMMIT
        "#);
        let nothing = (String::new(), RemovedChains::default());
        let shared =
            "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        let with = |rule: &str| shared.replace("COMMIT", &format!("-A KUBE-FIREWALL {rule}\nCOMMIT"));
        let loopback = with("! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP");
        assert_eq!(removal(Family::Ipv6, shared, |_, _| false, NONE).1.chains, 1);
        assert_eq!(removal(Family::Ipv4, &loopback, |_, _| false, NONE).1.chains, 1);
        for others in [with("-j DROP"), with("-d 203.0.113.1/32 -j DROP")] {
            for family in Family::BOTH {
                assert_eq!(removal(family, &others, |_, _| false, NONE), nothing, "a rule that is not ours");
            }
        }
        assert_eq!(
            removal(Family::Ipv4, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", |_, _| false, NONE),
            nothing
        );
    }
}
