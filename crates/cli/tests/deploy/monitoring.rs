//! Dashboard and alerts use only metrics and labels that exist.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::Family;
use portolan_node::metrics::{BuildInfo, IptablesMeasures, ProxyMetrics};
use serde_json::{Value, json};

use crate::files::{self, one_yaml, read, run, tool};

/// Names, types and labels of all exported metrics. The tests of crate `node` compare the list with the program.
const GOLDEN_LIST: &str = "crates/node/src/metrics/snapshots/portolan_node__metrics__tests__golden_list.snap";

/// Time series for the alerts, and which alerts fire then.
const ALERT_TESTS: &str = "crates/cli/tests/deploy/alerts.test.yaml";

/// Labels that Prometheus adds.
const TARGET_LABELS: [&str; 3] = ["job", "instance", "node"];

/// Labels that the Prometheus operator adds for a `PodMonitor`.
const POD_LABELS: [&str; 4] = ["namespace", "pod", "container", "endpoint"];

/// Returns the label names of each metric, including the series of histograms.
fn exported() -> BTreeMap<String, BTreeSet<String>> {
    let list = read(GOLDEN_LIST);
    let mut metrics = BTreeMap::from([("up".to_owned(), BTreeSet::new())]);
    for line in list.lines() {
        let mut words = line.split(' ');
        let (Some(kind), Some(name), Some(labels)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Some(labels) = labels.strip_prefix('{').and_then(|it| it.strip_suffix('}')) else { continue };
        let labels: BTreeSet<String> =
            labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect();
        if kind == "histogram" {
            for suffix in ["_count", "_sum"] {
                metrics.insert(format!("{name}{suffix}"), labels.clone());
            }
            let labels = labels.iter().cloned().chain(["le".to_owned()]).collect();
            metrics.insert(format!("{name}_bucket"), labels);
        } else {
            metrics.insert(name.to_owned(), labels);
        }
    }
    assert!(metrics.len() > 30, "{metrics:?}");
    metrics
}

/// The names in an expression of `PromQL`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
}

/// Extracts the names word by word. Enough for the expressions of this repository, but not a parser of `PromQL`.
fn names(expression: &str) -> Names {
    const OPERATORS: [&str; 6] = ["and", "or", "unless", "offset", "bool", "vector"];
    const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    let mut names = Names::default();
    let mut grouping = false;
    let mut in_labels = false;
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(rest.len());
        let (token, after) = rest.split_at(word.max(first.len_utf8()));
        rest = after;
        match first {
            '"' => rest = rest.split_once('"').expect("a closed quote").1,
            '[' => rest = rest.split_once(']').expect("a closed range").1,
            '{' => in_labels = true,
            '}' => in_labels = false,
            '(' if grouping => in_labels = true,
            ')' if grouping => (in_labels, grouping) = (false, false),
            _ if !first.is_alphabetic() => {}
            _ if in_labels => drop(names.labels.insert(token.to_owned())),
            _ if GROUPINGS.contains(&token) => grouping = true,
            _ if OPERATORS.contains(&token) || rest.trim_start().starts_with('(') => {}
            // `sum by (label) (...)`: a function whose grouping comes first.
            _ if GROUPINGS.iter().any(|word| rest.trim_start().starts_with(word)) => {}
            _ => drop(names.metrics.insert(token.to_owned())),
        }
    }
    names
}

#[test]
fn expressions_are_read() {
    let read = names(
        r#"sum by (job, le) (rate(a_b_bucket{code!~"2..", x="y_z"}[10m])) > 30 and vector(0) or c_total == 200e6"#,
    );
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<String>>();
    assert_eq!(read.metrics, set(&["a_b_bucket", "c_total"]));
    assert_eq!(read.labels, set(&["job", "le", "code", "x"]));
}

/// Asserts that every expression uses exported metrics, and labels that one of them has.
fn check(expressions: &[(String, String)]) {
    let exported = exported();
    for (what, expression) in expressions {
        let Names { metrics, labels } = names(expression);
        assert!(!metrics.is_empty(), "{what}: {expression}");
        let mut known: BTreeSet<&str> = TARGET_LABELS.into();
        for metric in &metrics {
            let labels = exported.get(metric).unwrap_or_else(|| panic!("{what}: no metric {metric}"));
            known.extend(labels.iter().map(String::as_str));
        }
        for label in &labels {
            assert!(known.contains(label.as_str()), "{what}: no label {label} in {expression}");
        }
    }
}

/// Returns the names and expressions of the alerts.
fn alerts() -> Vec<(String, String)> {
    let rules = one_yaml("deploy/monitoring/alerts.yaml");
    let mut expressions = Vec::new();
    for group in rules["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let name = rule["alert"].as_str().unwrap().to_owned();
            for text in ["summary", "description"] {
                assert!(rule["annotations"][text].is_string(), "{name} has no {text}");
            }
            assert!(rule["labels"]["severity"].is_string(), "{name} has no severity");
            expressions.push((name, rule["expr"].as_str().unwrap().to_owned()));
        }
    }
    expressions
}

#[test]
fn alerts_name_metrics_that_are_exported() {
    let expressions = alerts();
    let names: BTreeSet<&String> = expressions.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), expressions.len(), "two alerts of one name");
    check(&expressions);
    let documented = read("docs/metrics.md");
    for name in names {
        assert!(documented.contains(&format!("`{name}`")), "docs/metrics.md does not know {name}");
    }
    if let Some(mut promtool) = tool("promtool") {
        promtool.args(["check", "rules"]).arg(files::path("deploy/monitoring/alerts.yaml"));
        run(promtool);
    }
}

/// Requests in 20 minutes by code, and whether the alert about the API server fires.
const REQUESTS: [(&[(&str, u32)], bool); 4] = [
    // An API server older than Kubernetes 1.33 has no ServiceCIDRs, and watches take minutes.
    (&[("200", 8), ("404", 26), ("410", 2)], false),
    (&[("200", 8), ("403", 26)], true),
    (&[("200", 8), ("<error>", 20), ("429", 3), ("503", 3)], true),
    (&[("200", 26), ("401", 8)], false),
];

#[test]
fn the_alert_about_the_api_server_ignores_what_a_server_lacks() {
    for (requests, fires) in REQUESTS {
        let Some(mut promtool) = tool("promtool") else { return };
        let series = requests.iter().map(|(code, count)| {
            let name =
                format!(r#"rest_client_requests_total{{job="kube-proxy", instance="i", code="{code}"}}"#);
            json!({"series": name, "values": format!("0+{}x60", f64::from(*count) / 20.0)})
        });
        let alert = r#"ALERTS{alertname="PortolanAPIErrors", alertstate="firing""#;
        let labels = format!(r#"{alert}, severity="warning", job="kube-proxy", instance="i"}}"#);
        let firing = fires.then(|| json!({"labels": labels, "value": 1}));
        let test = json!({
            "rule_files": [files::path("deploy/monitoring/alerts.yaml")],
            "evaluation_interval": "1m",
            "tests": [{
                "interval": "1m",
                "input_series": series.collect::<Vec<_>>(),
                "promql_expr_test": [{
                    "expr": format!("{alert}}}"),
                    "eval_time": "50m",
                    "exp_samples": firing.into_iter().collect::<Vec<_>>(),
                }],
            }],
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.yaml");
        std::fs::write(&file, test.to_string()).unwrap();
        promtool.args(["test", "rules"]).arg(file);
        run(promtool);
    }
}

#[test]
fn the_alerts_fire_when_they_should() {
    let Some(mut promtool) = tool("promtool") else { return };
    promtool.args(["test", "rules"]).arg(files::path(ALERT_TESTS));
    run(promtool);
}

/// Returns the tests of the alerts.
fn alert_tests() -> Vec<Value> {
    one_yaml(ALERT_TESTS)["tests"].as_array().unwrap().clone()
}

#[test]
fn every_alert_is_tested_while_it_is_silent_and_while_it_fires() {
    let mut tested = BTreeSet::new();
    for test in alert_tests() {
        let [mut silent, mut firing] = [BTreeSet::new(), BTreeSet::new()];
        for evaluation in test["alert_rule_test"].as_array().unwrap() {
            let name = evaluation["alertname"].as_str().unwrap().to_owned();
            let is_silent = evaluation["exp_alerts"].as_array().unwrap().is_empty();
            if is_silent { &mut silent } else { &mut firing }.insert(name);
        }
        tested.extend(silent.intersection(&firing).cloned());
    }
    let all: BTreeSet<String> = alerts().into_iter().map(|(name, _)| name).collect();
    assert_eq!(tested, all);
}

/// With other labels, an alert could fire in its test and never on a node.
#[test]
fn the_series_that_test_the_alerts_have_the_labels_of_the_program() {
    let exported = exported();
    let of_targets = BTreeSet::from(TARGET_LABELS.map(str::to_owned));
    let of_pods = BTreeSet::from(POD_LABELS.map(str::to_owned));
    let mut metrics = BTreeSet::new();
    for test in alert_tests() {
        for series in test["input_series"].as_array().unwrap() {
            let series = series["series"].as_str().unwrap();
            let Names { metrics: names, labels } = names(series);
            let name = names.first().unwrap_or_else(|| panic!("no metric in {series}"));
            let known = exported.get(name).unwrap_or_else(|| panic!("{series} is not exported"));
            let own: BTreeSet<String> = &(&labels - &of_targets) - &of_pods;
            assert!(labels.contains("job") && labels.contains("instance"), "{series}");
            assert_eq!(own, *known, "{series}");
            metrics.insert(name.clone());
        }
    }
    let used: BTreeSet<String> =
        alerts().iter().flat_map(|(_, expression)| names(expression).metrics).collect();
    assert_eq!(metrics, used);
}

/// Every program that uses Kubernetes' client library has `rest_client_*`, for example.
#[test]
fn alerts_leave_out_the_metrics_of_other_programs() {
    const JOB: &str = r#"{job=~"portolan|kube-proxy""#;
    for (name, expression) in alerts() {
        for metric in names(&expression).metrics {
            let is_own = metric.starts_with("kubeproxy_") || metric.starts_with("portolan_");
            let asked = expression.matches(&format!("{metric}{JOB}")).count();
            assert!(is_own || asked == expression.matches(&metric).count(), "{name}: {metric}");
        }
    }
    let header = read("deploy/monitoring/alerts.yaml");
    assert!(header.lines().take_while(|line| line.starts_with('#')).any(|line| line.contains("`job=~`")));
}

/// `increase` and `rate` see no increase in a series that begins with 1.
#[test]
fn counters_begin_with_zero() {
    // Its labels are those of the requests. The first one of a code is not counted.
    const LABELS_OF_REQUESTS: &str = "rest_client_requests_total";
    let metrics = ProxyMetrics::new(BuildInfo::of_version("v1.36.0")).with_process();
    metrics.mode("nftables", "configured", "nftables");
    // In the iptables mode, the first load shows these.
    metrics.iptables(Family::Ipv4, &IptablesMeasures::default());
    let page = metrics.page();
    let mut counters = BTreeSet::new();
    for (_, expression) in alerts().into_iter().chain(panels()) {
        for part in expression.split("increase(").flat_map(|part| part.split("rate(")).skip(1) {
            counters.insert(part.split(['{', '[']).next().unwrap().to_owned());
        }
    }
    // A histogram has many observations, so the first one does not matter.
    counters.retain(|name| !name.ends_with("_bucket") && !name.ends_with("_count"));
    assert!(counters.remove(LABELS_OF_REQUESTS) && counters.len() > 5, "{counters:?}");
    for name in counters {
        let is_shown =
            |line: &str| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "));
        assert!(page.lines().any(is_shown), "{name} is not there from the start");
    }
}

/// Returns the titles and expressions of the dashboard.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/dashboard.json")).unwrap();
    let mut expressions = Vec::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels {}", panel["id"]);
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            expressions.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    expressions
}

#[test]
fn the_dashboard_names_metrics_that_are_exported() {
    let expressions = panels();
    assert!(expressions.len() > 20);
    check(&expressions);
}

/// The page about the metrics has each of them, and no other.
#[test]
fn the_page_of_metrics_is_complete() {
    let page = read("docs/metrics.md");
    let exported = exported();
    let family = |name: &str| {
        let bare = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix));
        bare.filter(|bare| exported.contains_key(&format!("{bare}_bucket"))).unwrap_or(name).to_owned()
    };
    let families: BTreeSet<String> =
        exported.keys().filter(|name| *name != "up").map(|name| family(name)).collect();
    let prefixes = ["kubeproxy_", "portolan_", "rest_client_", "process_", "kubernetes_"];
    let named: BTreeSet<String> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            prefixes.iter().any(|prefix| word.starts_with(prefix)) && !word.contains(['*', ' ', '{'])
        })
        .map(str::to_owned)
        .collect();
    let own: BTreeSet<String> = families
        .iter()
        .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
        .cloned()
        .collect();
    let missing: Vec<_> = own.difference(&named).collect();
    // These are on the metrics server's second page, which the list does not have.
    let second_page = ["kubernetes_healthcheck", "kubernetes_healthchecks_total"];
    let unknown: Vec<_> =
        named.difference(&families).filter(|name| !second_page.contains(&name.as_str())).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}, unknown: {unknown:?}");
}
