//! Rules as `iptables-save` prints them, so that a load can leave chains as they are if they have the right rules.
//!
//! Where a version of iptables prints a rule in another way, its chain is written again. Nothing else depends on
//! this.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::Family;

use super::rule::words;

/// A digest of a chain's rules, 24 bytes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Content {
    in_order: u64,
    in_any_order: u64,
    last: u64,
}

impl Content {
    /// Returns the digest of rules of a restore.
    pub(super) fn of<'a>(family: Family, rules: impl IntoIterator<Item = &'a str>) -> Self {
        let mut content = Self::default();
        for rule in rules {
            content.add(&saved(family, rule));
        }
        content
    }

    /// Adds a rule, as a save prints it.
    pub(super) fn add(&mut self, rule: &str) {
        let hash = |value: (u64, &[u8])| {
            let mut hasher = DefaultHasher::new();
            value.hash(&mut hasher);
            hasher.finish()
        };
        self.last = hash((0, rule.as_bytes()));
        self.in_order = hash((self.in_order, rule.as_bytes()));
        self.in_any_order = self.in_any_order.wrapping_add(self.last);
    }

    /// Returns the digest of one rule, as a save prints it.
    pub(super) fn of_rule(rule: &str) -> u64 {
        let mut content = Self::default();
        content.add(rule);
        content.last
    }

    /// Returns true if both have the same rules, in any order.
    pub(super) const fn has_same(&self, other: &Self) -> bool {
        self.in_any_order == other.in_any_order
    }

    /// Returns true if both have the same rules and the same last rule, in any order otherwise.
    pub(super) const fn is_like(&self, other: &Self) -> bool {
        self.has_same(other) && self.last == other.last
    }
}

/// Returns a rule of a restore as a save prints it.
pub(super) fn saved(family: Family, rule: &str) -> String {
    let mut general = [const { String::new() }; 4];
    let [source, destination, interface, protocol] = &mut general;
    let (mut matches, mut list, mut not) = (String::new(), "", "");
    let words = words(rule);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word {
            "!" => {
                not = "! ";
                continue;
            }
            "-s" => *source = format!("{not}-s {} ", net(value())),
            "-d" => *destination = format!("{not}-d {} ", net(value())),
            "-i" => *interface = format!("{not}-i {} ", value()),
            "-p" => *protocol = format!("{not}-p {} ", value()),
            "--name" => list = value(),
            "-j" => {
                let words: Vec<&str> = words.collect();
                matches.push_str(&target(family, &words));
                break;
            }
            _ => option(&mut matches, family, (not, word), list, value),
        }
        not = "";
    }
    general.concat() + matches.trim_end()
}

fn option<'a>(
    matches: &mut String,
    family: Family,
    (not, word): (&str, &str),
    list: &str,
    mut value: impl FnMut() -> &'a str,
) {
    let recent = || {
        let mask = match family {
            Family::Ipv4 => "255.255.255.255",
            Family::Ipv6 => "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
        };
        format!("--name {list} --mask {mask} --rsource")
    };
    // Writing to a String cannot fail.
    let _ = match word {
        "--comment" => write!(matches, "--comment \"{}\" ", value()),
        "--probability" => write!(matches, "--probability {} ", probability(value())),
        "--mark" => write!(matches, "{not}--mark {} ", marks(value())),
        "--set" | "--reap" => write!(matches, "{word} {} ", recent()),
        "--rcheck" => write!(matches, "--rcheck "),
        _ => write!(matches, "{not}{word} {} ", value()),
    };
}

fn target(family: Family, words: &[&str]) -> String {
    match (words, family) {
        (["MARK", "--or-mark", mark], _) => format!("-j MARK --set-xmark {0}/{0}", marks(mark)),
        (["MARK", "--xor-mark", mark], _) => format!("-j MARK --set-xmark {}/0x0", marks(mark)),
        (["REJECT"], Family::Ipv4) => "-j REJECT --reject-with icmp-port-unreachable".to_owned(),
        (["REJECT"], Family::Ipv6) => "-j REJECT --reject-with icmp6-port-unreachable".to_owned(),
        _ => format!("-j {}", words.join(" ")),
    }
}

fn net(text: &str) -> String {
    text.parse::<IpAddr>().map_or_else(|_| text.to_owned(), |address| IpNet::from(address).to_string())
}

/// Removes leading zeros: `0x00004000/0x00004000` becomes `0x4000/0x4000`.
fn marks(text: &str) -> String {
    let short = |mark: &str| format!("0x{}", mark.trim_start_matches("0x").trim_start_matches('0'));
    text.split('/').map(short).collect::<Vec<_>>().join("/")
}

/// Rounds a probability to the 31 bits that the kernel stores.
fn probability(text: &str) -> String {
    const ONE: f64 = 2_147_483_648.0;
    let value = text.parse::<f64>().unwrap_or_default();
    format!("{:.11}", (value * ONE).round() / ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_saves_print_them() {
        for (rule, expected) in [
            (
                "-m comment --comment a/b:c -m tcp -p tcp -d 127.0.0.0/8 --dport 3 -m nfacct --nfacct-name n -j X",
                "-d 127.0.0.0/8 -p tcp -m comment --comment \"a/b:c\" -m tcp --dport 3 -m nfacct --nfacct-name n -j X",
            ),
            (
                "-m comment --comment \"a -> b\" -m recent --name L --rcheck --seconds 9 --reap -j L",
                "-m comment --comment \"a -> b\" -m recent --rcheck --seconds 9 --reap --name L --mask 255.255.255.255 \
                 --rsource -j L",
            ),
            (
                "-m statistic --mode random --probability 0.3333333333 -j X",
                "-m statistic --mode random --probability 0.33333333349 -j X",
            ),
            ("-m mark ! --mark 0x00000020/0x00000020 -j RETURN", "-m mark ! --mark 0x20/0x20 -j RETURN"),
            ("-j MARK --xor-mark 0x00004000", "-j MARK --set-xmark 0x4000/0x0"),
            ("-m comment --comment \"only a word\"", "-m comment --comment \"only a word\""),
            ("-s 10.0.0.1 -j X", "-s 10.0.0.1/32 -j X"),
            ("-m udp -p udp -j REJECT", "-p udp -m udp -j REJECT --reject-with icmp-port-unreachable"),
            (
                "-m tcp -p tcp --dport 3 -j REJECT --reject-with tcp-reset",
                "-p tcp -m tcp --dport 3 -j REJECT --reject-with tcp-reset",
            ),
        ] {
            assert_eq!(saved(Family::Ipv4, rule), expected);
        }
    }
}
