//! kube-proxy's chains in the kernel's older iptables, which only its own programs can change.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};

use portolan_model::Family;

use super::Error;
use super::chains::{FIREWALL, Jump, KUBELETS, Outcome, TABLES, plan};
use super::firewall;

/// The programs that read and write the rules of a family.
struct Programs {
    save: &'static str,
    restore: &'static str,
}

const IPV4: Programs = Programs { save: "iptables-legacy-save", restore: "iptables-legacy-restore" };
const IPV6: Programs = Programs { save: "ip6tables-legacy-save", restore: "ip6tables-legacy-restore" };
/// Their names where there is but one iptables.
const IPV4_ONLY: Programs = Programs { save: "iptables-save", restore: "iptables-restore" };
const IPV6_ONLY: Programs = Programs { save: "ip6tables-save", restore: "ip6tables-restore" };

/// Deletes the chains with the rules that lead to them, all of a table at once.
/// Those that `keep` answers for, a table and a chain, stay.
pub(super) fn remove_chains(family: Family, keep: impl Fn(&str, &str) -> bool) -> Result<Outcome, Error> {
    let Some(programs) = programs(family)? else { return Ok(Outcome::default()) };
    let saved = run(programs.save, &[], "")?;
    let (input, outcome) = removal(family, &String::from_utf8_lossy(&saved.stdout), keep);
    if outcome.chains > 0 {
        run(programs.restore, &["--noflush", "--wait", "5"], &input)?;
    }
    Ok(outcome)
}

/// Whether kubelet has left its chains in the tables of a family.
pub(super) fn has_chains_of_kubelet(family: Family) -> Result<bool, Error> {
    let Some(programs) = programs(family)? else { return Ok(false) };
    let saved = run(programs.save, &[], "")?;
    let saved = String::from_utf8_lossy(&saved.stdout);
    let mut chains = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    Ok(chains.any(|chain| KUBELETS.contains(&chain)))
}

/// Whether there are rules in this chain of a table of a family.
pub(super) fn has_rules(family: Family, (table, chain): (&str, &str)) -> Result<bool, Error> {
    let Some(programs) = programs(family)? else { return Ok(false) };
    let saved = run(programs.save, &["-t", table], "")?;
    let rule = format!("-A {chain} ");
    Ok(String::from_utf8_lossy(&saved.stdout).lines().any(|line| line.starts_with(&rule)))
}

/// Whether a rule leads from one chain of a table to another.
pub(super) fn leads(family: Family, table: &str, from: &str, to: &str) -> Result<bool, Error> {
    let Some(programs) = programs(family)? else { return Ok(false) };
    let saved = run(programs.save, &["-t", table], "")?;
    let saved = String::from_utf8_lossy(&saved.stdout);
    Ok(saved.lines().filter_map(jump).any(|jump| (&*jump.from, &*jump.to) == (from, to)))
}

/// The programs for the tables of a family; none where there are no tables.
fn programs(family: Family) -> Result<Option<Programs>, Error> {
    let (named, only, file) = match family {
        Family::Ipv4 => (IPV4, IPV4_ONLY, "/proc/thread-self/net/ip_tables_names"),
        Family::Ipv6 => (IPV6, IPV6_ONLY, "/proc/thread-self/net/ip6_tables_names"),
    };
    // The tables that the kernel has in this network namespace. Most hosts have none, and no such file.
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

/// Programs without a suffix may be front ends of nftables, whose rules are removed over netlink.
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
        // A program that ends early says why by its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

/// From what a save printed to what a restore has to read, and what that removes.
fn removal(family: Family, saved: &str, keep: impl Fn(&str, &str) -> bool) -> (String, Outcome) {
    let (mut text, mut outcome) = (String::new(), Outcome::default());
    let mut lines = saved.lines();
    while let Some(line) = lines.next() {
        let Some(table) = line.strip_prefix('*') else { continue };
        let (mut chains, mut jumps, mut has_others) = (Vec::new(), Vec::new(), false);
        for line in lines.by_ref().take_while(|line| *line != "COMMIT") {
            if let Some(chain) = line.strip_prefix(':') {
                chains.extend(chain.split(' ').next().map(str::to_owned));
            }
            let rule =
                line.strip_prefix("-A ").and_then(|rule| rule.strip_prefix(FIREWALL)?.strip_prefix(' '));
            has_others |= rule.is_some_and(|rule| !firewall::is_ours_in_words(family, rule));
            jumps.extend(jump(line));
        }
        let is_shared = |chain: &str| chain == FIREWALL && has_others;
        chains.retain(|chain| !keep(table, chain) && !is_shared(chain));
        let plan = plan(table, chains.into_iter(), jumps);
        if plan.chains.is_empty() {
            outcome.add(plan);
            continue;
        }
        let _ = writeln!(text, "*{table}");
        for jump in &plan.rules {
            let _ = writeln!(text, "-D {}", jump.rule);
        }
        // Declaring a chain empties it.
        for chain in &plan.chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for chain in &plan.chains {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
        outcome.add(plan);
    }
    (text, outcome)
}

/// Where a rule leads; the rule without its `-A`.
fn jump(line: &str) -> Option<Jump<&str>> {
    let rule = line.strip_prefix("-A ")?;
    let from = rule.split(' ').next()?;
    let way = [" -j ", " -g "].into_iter().filter_map(|flag| Some(rule.rfind(flag)? + flag.len())).max()?;
    let to = rule.get(way..)?.split(' ').next()?;
    Some(Jump { from: from.to_owned(), to: to.to_owned(), rule })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (text, outcome) = removal(Family::Ipv4, saved, |_, _| false);
        assert_eq!(outcome, Outcome { chains: 2, ..Outcome::default() });
        insta::assert_snapshot!(text, @r#"
        *nat
        -D PREROUTING -m comment --comment "kubernetes -j NOWHERE portals" -j KUBE-SERVICES
        :KUBE-SERVICES - [0:0]
        :KUBE-SVC-X - [0:0]
        -X KUBE-SERVICES
        -X KUBE-SVC-X
        COMMIT
        "#);
        let nothing = (String::new(), Outcome::default());
        let shared =
            "*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
        let with = |rule: &str| shared.replace("COMMIT", &format!("-A KUBE-FIREWALL {rule}\nCOMMIT"));
        let loopback = with("! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP");
        assert_eq!(removal(Family::Ipv6, shared, |_, _| false).1.chains, 1);
        assert_eq!(removal(Family::Ipv4, &loopback, |_, _| false).1.chains, 1);
        for others in [with("-j DROP"), with("-d 203.0.113.1/32 -j DROP")] {
            for family in Family::BOTH {
                assert_eq!(removal(family, &others, |_, _| false), nothing, "a rule that is not ours");
            }
        }
        assert_eq!(removal(Family::Ipv4, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", |_, _| false), nothing);
    }
}
