//! Questions without an answer, each with its mend.

use super::world::{World, question};
use crate::resolve::Unanswerable;

#[test]
fn errors_name_the_choices() {
    let world = World::new();
    let table = [
        ("pod/nobody", "svc/web"),
        ("pod/twin", "svc/web"),
        ("pod/client.default", "svc/web"),
        ("node", "svc/nothing"),
        ("node", "svc/web.default"),
        ("node", "svc/web:81"),
        ("node", "svc/web:https"),
        ("node", "svc/web/udp"),
        ("node", "svc/twin"),
        ("node", "svc/dns"),
        ("node", "svc/dns:53"),
        ("10.244.1.10", "svc/six"),
        ("pod/client", "svc/six"),
        ("10.244.1.10", "[fd00:96::86]:80"),
        ("pod/client", "[fd00:96::86]:80"),
    ];
    let text = |(from, to): &(&str, &str)| {
        format!("$ explain {from} {to}\n{}\n", world.try_answer(from, to).unwrap_err())
    };
    insta::assert_snapshot!(table.iter().map(text).collect::<Vec<_>>().join("\n"));
}

#[test]
fn what_the_errors_offer_has_an_answer() {
    let world = World::new();
    for (from, to) in [("node", "svc/twin"), ("node", "svc/dns"), ("pod/twin", "svc/web")] {
        let choices = match world.try_answer(from, to).unwrap_err() {
            Unanswerable::AmbiguousService { choices, .. } | Unanswerable::AmbiguousPod { choices, .. } => {
                choices
            }
            other => panic!("{other}"),
        };
        assert_eq!(choices.len(), 2, "{choices:?}");
        for choice in choices {
            let (from, to) =
                if choice.starts_with("pod/") { (choice.as_str(), to) } else { (from, choice.as_str()) };
            world.answer(from, to);
        }
    }
}

#[test]
fn a_family_that_is_not_served() {
    let mut world = World::new();
    world.node.families.ipv6 = None;
    let error = crate::answer(&question("outside", "svc/six"), &world.facts()).unwrap_err();
    assert_eq!(error.to_string(), "IPv6 is not served on this node");
}
