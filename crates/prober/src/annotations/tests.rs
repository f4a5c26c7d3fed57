use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;

use super::*;

fn of(pairs: &[(&str, &str)]) -> Parsed {
    let all: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| (format!("{PREFIX}{name}"), (*value).to_owned())).collect();
    parse(Some(&all))
}

fn valid(pairs: &[(&str, &str)]) -> HealthCheck {
    let parsed = of(pairs);
    assert_eq!(parsed.complaints, []);
    let Wish::Valid(check) = parsed.wish else { panic!("{parsed:?}") };
    check
}

fn complaints(pairs: &[(&str, &str)]) -> Vec<String> {
    of(pairs).complaints.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_without_annotations_is_not_checked() {
    let nothing = Parsed { wish: Wish::Absent, complaints: vec![] };
    assert_eq!(parse(None), nothing);
    assert_eq!(of(&[]), nothing);
    let other = BTreeMap::from([("example.com/health-check".to_owned(), "tcp".to_owned())]);
    assert_eq!(parse(Some(&other)), nothing);
}

#[test]
fn the_defaults() {
    let check = valid(&[("", "tcp")]);
    let wanted = HealthCheck {
        probe: Probe::Tcp,
        port: PortChoice::First,
        timing: Timing::default(),
        fail_open: None,
    };
    assert_eq!(check, wanted);
    let Probe::Http(request) = valid(&[("", "http /healthz?full=1")]).probe else { panic!() };
    assert_eq!((request.tls, request.path.as_str(), request.host), (false, "/healthz?full=1", None));
    assert_eq!(request.statuses.to_string(), STATUSES.default);
}

#[test]
fn every_annotation_is_read() {
    let check = valid(&[
        ("", " https  /ok "),
        ("-port", "8443"),
        ("-host", "shop.example.com"),
        ("-statuses", "200,301"),
        ("-interval", "2s"),
        ("-timeout", "1500ms"),
        ("-rise", "1"),
        ("-fall", "5"),
        ("-slow-start", "1m"),
        ("-fail-open", "25%"),
    ]);
    insta::assert_debug_snapshot!(check, @r##"
    HealthCheck {
        probe: Http(
            HttpProbe {
                tls: true,
                path: /ok,
                host: Some(
                    "shop.example.com",
                ),
                statuses: Statuses {
                    ranges: [
                        200..=200,
                        301..=301,
                    ],
                    is_default: false,
                },
            },
        ),
        port: Number(
            8443,
        ),
        timing: Timing {
            interval: 2s,
            timeout: 1.5s,
            rise: 1,
            fall: 5,
            slow_start: 60s,
        },
        fail_open: Some(
            25,
        ),
    }
    "##);
    assert_eq!(valid(&[("", "tcp"), ("-port", "http-alt")]).port, PortChoice::Name("http-alt".to_owned()));
    assert_eq!(valid(&[("", "tcp"), ("-fail-open", "never")]).fail_open, None);
    assert_eq!(valid(&[("", "tcp"), ("-fail-open", "0%")]).fail_open, Some(0));
}

#[test]
fn each_complaint_names_annotation_value_and_mend() {
    let all = [
        &[("", "tcp /x")][..],
        &[("", "http")],
        &[("", "http healthz")],
        &[("", "HTTP /")],
        &[("", "http /a b")],
        &[("", "http /"), ("-host", "a:80")],
        &[("", "http /"), ("-statuses", "2xx")],
        &[("", "tcp"), ("-port", "0")],
        &[("", "tcp"), ("-port", "65536")],
        &[("", "tcp"), ("-interval", "5")],
        &[("", "tcp"), ("-interval", "2s"), ("-timeout", "3s")],
        &[("", "tcp"), ("-rise", "0"), ("-fall", "101")],
        &[("", "tcp"), ("-slow-start", "2h"), ("-fail-open", "100%")],
        &[("", "tcp"), ("-statuses", "200")],
        &[("-interval", "5s")],
        &[("", "tcp"), ("-intervall", "5s")],
    ];
    let text: Vec<String> = all.iter().flat_map(|pairs| complaints(pairs)).collect();
    insta::assert_snapshot!(text.join("\n"), @r##"
    portolan.dev/health-check: "tcp /x" is not valid; write tcp, http PATH or https PATH
    portolan.dev/health-check: "http" is not valid; write tcp, http PATH or https PATH
    portolan.dev/health-check: "http healthz" is not valid; write tcp, http PATH or https PATH
    portolan.dev/health-check: "HTTP /" is not valid; write tcp, http PATH or https PATH
    portolan.dev/health-check: "http /a b" is not valid; write tcp, http PATH or https PATH
    portolan.dev/health-check-host: "a:80" is not valid; write a host name
    portolan.dev/health-check-statuses: "2xx" is not valid; write statuses and ranges from 100 to 599, with commas: 200,204,300-399
    portolan.dev/health-check-port: "0" is not valid; write the name of a port of the slice, or a number from 1 to 65535
    portolan.dev/health-check-port: "65536" is not valid; write the name of a port of the slice, or a number from 1 to 65535
    portolan.dev/health-check-interval: "5" is not valid; write a duration from 1s to 1h
    portolan.dev/health-check-timeout: "3s" is not valid; write a duration from 10ms to the interval
    portolan.dev/health-check-fall: "101" is not valid; write a number from 1 to 100
    portolan.dev/health-check-rise: "0" is not valid; write a number from 1 to 100
    portolan.dev/health-check-fail-open: "100%" is not valid; write never, or a percentage from 0% to 99%
    portolan.dev/health-check-slow-start: "2h" is not valid; write a duration from 0s to 1h
    portolan.dev/health-check-statuses: "200" has no effect on a tcp check; remove it, or set portolan.dev/health-check to http PATH
    portolan.dev/health-check-interval: "5s" has no effect without the annotation of the check; add portolan.dev/health-check: tcp, http PATH or https PATH
    portolan.dev/health-check-intervall: "5s" is the value of an unknown annotation; remove it, or write one of portolan.dev/{health-check, health-check-port, health-check-host, health-check-statuses, health-check-interval, health-check-timeout, health-check-rise, health-check-fall, health-check-slow-start, health-check-fail-open}
    "##);
}

#[test]
fn an_invalid_value_makes_the_check_invalid_and_an_unknown_or_idle_one_does_not() {
    assert_eq!(of(&[("", "udp")]).wish, Wish::Invalid);
    assert_eq!(of(&[("", "tcp"), ("-fall", "many")]).wish, Wish::Invalid);
    assert_eq!(of(&[("", "tcp"), ("-statuses", "many")]).wish, Wish::Invalid);
    assert!(matches!(of(&[("", "tcp"), ("-falls", "3")]).wish, Wish::Valid(_)));
    assert!(matches!(of(&[("", "tcp"), ("-host", "a")]).wish, Wish::Valid(_)));
    assert_eq!(of(&[("-fall", "3")]).wish, Wish::Absent);
}

#[test]
fn the_timeout_is_at_most_the_interval() {
    assert_eq!(valid(&[("", "tcp"), ("-interval", "1s")]).timing.timeout, Duration::from_secs(1));
    assert_eq!(complaints(&[("", "tcp"), ("-interval", "soon"), ("-timeout", "30m")]).len(), 1);
}

#[test]
fn the_documentation_has_the_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/health-checks.md");
    let text = std::fs::read_to_string(file).unwrap();
    let documented: BTreeSet<&str> = text.lines().filter(|line| line.contains("| `portolan.dev/")).collect();
    let rows =
        TABLE.map(|row| format!("| `{}` | {} | {} | {} |", row.name, row.values, row.default, row.meaning));
    assert_eq!(documented, rows.iter().map(String::as_str).collect());
}

proptest! {
    #[test]
    fn no_text_panics(values in proptest::collection::vec("\\PC{0,12}", TABLE.len())) {
        let all = TABLE.iter().map(|row| row.name.to_owned()).zip(values).collect();
        let parsed = parse(Some(&all));
        prop_assert!(parsed.wish != Wish::Invalid || !parsed.complaints.is_empty());
    }

    #[test]
    fn what_is_valid_stays_within_its_bounds(interval in 0_u64..5000, timeout in 0_u64..5000, fall in 0_u32..200) {
        let parsed = of(&[
            ("", "tcp"), ("-interval", &format!("{interval}ms")), ("-timeout", &format!("{timeout}ms")),
            ("-fall", &fall.to_string()),
        ]);
        let is_valid = interval >= 1000 && (10..=interval).contains(&timeout) && (1..=100).contains(&fall);
        prop_assert_eq!(matches!(parsed.wish, Wish::Valid(_)), is_valid, "{:?}", parsed);
    }
}
