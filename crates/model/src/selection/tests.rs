use super::*;
use proptest::prelude::*;

/// Parses `Rl1{a;n1}`: class R, T or N; local (l) or remote (r, or nothing); number; zone hints; node hints. This
/// node is `node`, and its zone is `a`.
fn endpoint(text: &str, node: &str) -> Endpoint {
    let (head, hints) = text.split_once('{').unwrap_or((text, "}"));
    let hints = hints.trim_end_matches('}');
    let (zones, nodes) = hints.split_once(';').unwrap_or((hints, ""));
    let class = &head[..1];
    let local = head[1..].starts_with('l');
    let number: u8 = head[1..].trim_start_matches(['l', 'r']).parse().unwrap();
    let hint = |names: &str, own: &str| match names {
        "" => Hint::Absent,
        names if names.split(',').any(|name| name == own) => Hint::Here,
        _ => Hint::Elsewhere,
    };
    Endpoint {
        backend: Backend { address: [10, 0, 0, number].into(), port: 80, may_hairpin: local },
        ready: class == "R",
        serving: class != "N",
        terminating: class == "T",
        aside: false,
        local,
        node_hint: hint(nodes, node),
        zone_hint: hint(zones, "a"),
    }
}

fn numbers(backends: &[Backend]) -> Vec<u8> {
    let last = |backend: &Backend| match backend.address {
        std::net::IpAddr::V4(v4) => v4.octets()[3],
        std::net::IpAddr::V6(_) => panic!("IPv6 in an IPv4 case"),
    };
    backends.iter().map(last).collect()
}

const CLUSTER: Demand = Demand { cluster: true, local: false };
const LOCAL: Demand = Demand { cluster: false, local: true };
const BOTH: Demand = Demand { cluster: true, local: true };

/// Number, demand, this node, endpoints, then C, L, U and A.
type Case = (u8, Demand, &'static str, &'static str, &'static [u8], &'static [u8], &'static [u8], bool);

/// The expected selection for combinations of policies and endpoints.
const CASES: [Case; 20] = [
    (1, CLUSTER, "n0", "Rl1 Rr2", &[1, 2], &[], &[1, 2], true),
    (2, CLUSTER, "n0", "N1 N2", &[], &[], &[], false),
    (3, CLUSTER, "n0", "Tl1 Tr2", &[1, 2], &[], &[1, 2], true),
    (4, CLUSTER, "n0", "R1 T2", &[1], &[], &[1], true),
    (5, LOCAL, "n0", "Rr1 Rr2", &[], &[], &[], true),
    (6, LOCAL, "n0", "", &[], &[], &[], false),
    (7, LOCAL, "n0", "Tl1 Rr2", &[], &[1], &[1], true),
    (8, BOTH, "n0", "Rl1 Rr2", &[1, 2], &[1], &[1, 2], true),
    (9, BOTH, "n0", "Rr1 Nl2 Tl3 Tr4", &[1], &[3], &[1, 3], true),
    (10, BOTH, "n0", "Tr1 Tr2", &[1, 2], &[], &[1, 2], true),
    (11, CLUSTER, "n0", "Rr1 Rl2", &[1, 2], &[], &[1, 2], true),
    (12, CLUSTER, "n0", "R1{a} R2{b} R3{c} R4{a}", &[1, 4], &[], &[1, 4], true),
    (13, CLUSTER, "n0", "N1{a} R2{b} R3{c} N4{a}", &[2, 3], &[], &[2, 3], true),
    (14, CLUSTER, "n0", "R1{a} R2", &[1, 2], &[], &[1, 2], true),
    (15, CLUSTER, "n0", "R1{a;n1} R2{b;n2} R3{a;n4}", &[1, 3], &[], &[1, 3], true),
    (16, CLUSTER, "n1", "R1{a;n1} R2{a;n2}", &[1], &[], &[1], true),
    (17, CLUSTER, "n1", "R1{a;n1} R2", &[1, 2], &[], &[1, 2], true),
    (18, BOTH, "n0", "Rl1{a} Rl2{b} Rr3{c} Rr4{a}", &[1, 4], &[1, 2], &[1, 2, 4], true),
    (19, CLUSTER, "n0", "T1{a} T2{b}", &[1, 2], &[], &[1, 2], true),
    (20, BOTH, "n0", "Rl1 Tl2 Rr3", &[1, 3], &[1], &[1, 3], true),
];

#[test]
fn worked_cases() {
    for (number, demand, node, endpoints, cluster, local, reachable, has_endpoints) in CASES {
        let endpoints: Vec<Endpoint> = endpoints.split_whitespace().map(|e| endpoint(e, node)).collect();
        let selection = select(&endpoints, demand);
        assert_eq!(numbers(&selection.cluster), cluster, "C of case {number}");
        assert_eq!(numbers(&selection.local), local, "L of case {number}");
        assert_eq!(numbers(&selection.reachable()), reachable, "U of case {number}");
        assert_eq!(selection.has_endpoints, has_endpoints, "A of case {number}");
    }
}

#[test]
fn terminating_but_not_serving_is_never_used() {
    let mut gone = endpoint("Tl1", "n0");
    gone.serving = false;
    assert_eq!(select(&[gone], BOTH), Selection::default());
}

#[test]
fn ready_while_terminating_counts_as_ready() {
    let mut published = endpoint("Rl1", "n0");
    published.terminating = true;
    assert_eq!(numbers(&select(&[published, endpoint("Tl2", "n0")], BOTH).local), [1]);
}

#[test]
fn duplicates_prefer_the_one_that_stays() {
    let mut leaving = endpoint("Rl1", "n0");
    leaving.terminating = true;
    let staying = Endpoint { ready: false, terminating: false, ..endpoint("Rr1", "n0") };
    for order in [[leaving, staying], [staying, leaving]] {
        let mut endpoints = order.to_vec();
        settle_duplicates(&mut endpoints);
        assert_eq!(endpoints, [staying]);
    }
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let hint = prop_oneof![Just(Hint::Absent), Just(Hint::Elsewhere), Just(Hint::Here)];
    let flags = any::<(bool, bool, bool, bool, bool)>();
    (0_u8..6, 80_u16..82, flags, hint.clone(), hint).prop_map(|(host, port, flags, node_hint, zone_hint)| {
        let (ready, serving, terminating, local, may_hairpin) = flags;
        let backend = Backend { address: [10, 0, 0, host].into(), port, may_hairpin };
        Endpoint { backend, ready, serving, terminating, aside: false, local, node_hint, zone_hint }
    })
}

proptest! {
    #[test]
    fn order_of_arrival_does_not_matter(
        (endpoints, shuffled) in proptest::collection::vec(any_endpoint(), 0..20)
            .prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
    ) {
        let (mut a, mut b) = (endpoints, shuffled);
        settle_duplicates(&mut a);
        settle_duplicates(&mut b);
        prop_assert_eq!(&a, &b);
        let places: Vec<_> = a.iter().map(|e| e.backend.socket()).collect();
        prop_assert!(places.is_sorted_by(|x, y| x < y));
    }

    #[test]
    fn selection_invariants(mut endpoints in proptest::collection::vec(any_endpoint(), 0..12), demand in any::<(bool, bool)>()) {
        settle_duplicates(&mut endpoints);
        let demand = Demand { cluster: demand.0, local: demand.1 };
        let selection = select(&endpoints, demand);
        let of = |b: &Backend| *endpoints.iter().find(|e| e.backend == *b).expect("selected from the input");
        // Every selected endpoint is from the input and usable.
        for chosen in selection.reachable() {
            let chosen = of(&chosen);
            prop_assert!(chosen.ready || (chosen.serving && chosen.terminating));
        }
        prop_assert!(selection.local.iter().all(|b| of(b).local));
        // A set has only ready or only fall-back endpoints.
        for set in [&selection.cluster, &selection.local] {
            prop_assert!(set.iter().all(|b| of(b).ready) || set.iter().all(|b| !of(b).ready));
        }
        // A set that is not requested stays empty. A cluster set exists if any endpoint is usable.
        prop_assert!(demand.cluster || selection.cluster.is_empty());
        prop_assert!(demand.local || selection.local.is_empty());
        if demand.cluster {
            prop_assert_eq!(selection.has_endpoints, !selection.cluster.is_empty());
        }
    }
}

/// No endpoint fails.
const fn nothing(_: &Endpoint) -> bool {
    false
}

/// Returns the codes of the cluster list and of the local list, by the number of the endpoint.
fn codes(endpoints: &str, demand: Demand) -> Vec<(u8, &'static str, &'static str)> {
    let all = endpoints.split_whitespace().map(|text| (endpoint(text, "n0"), ())).collect();
    let line = |explained: &Explained<()>| {
        let number = numbers(&[explained.endpoint.backend])[0];
        (number, explained.cluster.code(), explained.local.code())
    };
    explain(all, demand, nothing).endpoints.iter().map(line).collect()
}

#[test]
fn choices_by_condition() {
    assert_eq!(
        codes("Rl1 Rr2 Tl3 Tr4 N5 Nl6", BOTH),
        [
            (1, "endpoint-ready", "endpoint-ready"),
            (2, "endpoint-ready", "endpoint-on-other-node"),
            (3, "endpoint-terminating", "endpoint-terminating"),
            (4, "endpoint-terminating", "endpoint-on-other-node"),
            (5, "endpoint-not-ready", "endpoint-on-other-node"),
            (6, "endpoint-not-ready", "endpoint-not-ready"),
        ]
    );
    assert_eq!(
        codes("Rr1 Tl2", BOTH),
        [
            (1, "endpoint-ready", "endpoint-on-other-node"),
            (2, "endpoint-terminating", "endpoint-terminating-used"),
        ]
    );
    assert_eq!(codes("T1", CLUSTER), [(1, "endpoint-terminating-used", "endpoint-list-unused")]);
    assert_eq!(codes("Rl1", LOCAL), [(1, "endpoint-list-unused", "endpoint-ready")]);
    let stopped = Endpoint { serving: false, ..endpoint("Tl1", "n0") };
    let nowhere = Endpoint {
        local: false,
        backend: Backend { may_hairpin: true, ..endpoint("R2", "n0").backend },
        ..endpoint("R2", "n0")
    };
    let explanation = explain(vec![(stopped, ()), (nowhere, ())], BOTH, nothing);
    let choices: Vec<_> = explanation.endpoints.iter().map(|e| (e.cluster, e.local)).collect();
    assert_eq!(choices, [(Choice::NotServing, Choice::NotServing), (Choice::Ready, Choice::UnknownNode)]);
}

#[test]
fn choices_by_hints() {
    let (zone, other_zone) = ("endpoint-hinted-zone", "endpoint-hinted-other-zone");
    let (node, other_node) = ("endpoint-hinted-node", "endpoint-hinted-other-node");
    let unused = "endpoint-list-unused";
    assert_eq!(codes("R1{a} R2{b}", CLUSTER), [(1, zone, unused), (2, other_zone, unused)]);
    assert_eq!(codes("R1{a;n1} R2{a;n0}", CLUSTER), [(1, other_node, unused), (2, node, unused)]);
    // Hints do not concern endpoints that are not ready, nor the local list.
    assert_eq!(codes("R1{a} N2{b}", CLUSTER)[1], (2, "endpoint-not-ready", unused));
    assert_eq!(codes("R1{a} Rl2{b}", BOTH)[1], (2, other_zone, "endpoint-ready"));
}

#[test]
fn hints_that_are_followed_or_not() {
    use HintUse::{Absent, Followed, Incomplete, NoneHere, Superseded};
    for (endpoints, node_hints, zone_hints) in [
        ("R1 R2", Absent, Absent),
        ("T1{a;n0}", Absent, Absent),
        ("R1{a} R2{b} N3", Absent, Followed),
        ("R1{a} R2", Absent, Incomplete),
        ("R1{b} R2{c}", Absent, NoneHere),
        ("R1{a;n0} R2{b;n1}", Followed, Superseded),
        ("R1{a;n0} R2{b}", Incomplete, Followed),
        ("R1{a;n1} R2{b;n2}", NoneHere, Followed),
    ] {
        let all: Vec<_> = endpoints.split_whitespace().map(|text| (endpoint(text, "n0"), ())).collect();
        let explanation = explain(all.clone(), CLUSTER, nothing);
        assert_eq!((explanation.node_hints, explanation.zone_hints), (node_hints, zone_hints), "{endpoints}");
        let explanation = explain(all, LOCAL, nothing);
        assert_eq!((explanation.node_hints, explanation.zone_hints), (Absent, Absent), "{endpoints}");
    }
}

#[test]
fn duplicates_are_explained_after_the_entry_in_use() {
    let (ready, leaving) = (endpoint("Rr1", "n0"), endpoint("Tl1", "n0"));
    let explanation = explain(vec![(leaving, "leaving"), (ready, "ready")], BOTH, nothing);
    let lines: Vec<_> = explanation.endpoints.iter().map(|e| (e.from, e.cluster, e.local)).collect();
    let duplicate = Choice::Duplicate;
    assert_eq!(lines, [("ready", Choice::Ready, Choice::OtherNode), ("leaving", duplicate, duplicate)]);
}

proptest! {
    /// The rules as the KEPs state them: lists are filtered one after the other.
    #[test]
    fn selection_is_that_of_the_keps(mut endpoints in proptest::collection::vec(any_endpoint(), 0..12)) {
        settle_duplicates(&mut endpoints);
        let of = |wanted: &dyn Fn(&&Endpoint) -> bool| {
            endpoints.iter().filter(wanted).map(|e| e.backend).collect::<Vec<_>>()
        };
        let ready: Vec<&Endpoint> = endpoints.iter().filter(|e| e.ready).collect();
        let follow = |hint: &dyn Fn(&Endpoint) -> Hint| {
            ready.iter().all(|e| hint(e) != Hint::Absent) && ready.iter().any(|e| hint(e) == Hint::Here)
        };
        let node = follow(&|e| e.node_hint);
        let zone = !node && follow(&|e| e.zone_hint);
        let mut cluster = of(&|e| {
            e.ready && (!node || e.node_hint == Hint::Here) && (!zone || e.zone_hint == Hint::Here)
        });
        if cluster.is_empty() {
            cluster = of(&|e| !e.ready && e.serving && e.terminating);
        }
        let mut local = of(&|e| e.local && e.ready);
        if local.is_empty() {
            local = of(&|e| e.local && !e.ready && e.serving && e.terminating);
        }
        let selection = select(&endpoints, BOTH);
        prop_assert_eq!((&selection.cluster, &selection.local), (&cluster, &local));
    }

    #[test]
    fn explained_choices_are_the_selection(
        endpoints in proptest::collection::vec(any_endpoint(), 0..16),
        demand in any::<(bool, bool)>(),
    ) {
        let demand = Demand { cluster: demand.0, local: demand.1 };
        let explanation = explain(endpoints.iter().map(|e| (*e, *e)).collect(), demand, nothing);
        prop_assert_eq!(explanation.endpoints.len(), endpoints.len());
        prop_assert!(explanation.endpoints.iter().all(|e| e.from == e.endpoint));
        let used = |list: fn(&Explained<Endpoint>) -> Choice| -> Vec<Backend> {
            let used = explanation.endpoints.iter().filter(|e| list(e).is_used());
            used.map(|e| e.endpoint.backend).collect()
        };
        let mut settled = endpoints.clone();
        settle_duplicates(&mut settled);
        let selection = select(&settled, demand);
        prop_assert_eq!(used(|e| e.cluster), selection.cluster);
        prop_assert_eq!(used(|e| e.local), selection.local);
        let considered = explanation.endpoints.iter().filter(|e| e.cluster != Choice::Duplicate);
        prop_assert_eq!(considered.map(|e| e.endpoint).collect::<Vec<_>>(), settled);
    }
    /// Setting endpoints aside takes failing ones out of a list, unless the list would be empty.
    #[test]
    fn failing_endpoints_are_set_aside_while_others_are_ready(
        endpoints in proptest::collection::vec(any_endpoint(), 0..12),
        demand in any::<(bool, bool)>(),
        failing in any::<u8>(),
    ) {
        let demand = Demand { cluster: demand.0, local: demand.1 };
        let is_failing = |e: &Endpoint| match e.backend.address {
            std::net::IpAddr::V4(v4) => failing & (1 << v4.octets()[3]) != 0,
            std::net::IpAddr::V6(_) => false,
        };
        let mut settled = endpoints.clone();
        settle_duplicates(&mut settled);
        let before = select(&settled, demand);
        let of_input = settled.clone();
        settle_aside(&mut settled, demand, is_failing);
        let after = select(&settled, demand);
        prop_assert_eq!(before.has_endpoints, after.has_endpoints);
        for (before, after, is_local) in
            [(&before.cluster, &after.cluster, false), (&before.local, &after.local, true)]
        {
            prop_assert_eq!(before.is_empty(), after.is_empty());
            let of = |b: &Backend| of_input.iter().find(|e| e.backend == *b).expect("of the input");
            let ready = of_input.iter().filter(|e| e.ready && (e.local || !is_local));
            // With both lists, an endpoint that one of them needs stays in the other one, too.
            let needed = |e: &Endpoint| {
                demand.local && e.local && of_input.iter().filter(|e| e.ready && e.local).all(is_failing)
            };
            if ready.clone().any(|e| !is_failing(e)) {
                let used: Vec<&Endpoint> = after.iter().map(of).filter(|e| e.ready).collect();
                prop_assert!(used.iter().all(|e| !is_failing(e) || needed(e)));
            }
        }
        let explanation = explain(endpoints.iter().map(|e| (*e, ())).collect(), demand, is_failing);
        let used = |list: fn(&Explained<()>) -> Choice| -> Vec<Backend> {
            let used = explanation.endpoints.iter().filter(|e| list(e).is_used());
            used.map(|e| e.endpoint.backend).collect()
        };
        prop_assert_eq!((used(|e| e.cluster), used(|e| e.local)), (after.cluster, after.local));
    }
}

#[test]
fn an_endpoint_that_is_set_aside_says_so() {
    let codes = |endpoints: &str, demand, failing: &[u8]| {
        let all = endpoints.split_whitespace().map(|text| (endpoint(text, "n0"), ())).collect();
        let is_failing = |e: &Endpoint| failing.contains(&numbers(&[e.backend])[0]);
        let explained = explain(all, demand, is_failing).endpoints;
        explained.iter().map(|e| (e.cluster.code(), e.local.code())).collect::<Vec<_>>()
    };
    let (ready, aside) = ("endpoint-ready", "endpoint-set-aside");
    let unused = "endpoint-list-unused";
    assert_eq!(codes("R1 R2", CLUSTER, &[1]), [(aside, unused), (ready, unused)]);
    assert_eq!(codes("R1 R2", CLUSTER, &[1, 2]), [(ready, unused); 2]);
    // The only endpoint of this node stays, and terminating endpoints do not replace failing ones.
    assert_eq!(codes("Rl1 R2", BOTH, &[1]), [(ready, ready), (ready, "endpoint-on-other-node")]);
    assert_eq!(codes("R1 T2", CLUSTER, &[1]), [(ready, unused), ("endpoint-terminating", unused)]);
    // Without the endpoint of this zone, all zones serve.
    assert_eq!(codes("R1{a} R2{b}", CLUSTER, &[1]), [(aside, unused), (ready, unused)]);
}
