use super::*;

pub(crate) fn moment(age_seconds: f64) -> Moment {
    Moment { at: "2026-03-01T10:00:00Z".into(), age_seconds }
}

pub(crate) fn sync(age: f64) -> Sync {
    Sync {
        ended: moment(age),
        mode: "nftables".into(),
        step: "commit".into(),
        changed: 5,
        examples: vec!["default/web:http".into(), "default/dns".into(), "shop/cart".into()],
        services: 1,
        elements: 12,
        bytes: 800,
        duration_seconds: 0.00123,
        kernel_seconds: 0.000_45,
        ..Sync::default()
    }
}

fn family(name: &str) -> Family {
    let start = Sync {
        full: true,
        reason: Some("start".into()),
        objects: 30,
        duration_seconds: 1.25,
        kernel_seconds: 0.9,
        ..sync(7_400.0)
    };
    Family {
        family: name.into(),
        mode: "nftables".into(),
        place: "nftables".into(),
        sync: "inSync".into(),
        since: Some(moment(200.0)),
        services: 120,
        service_ports: 240,
        frontends: 300,
        endpoints: 1_200,
        cluster_endpoints: 1_150,
        local_endpoints: 100,
        ports_without_endpoints: 2,
        syncs: vec![sync(12.0), start],
        events: vec![RecordedEvent::new(What::Compared("start"), moment(7_400.0), 1)],
        totals: Totals { syncs: 2, failures: 0, changed: 245 },
        ..Family::default()
    }
}

/// Returns the state of an agent without problems.
pub(crate) fn good() -> AgentState {
    let mut state = AgentState {
        version: VERSION,
        time: "2026-03-01T10:00:00Z".into(),
        agent: Agent {
            version: "v1.36.2+portolan-0.1.0".into(),
            node: "node1".into(),
            pid: 4711,
            started: moment(7_405.0),
        },
        mode: "nftables".into(),
        health: Health { healthy: true, ready: true, node_eligible: true, waiting_for: Vec::new() },
        objects: Objects { services: 121, endpoint_slices: 130, ..Objects::default() },
        engine_answered: true,
        families: vec![family("IPv4"), family("IPv6")],
        watches: vec![
            watch("services", 2.5),
            watch("endpointslices", 1.0),
            watch("nodes", 4.0),
            watch("servicecidrs", 40.0),
        ],
        conntrack: Some(Conntrack { entries: 1_000, max: 131_072 }),
        ..AgentState::default()
    };
    problems::judge(&mut state);
    state
}

fn watch(resource: &str, age: f64) -> Watch {
    Watch { resource: resource.into(), age_seconds: Some(age), failure: None }
}

/// Returns the state of an agent with every problem.
pub(crate) fn bad() -> AgentState {
    let mut state = good();
    state.mode = "userspace".into();
    state.capture = Some("tproxy".into());
    state.engine_answered = false;
    state.health = Health { waiting_for: vec!["the first commit of IPv6".into()], ..Health::default() };
    state.objects.pending_endpoint_slices = 3;
    state.conntrack = Some(Conntrack { entries: 130_000, max: 131_072 });
    state.relay = Some(Relay { connections: 12, flows: 3, failing_endpoints: 1, draining: 1 });
    state.watches[0].age_seconds = Some(1_000.0);
    state.watches[2].age_seconds = None;
    for (watch, times) in state.watches.iter_mut().zip([12, 13, 1]) {
        let reason = "connection refused\n".to_owned();
        let since = moment(200.0 + f64::from(times));
        watch.failure = Some(WatchFailure { since, last: moment(1.0), times, reason });
    }
    let [v4, v6] = &mut state.families[..] else { panic!("two families") };
    v4.sync = "comparing".into();
    v4.reason = Some("failure".into());
    v4.failures = vec![Sync {
        error: Some("iptables-restore: exit status 4\n\tline 3 failed\u{1b}[1m\n".into()),
        kernel_seconds: 0.0,
        ..sync(2.0)
    }];
    v4.refused_count = 12;
    v4.refused = (0..12)
        .map(|number| RefusedPort {
            service_port: format!("default/big-{number}:http"),
            protocol: "TCP".into(),
            in_part: false,
            reason: "too many Service ports".into(),
        })
        .collect();
    v6.place = "there".into();
    v6.successor = Some("iptables".into());
    v6.drift = Drift { noticed: 4, repaired: 2, last: Some(moment(20.0)), last_repaired: Some(moment(30.0)) };
    problems::judge(&mut state);
    state
}

/// Returns rates of Services, the busiest first.
pub(crate) fn rates(of_services: &[(&str, f64)]) -> ServiceRates {
    let service = |&(name, per_second): &(&str, f64)| {
        let (namespace, name) = name.split_once('/').unwrap();
        ServiceRate { namespace: namespace.into(), name: name.into(), per_second }
    };
    ServiceRates {
        over_seconds: Some(5.0),
        per_second: Some(of_services.iter().fold(0.0, |sum, (_, rate)| sum + rate)),
        active: 7,
        services: of_services.iter().map(service).collect(),
        ..ServiceRates::default()
    }
}

#[test]
fn the_text_of_an_agent_in_sync() {
    assert!(good().in_sync && good().problems.is_empty());
    let text = text::state(&good()).join("\n");
    insta::assert_snapshot!(text);
    let busiest = [("shop/frontend", 120.0), ("default/web", 60.25), ("shop/cart", 2.04)];
    let shown = [text::state(&good()), text::busiest(&rates(&busiest))].concat().join("\n");
    assert!(include_str!("../../../docs/status.md").contains(&shown), "the example on the page:\n{shown}");
}

#[test]
fn the_text_of_rates() {
    let lines = text::busiest(&rates(&[("shop/frontend", 120.0), ("a/b", 0.033)]));
    let head = "New connections: 120.0/s over 5s; the busiest of 7 Services";
    assert_eq!(lines, ["", head, "  shop/frontend  120.0/s", "  a/b            0.0/s"]);
    let idle = ServiceRates { active: 0, ..rates(&[]) };
    assert_eq!(text::busiest(&idle), ["", "New connections: 0.0/s over 5s"]);
    assert_eq!(text::busiest(&ServiceRates::default()), ["", "New connections: no rates yet"]);
    let off =
        ServiceRates { not_counted: Some("the mode\ncounts nothing".into()), ..ServiceRates::default() };
    assert_eq!(text::busiest(&off), ["", "New connections: the mode; counts nothing"]);
}

#[test]
fn the_text_of_an_agent_with_every_problem() {
    assert!(!bad().in_sync);
    insta::assert_snapshot!(text::state(&bad()).join("\n"));
}

#[test]
fn the_text_of_an_agent_that_has_just_been_started() {
    let mut state = AgentState {
        health: Health {
            healthy: true,
            waiting_for: vec!["the list of Services".into(), "the list of EndpointSlices".into()],
            ..Health::default()
        },
        families: Vec::new(),
        conntrack: None,
        ..good()
    };
    problems::judge(&mut state);
    assert!(!state.in_sync, "there is nothing in the kernel");
    insta::assert_snapshot!(text::state(&state).join("\n"));
}

#[test]
fn every_code_occurs_and_is_on_the_page() {
    let page = include_str!("../../../docs/status.md");
    let mut found: Vec<String> = bad().problems.into_iter().map(|problem| problem.code).collect();
    let mut state = good();
    state.health.node_eligible = false;
    problems::judge(&mut state);
    found.extend(state.problems.into_iter().map(|problem| problem.code));
    for code in problems::ALL {
        assert!(found.iter().any(|found| found == code), "{code} does not occur");
        assert!(page.contains(&format!("| `{code}` |")), "{code} is not on the page");
    }
    assert!(found.iter().all(|found| problems::ALL.contains(&found.as_str())), "{found:?}");
}

#[test]
fn each_part_decides_whether_all_is_in_sync() {
    type Change = fn(&mut AgentState);
    let changes: [(&str, Change); 4] = [
        ("a family", |state| state.families[1].sync = "comparing".into()),
        ("no family", |state| state.families.clear()),
        ("the engine", |state| state.engine_answered = false),
        ("the start", |state| state.health.ready = false),
    ];
    for (what, change) in changes {
        let mut state = good();
        change(&mut state);
        problems::judge(&mut state);
        assert!(!state.in_sync, "{what}");
    }
}

#[test]
fn a_drift_of_long_ago_is_no_problem() {
    let mut state = good();
    // Other programs still write to watched chains, and change nothing there.
    let (last, last_repaired) = (Some(moment(5.0)), Some(moment(3_600.0)));
    state.families[0].drift = Drift { noticed: 9, repaired: 1, last, last_repaired };
    problems::judge(&mut state);
    assert!(state.in_sync && state.problems.is_empty(), "{:?}", state.problems);
}

fn ready() -> Choice {
    Choice { used: true, code: "endpoint-ready".into(), text: "is used: it is ready".into() }
}

fn left_out(code: &str, reason: &str) -> Choice {
    Choice { used: false, code: code.into(), text: format!("is left out: {reason}") }
}

fn candidate(address: &str, cluster: Choice, local: Choice) -> Candidate {
    Candidate { address: address.into(), slice: "web-abcde".into(), on_this_node: false, cluster, local }
}

fn page() -> ServicePage {
    let frontend = |kind: &str, address: Option<&str>, port| Frontend {
        kind: kind.into(),
        address: address.map(str::to_owned),
        port,
    };
    let passed = |connections| Some(Passed { connections, packets: None, bytes: None });
    let endpoint = |address: &str, cluster, local| Endpoint {
        address: address.into(),
        cluster,
        local,
        counters: passed(1),
    };
    let http = ServicePort {
        family: "IPv4".into(),
        name: "http".into(),
        protocol: "TCP".into(),
        frontends: vec![
            frontend("clusterIP", Some("10.96.0.10"), 80),
            frontend("externalIP", Some("198.51.100.1"), 80),
            frontend("loadBalancerIP", Some("192.0.2.7"), 80),
            frontend("nodePort", None, 30_080),
        ],
        internal_traffic_policy: "Cluster".into(),
        external_traffic_policy: "Local".into(),
        session_affinity_seconds: Some(10_800),
        source_ranges: vec!["203.0.113.0/24".into()],
        has_endpoints: true,
        endpoints: vec![
            endpoint("10.244.1.10:8080", true, false),
            endpoint("10.244.2.10:8080", true, true),
            endpoint("10.244.2.11:8080", false, true),
        ],
        counters: Some(Counters {
            passed: passed(14),
            refused: Refused { source_range: Some(2), no_local_endpoint: Some(0), no_endpoint: None },
        }),
        candidates: Some(vec![
            candidate(
                "10.244.1.10:8080",
                ready(),
                left_out("endpoint-on-other-node", "it is on another node"),
            ),
            candidate(
                "10.244.1.12:8080",
                left_out("endpoint-not-ready", "it is not ready"),
                left_out("endpoint-on-other-node", "it is on another node"),
            ),
            candidate(
                "10.244.2.13:8080",
                left_out(Candidate::NO_TRAFFIC, "no traffic policy uses this list of endpoints"),
                left_out("endpoint-not-serving", "it is terminating and not serving"),
            ),
        ]),
        refused: None,
        refused_in_part: false,
    };
    let none = ServicePort {
        family: "IPv6".into(),
        name: String::new(),
        protocol: "UDP".into(),
        frontends: vec![frontend("clusterIP", Some("fd00:96::a"), 53)],
        internal_traffic_policy: "Cluster".into(),
        external_traffic_policy: "Cluster".into(),
        refused: Some("too many Service ports".into()),
        ..ServicePort::default()
    };
    let web = Service {
        namespace: "default".into(),
        name: "web".into(),
        health_check_node_port: Some(31_000),
        ports: vec![http, none.clone()],
    };
    let away = ServicePort { has_endpoints: true, refused: None, ..none };
    let dns =
        Service { namespace: "default".into(), name: "dns".into(), ports: vec![away], ..Service::default() };
    ServicePage { services: vec![web, dns], next: Some("default/dns".into()), ..ServicePage::default() }
}

#[test]
fn a_service_port_without_all_endpoints_is_programmed() {
    let mut page = page();
    page.services[0].ports[1].refused_in_part = true;
    let text = text::services(&page).join("\n");
    assert!(text.contains("NOT ALL ENDPOINTS ARE USED: too many Service ports"), "{text}");
    assert!(!text.contains("NOT PROGRAMMED"), "{text}");
}

#[test]
fn the_text_of_services() {
    insta::assert_snapshot!(text::services(&page()).join("\n"));
}

#[test]
fn the_documents_are_read_as_written_and_names_are_stable() {
    let written = serde_json::to_string(&bad()).unwrap();
    assert_eq!(serde_json::from_str::<AgentState>(&written).unwrap(), bad());
    let written = serde_json::to_string(&page()).unwrap();
    assert_eq!(serde_json::from_str::<ServicePage>(&written).unwrap(), page());
    let mut short = bad();
    short.families.truncate(1);
    short.families[0].refused.truncate(1);
    short.families[0].syncs.truncate(1);
    short.problems.truncate(1);
    insta::assert_snapshot!("state_as_json", serde_json::to_string_pretty(&short).unwrap());
    insta::assert_snapshot!("services_as_json", serde_json::to_string_pretty(&page()).unwrap());
    // Documents of other versions have more or fewer fields.
    let other: AgentState = serde_json::from_str(r#"{"version":2,"inSync":true,"colour":"red"}"#).unwrap();
    assert!(other.in_sync && other.version == 2 && other.families.is_empty());
}

#[test]
fn ages_have_two_units() {
    let table = [
        (-1.0, "0s"),
        (0.9, "0s"),
        (59.9, "59s"),
        (60.0, "1m"),
        (61.0, "1m1s"),
        (3_600.0, "1h"),
        (3_659.0, "1h"),
        (7_260.0, "2h1m"),
        (90_000.0, "1d1h"),
        (f64::NAN, "0s"),
    ];
    for (seconds, want) in table {
        assert_eq!(format::age(seconds), want, "{seconds}");
    }
    assert_eq!(
        (format::percent(1, 0), format::percent(1, 3), format::percent(u64::MAX, 1)),
        (0, 33, u64::MAX)
    );
}
