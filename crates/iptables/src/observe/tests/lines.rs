use portolan_model::observed::Counters;
use proptest::prelude::*;

use super::super::comment;
use super::super::line::{Match, Rule};
use crate::name::Hash;

#[test]
fn the_parts_of_a_rule() {
    let line = "[12:345] -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"demo/web:http cluster IP\" \
                -m tcp --dport 80 -j KUBE-SVC-XRY76EGRC3BSCIIJ";
    let rule = Rule::parse(line).unwrap();
    assert_eq!(rule.chain, "KUBE-SERVICES");
    assert_eq!(rule.counters, Some(Counters::of_connections(12)));
    assert!(rule.has(&[Match::Destination, Match::Protocol, Match::Port]));
    assert_eq!(rule.to(), Some("10.96.0.1".parse().unwrap()));
    assert_eq!(rule.port(), Some(80));
    assert_eq!(rule.target(), "KUBE-SVC-XRY76EGRC3BSCIIJ");
    assert!(rule.chain_of_service().is_some() && !rule.ends_chain());

    let rule = Rule::parse("-A X -p tcp -j DNAT --to-destination [fd00::1]:80 --persistent").unwrap();
    assert_eq!(rule.argument("--to-destination"), Some("[fd00::1]:80"));
    assert_eq!((rule.argument("--persistent"), rule.argument("--random")), (None, None));
}

#[test]
fn words_in_quotes() {
    let comment = |text: &str| Rule::parse(text).unwrap().comment.into_owned();
    assert_eq!(
        comment(r#"-A X -m comment --comment "he said \"-j DROP\" a\\b" -j RETURN"#),
        r#"he said "-j DROP" a\b"#
    );
    assert_eq!(comment("-A X -m comment --comment plain -j RETURN"), "plain");
    assert_eq!(comment("-A X -m comment --comment \"without end -j RETURN"), "without end -j RETURN");
    assert_eq!(comment("-A X -m comment --comment \"\" -j RETURN"), "");
}

#[test]
fn what_ends_a_chain() {
    let ends = |text: &str| Rule::parse(&format!("-A X {text}")).unwrap().ends_chain();
    for text in
        ["-j RETURN", "-j REJECT --reject-with tcp-reset", "-g MINE", "-m comment --comment a -j DROP"]
    {
        assert!(ends(text), "{text}");
    }
    for text in ["-j MINE", "-j LOG", "-p udp -j DROP", "-m socket -j DROP", "! -i eth0 -j DROP", "", "-j"] {
        assert!(!ends(text), "{text}");
    }
}

#[test]
fn names_in_comments() {
    let hash = Hash::of(&["demo/web:http", "tcp"]);
    for comment in [
        "demo/web:http",
        "demo/web:http cluster IP",
        "demo/web:http -> 10.180.0.11:8080",
        "masquerade traffic for demo/web:http external destinations",
        "other traffic to demo/web:http will be dropped by KUBE-PROXY-FIREWALL",
    ] {
        let name = comment::name_of(comment, hash).unwrap();
        assert_eq!((name.to_string().as_str(), name.protocol.name()), ("demo/web:http", "TCP"));
    }
    for comment in ["", "/", "demo/web", "demo/web:dns cluster IP", "a/b demo/web:http"] {
        assert_eq!(comment::name_of(comment, hash), None, "{comment}");
    }
}

proptest! {
    #[test]
    fn any_line_is_a_rule_or_none(line in "(-A X )?[-!\"\\\\ a-z0-9/:.\\[\\]é]{0,60}") {
        if let Some(rule) = Rule::parse(&line) {
            rule.ends_chain();
            rule.argument("a");
            let _ = (rule.to(), rule.port(), rule.chain_of_service(), comment::split(&rule.comment));
        }
    }
}
