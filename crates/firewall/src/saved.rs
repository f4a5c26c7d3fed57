//! Reads the rules of the older iptables from the output of `iptables-save`.

use ipnet::IpNet;
use portolan_model::Family;

use super::test::host;
use super::{Base, Chain, ConntrackStates, Effect, Hook, Program, Rule, RuleId, TableFamily, TableId, Test};

/// The names of flags of TCP in `iptables-save`.
const TCP_FLAGS: [(&str, u8); 8] = [
    ("FIN", 0x01),
    ("SYN", 0x02),
    ("RST", 0x04),
    ("PSH", 0x08),
    ("ACK", 0x10),
    ("URG", 0x20),
    ("ALL", 0x3f),
    ("NONE", 0),
];

/// Reads all tables. Lines that cannot be read are skipped; options that are not known become unknown conditions.
pub fn chains(family: Family, saved: &str) -> Vec<Chain> {
    let table_family = match family {
        Family::Ipv4 => TableFamily::Ip,
        Family::Ipv6 => TableFamily::Ip6,
    };
    let (mut chains, mut table): (Vec<Chain>, Option<TableId>) = (Vec::new(), None);
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            let program = Program::IptablesLegacy;
            table = Some(TableId { program, family: table_family, table: name.trim().to_owned() });
        }
        let Some(place) = &table else { continue };
        if let Some(declared) = line.strip_prefix(':') {
            chains.extend(chain(place, declared));
        } else if let Some(line) = line.strip_prefix("-A ") {
            let (name, words) = line.split_once(' ').unwrap_or((line, ""));
            let is_named = |chain: &&mut Chain| &chain.place == place && chain.name == name;
            if let Some(chain) = chains.iter_mut().rev().find(is_named) {
                chain.rules.push(rule(family, line, words));
            }
        }
    }
    chains
}

/// Reads the declaration of a chain: `FORWARD DROP [0:0]`.
fn chain(place: &TableId, declared: &str) -> Option<Chain> {
    let mut words = declared.split_whitespace();
    let (name, policy) = (words.next()?.to_owned(), words.next().unwrap_or("-"));
    let base = base(&place.table, &name, policy == "DROP");
    Some(Chain { place: place.clone(), name, base, rules: Vec::new() })
}

/// Returns the properties of the kernel's own chains (`enum nf_ip_hook_priorities`).
fn base(table: &str, chain: &str, drops: bool) -> Option<Base> {
    let hook = match chain {
        "PREROUTING" => Hook::Prerouting,
        "INPUT" => Hook::Input,
        "FORWARD" => Hook::Forward,
        "OUTPUT" => Hook::Output,
        "POSTROUTING" => Hook::Postrouting,
        _ => return None,
    };
    let priority = match (table, hook) {
        ("raw", _) => -300,
        ("mangle", _) => -150,
        ("nat", Hook::Prerouting | Hook::Output) => super::TRANSLATION_PRIORITY,
        ("nat", _) => 100,
        ("security", _) => 50,
        _ => 0,
    };
    Some(Base { hook, priority, nat: table == "nat", drops })
}

fn rule(family: Family, line: &str, words: &str) -> Rule {
    let words = split(words);
    let mut words = words.iter().map(String::as_str).peekable();
    let (mut tests, mut effect, mut inverted) = (Vec::new(), Effect::Continue, false);
    while let Some(word) = words.next() {
        let here = std::mem::take(&mut inverted);
        match word {
            "!" => inverted = true,
            "-m" => {
                // The options of a match follow. Some matches have none.
                let name = words.next().unwrap_or_default();
                let has_options = words.peek().is_some_and(|next| next.starts_with("--") || *next == "!");
                if !has_options && !matches!(name, "tcp" | "udp" | "sctp" | "comment") {
                    tests.push(Test::Unknown(name.to_owned()));
                }
            }
            "-j" | "-g" => {
                let target = words.next().unwrap_or_default();
                effect = self::effect(target, word == "-g", &words.by_ref().collect::<Vec<_>>());
            }
            option if option.starts_with('-') => {
                let mut values = Vec::new();
                while let Some(value) =
                    words.next_if(|next| !next.starts_with("--") && *next != "!" && !is_flag(next))
                {
                    values.push(value);
                }
                tests.extend(test(family, option, &values).map(|test| test.inverted_if(here)));
            }
            _ => {}
        }
    }
    Rule { tests, effect, id: RuleId::Line(line.to_owned()) }
}

/// Returns true for short options. A value may begin with a hyphen, but not with one and a letter only.
fn is_flag(word: &str) -> bool {
    matches!(word.as_bytes(), [b'-', letter] if letter.is_ascii_alphabetic())
}

/// Returns the condition of an option; `None` for a comment.
fn test(family: Family, option: &str, values: &[&str]) -> Option<Test> {
    let unknown = || Test::Unknown([&[option], values].concat().join(" "));
    let value = values.first().copied().unwrap_or_default();
    let test = match option {
        "--comment" => return None,
        "-i" => Some(Test::Input(interface(value))),
        "-o" => Some(Test::Output(interface(value))),
        "-s" => network(value).map(Test::Source),
        "-d" => network(value).map(Test::Destination),
        "-p" => protocol(family, value).map(Test::Protocol),
        "--dport" | "--dports" => ports(value),
        "--ctstate" | "--state" => states(value),
        "--tcp-flags" => flags(values),
        "--src-type" if value == "LOCAL" => Some(Test::SourceIsLocal),
        "--dst-type" if value == "LOCAL" => Some(Test::DestinationIsLocal),
        _ => None,
    };
    Some(test.unwrap_or_else(unknown))
}

fn interface(name: &str) -> String {
    name.strip_suffix('+').map_or_else(|| name.to_owned(), |prefix| format!("{prefix}*"))
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(host))
}

fn protocol(family: Family, text: &str) -> Option<u8> {
    match (text, family) {
        ("tcp", _) => Some(6),
        ("udp", _) => Some(17),
        ("sctp", _) => Some(132),
        ("icmp", Family::Ipv4) => Some(1),
        ("ipv6-icmp" | "icmpv6", Family::Ipv6) => Some(58),
        (number, _) => number.parse().ok(),
    }
}

/// Reads one port or one range. A list of several is unknown.
fn ports(text: &str) -> Option<Test> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some(Test::Port(first.parse().ok()?..=last.parse().ok()?))
}

/// Reads the flags of TCP that count, and those that must be set.
fn flags(values: &[&str]) -> Option<Test> {
    let read = |names: &str| {
        names.split(',').try_fold(0, |all, name| {
            Some(all | TCP_FLAGS.iter().find(|(known, _)| *known == name).map(|(_, bits)| *bits)?)
        })
    };
    let &[mask, value] = values else { return None };
    Some(Test::TcpFlags { mask: read(mask)?, value: read(value)? })
}

fn states(text: &str) -> Option<Test> {
    let states: Option<Vec<ConntrackStates>> = text.split(',').map(ConntrackStates::named).collect();
    Some(Test::State(states?.into_iter().fold(ConntrackStates(0), ConntrackStates::with)))
}

fn effect(target: &str, is_goto: bool, options: &[&str]) -> Effect {
    match target {
        "ACCEPT" | "SNAT" | "MASQUERADE" => Effect::Accept,
        "DROP" => Effect::Drop,
        "REJECT" => Effect::Reject,
        "RETURN" => Effect::Return,
        "DNAT" | "REDIRECT" | "TPROXY" | "NETMAP" => Effect::Redirect,
        "NOTRACK" => Effect::NoTrack,
        "CT" if options.contains(&"--notrack") => Effect::NoTrack,
        "NFQUEUE" | "QUEUE" | "SYNPROXY" | "TARPIT" | "DELUDE" => Effect::Unknown,
        "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS" | "TRACE" | "CT" | "SET" | "CHECKSUM" | "TTL"
        | "TOS" | "DSCP" | "CLASSIFY" | "AUDIT" | "SECMARK" | "CONNSECMARK" => Effect::Continue,
        chain if is_goto => Effect::Goto(chain.to_owned()),
        chain => Effect::Jump(chain.to_owned()),
    }
}

/// Splits a line into words. Double quotes hold a word together; a backslash inside of them quotes the next character.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut begun) = (Vec::new(), String::new(), false, false);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => (quoted, begun) = (!quoted, true),
            '\\' if quoted => word.extend(characters.next()),
            ' ' if !quoted => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            character => word.push(character),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAVED: &str = r#"# Generated by iptables-save v1.8.9
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment "a -j DROP \"b\"" -j ACCEPT
-A FORWARD ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m tcp --dport 30000:32767 -j REJECT --reject-with tcp-reset
-A FORWARD -p udp -m multiport --dports 53,67 -j DROP
-A FORWARD -m limit --limit 3/min -j LOG --log-prefix "-j DROP"
-A FORWARD -i cali+ -m socket -g DOCKER-USER
COMMIT
*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.10 -p udp -m udp --dport 53 -j CT --notrack
COMMIT
"#;

    #[test]
    fn a_save_is_read() {
        let chains = chains(Family::Ipv4, SAVED);
        let names: Vec<(&str, &str)> =
            chains.iter().map(|chain| (&*chain.place.table, &*chain.name)).collect();
        assert_eq!(
            names,
            [("filter", "INPUT"), ("filter", "FORWARD"), ("filter", "DOCKER-USER"), ("raw", "PREROUTING")]
        );
        let forward = &chains[1];
        assert_eq!(forward.base, Some(Base { hook: Hook::Forward, priority: 0, nat: false, drops: true }));
        let rules: Vec<String> = forward
            .rules
            .iter()
            .map(|rule| {
                let tests: Vec<String> = rule.tests.iter().map(ToString::to_string).collect();
                format!("{}: {}", tests.join(", "), rule.effect)
            })
            .collect();
        insta::assert_snapshot!(rules.join("\n"), @r"
        : jump DOCKER-USER
        iifname docker0, not oifname docker0: accept
        ct established,related: accept
        not saddr 10.0.0.0/8, daddr 10.96.0.1/32, tcp, dport 30000-32767: reject
        udp, --dports 53,67: drop
        --limit 3/min: continue
        iifname cali*, socket: goto DOCKER-USER
        ");
        assert_eq!(chains[3].base.map(|base| base.priority), Some(-300));
        let notrack = &chains[3].rules[0];
        assert_eq!(notrack.effect, Effect::NoTrack);
        assert_eq!(
            notrack.id,
            RuleId::Line("PREROUTING -d 10.96.0.10 -p udp -m udp --dport 53 -j CT --notrack".to_owned())
        );
    }

    #[test]
    fn flags_of_tcp_and_types_of_addresses() {
        let saved = "*filter\n:INPUT ACCEPT [0:0]\n\
                     -A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m state --state NEW -j DROP\n\
                     -A INPUT -m addrtype --dst-type LOCAL ! --src-type LOCAL -j DROP\n\
                     -A INPUT -m addrtype --dst-type BROADCAST -j DROP\n\
                     -A INPUT -p tcp -m tcp --tcp-flags ALL NONE -j DROP\n";
        let tests: Vec<String> = chains(Family::Ipv4, saved)[0]
            .rules
            .iter()
            .map(|rule| rule.tests.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            .collect();
        assert_eq!(
            tests,
            [
                "tcp, not tcp flags 0x02/0x17, ct new",
                "fib daddr type local, not fib saddr type local",
                "--dst-type BROADCAST",
                "tcp, tcp flags 0x00/0x3f",
            ]
        );
    }

    proptest! {
        #[test]
        fn any_rule_is_kept(rules in prop::collection::vec(
            r#"( !| -[a-z]| --[a-z]{1,9}| "[^"\n]*"?| [-a-zA-Z0-9./:,+]{1,9}){0,9}"#, 0..9,
        )) {
            let lines: Vec<String> = rules.iter().map(|rule| format!("-A F{rule}")).collect();
            let text = format!("*filter\n:F DROP [0:0]\n{}\n", lines.join("\n"));
            let read = chains(Family::Ipv4, &text);
            prop_assert_eq!(read[0].rules.len(), rules.len());
        }

        #[test]
        fn any_text_is_read(text in r"([*:#]?[-A-Z \[\]0-9]{0,20}\n){0,20}") {
            let _ = chains(Family::Ipv4, &text);
        }
    }
}
