use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use super::*;

thread_local! {
    static WRITTEN: RefCell<Vec<(Stream, String)>> = RefCell::default();
}

/// Runs `log` with a logger of its own and returns what it wrote. Line numbers become `N`.
fn written(settings: &Logging, log: impl FnOnce(&Logger)) -> Vec<(Stream, String)> {
    // All threads share the interest of call sites, so the tests run one at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let collect = |stream, line: &str| WRITTEN.with_borrow_mut(|lines| lines.push((stream, line.to_owned())));
    let now = || UNIX_EPOCH + Duration::new(1_795_191_664, 123_456_789);
    let logger = Arc::new(Logger { now, process: 42, ..Logger::new(settings, collect) });
    tracing::subscriber::with_default(Shared(Arc::clone(&logger)), || log(&logger));
    WRITTEN.take().into_iter().map(|(stream, line)| (stream, without_line_number(&line))).collect()
}

fn without_line_number(line: &str) -> String {
    let (before, after) = line.split_once("tests.rs:").expect("the place");
    format!("{before}tests.rs:N{}", after.trim_start_matches(|letter: char| letter.is_ascii_digit()))
}

fn text(lines: &[(Stream, String)]) -> String {
    lines.iter().map(|(_, line)| line.as_str()).collect()
}

fn json() -> Logging {
    Logging { format: LogFormat::Json, ..Logging::default() }
}

fn say_everything() {
    let error = std::io::Error::other("no \"route\"\nto host");
    tracing::info!(node = "node-1", count = 3_usize, ratio = 0.5, ready = true, "listening");
    tracing::warn!(service = "ns/web", fault = %"a\\b", delay = ?Duration::from_millis(1_500), "left out");
    tracing::error!(family = "IPv4", error = %error, "the commit failed; trying again");
    tracing::error!(error = &error as &dyn std::error::Error, nan = f64::NAN, "said \"so\"");
    tracing::info!(bell = "\u{7}\u{1b}[31m\t\u{85}é", huge = i128::MAX);
}

#[test]
fn text_has_the_shape_of_klog() {
    insta::assert_snapshot!(text(&written(&Logging::default(), |_| say_everything())), @r#"
    I1120 16:21:04.123456      42 tests.rs:N] "listening" node="node-1" count=3 ratio=0.5 ready=true
    W1120 16:21:04.123456      42 tests.rs:N] "left out" service="ns/web" fault="a\\b" delay="1.5s"
    E1120 16:21:04.123456      42 tests.rs:N] "the commit failed; trying again" err="no \"route\"\nto host" family="IPv4"
    E1120 16:21:04.123456      42 tests.rs:N] "said \"so\"" err="no \"route\"\nto host" nan="NaN"
    I1120 16:21:04.123456      42 tests.rs:N] "" bell="\x07\x1b[31m\t\u0085é" huge=170141183460469231731687303715884105727
    "#);
}

#[test]
fn json_has_the_shape_of_kubernetes() {
    let lines = text(&written(&json(), |_| say_everything()));
    for line in lines.lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("a JSON object");
        assert_eq!(object["ts"].as_f64(), Some(1_795_191_664_123.456));
        assert_eq!(object.get("v").is_none(), line.contains("\"err\""), "errors have no verbosity: {line}");
    }
    insta::assert_snapshot!(lines, @r#"
    {"ts":1795191664123.456,"caller":"logging/tests.rs:N","msg":"listening","v":0,"node":"node-1","count":3,"ratio":0.5,"ready":true}
    {"ts":1795191664123.456,"caller":"logging/tests.rs:N","msg":"left out","v":0,"service":"ns/web","fault":"a\\b","delay":"1.5s"}
    {"ts":1795191664123.456,"caller":"logging/tests.rs:N","msg":"the commit failed; trying again","family":"IPv4","err":"no \"route\"\nto host"}
    {"ts":1795191664123.456,"caller":"logging/tests.rs:N","msg":"said \"so\"","nan":"NaN","err":"no \"route\"\nto host"}
    {"ts":1795191664123.456,"caller":"logging/tests.rs:N","msg":"","v":0,"bell":"\u0007\u001b[31m\t\u0085é","huge":170141183460469231731687303715884105727}
    "#);
}

#[test]
fn verbosity_shows_more_at_run_time() {
    let say = || {
        tracing::info!("info");
        tracing::debug!("debug");
        tracing::trace!("trace");
        tracing::error!(target: "hyper", "error");
        tracing::debug!(target: "hyper", "library debug");
        tracing::trace!(target: "hyper", "library trace");
    };
    for (verbosity, shown) in [(0, 2), (1, 2), (2, 3), (3, 3), (4, 4), (6, 5), (8, 6), (u32::MAX, 6), (0, 2)]
    {
        let lines = written(&Logging::default(), |logger| {
            say();
            logger.set_verbosity(verbosity);
            say();
        });
        assert_eq!(lines.len(), 2 + shown, "at first as with 0, then with {verbosity}: {lines:?}");
    }
    let lines = written(&Logging { verbosity: 4, ..json() }, |_| say());
    let verbosities: Vec<bool> =
        ["0", "2", "4"].map(|v| text(&lines).contains(&format!("\"v\":{v}"))).to_vec();
    assert_eq!(verbosities, [true; 3], "{lines:?}");
}

#[test]
fn patterns_raise_the_verbosity_of_a_place() {
    let shown = |patterns: &[(&str, u32)], format| {
        let item =
            |&(pattern, verbosity): &(&str, u32)| VmoduleItem { file_pattern: pattern.into(), verbosity };
        let vmodule = patterns.iter().map(item).collect();
        let settings = Logging { vmodule, format, verbosity: 2, ..Logging::default() };
        written(&settings, |_| {
            tracing::debug!("debug");
            tracing::trace!("trace");
        })
        .len()
    };
    let table: [(&[(&str, u32)], usize); 7] = [
        (&[], 1),
        (&[("te?t*", 4)], 2),
        (&[("te?t*", 0)], 1),
        (&[("other", 4)], 1),
        (&[("tests", 0), ("tests", 4)], 1),
        (&[("*/logging/src/tests", 4)], 2),
        (&[("portolan_logging::*", 4)], 2),
    ];
    for (patterns, want) in table {
        assert_eq!(shown(patterns, LogFormat::Text), want, "{patterns:?}");
    }
    assert_eq!(shown(&[("tests", 4)], LogFormat::Json), 1, "of text only");
}

#[test]
fn streams_are_split_where_it_is_asked_for() {
    let say = || {
        tracing::info!("info");
        tracing::warn!("warn");
        tracing::error!("error");
    };
    let streams = |settings: &Logging| -> Vec<Stream> {
        written(settings, |_| say()).into_iter().map(|(stream, _)| stream).collect()
    };
    let (out, err) = (Stream::Stdout, Stream::Stderr);
    assert_eq!(streams(&Logging::default()), [err, err, err]);
    let mut text = Logging::default();
    text.text.split_stream = true;
    assert_eq!(streams(&text), [out, err, err]);
    let mut json = json();
    json.text.split_stream = true;
    assert_eq!(streams(&json), [err, err, err], "of the other format");
    json.json.split_stream = true;
    assert_eq!(streams(&json), [out, out, err]);
}

#[test]
fn a_running_log_takes_other_settings() {
    let lines = written(&Logging::default(), |logger| {
        tracing::debug!("not yet");
        logger.configure(&Logging { verbosity: 2, ..json() });
        tracing::debug!("now");
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(text(&lines).starts_with("{\"ts\":"), "{lines:?}");
}

#[test]
fn a_field_may_log_while_it_is_formatted() {
    struct Talkative;
    impl std::fmt::Debug for Talkative {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            tracing::info!("inner");
            f.write_str("value")
        }
    }
    let lines = text(&written(&Logging::default(), |_| tracing::info!(field = ?Talkative, "outer")));
    // tracing discards events that a subscriber emits while it handles one.
    assert!(lines.ends_with("\"outer\" field=\"value\"\n"), "{lines}");
}
