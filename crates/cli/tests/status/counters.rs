//! Counters of Services: switched on by a changed file, and shown by the command, as JSON and as metrics.

use portolan_testkit::{Probe, ProbeResult, Protocol, eventually};
use serde_json::Value;

use super::common::{Cluster, PATIENCE, at, http, in_sync, logged, objects};
use super::{LISTENING, METRICS, status, until};

/// Number of connections.
const CONNECTIONS: u64 = 12;

/// The relay of the userspace mode chooses the endpoints, so it counts.
#[test]
fn the_userspace_mode_counts_by_endpoint() {
    let cluster = Cluster::new();
    let pods = cluster.world.pods();
    cluster.service(objects::cluster_ip("web", "10.96.0.77"), &[&pods[0], &pods[1]]);
    let socket = cluster.control_socket();
    for capture in ["tproxy", "redirect"] {
        let mut proxy = cluster.proxy_with_arguments("mode: userspace\n", &["--userspace-capture", capture]);
        in_sync(&mut proxy);
        for (protocol, times) in [(Protocol::Tcp, 4), (Protocol::Udp, 2)] {
            for _ in 0..times {
                let probe = Probe::new(protocol, at("10.96.0.77:80"));
                let result = cluster.world.client().namespace().probe(probe).unwrap();
                assert!(matches!(result, ProbeResult::Reached(_)), "{capture}: {result:?}");
            }
            let port = || {
                let shown = status(&socket, &["--service", "default/web", "-o", "json"]).json();
                let ports = shown["services"][0]["ports"].as_array().unwrap().clone();
                let is_it = |port: &Value| port["protocol"] == protocol.name() && port["family"] == "IPv4";
                ports.into_iter().find(is_it).unwrap()
            };
            let counts = || {
                let port = port();
                let endpoints = port["endpoints"].as_array().unwrap().clone();
                let each = endpoints.iter().map(|endpoint| endpoint["counters"]["connections"].as_u64());
                (port["counters"]["passed"]["connections"].as_u64(), each.collect::<Vec<_>>())
            };
            let wanted = (Some(times), vec![Some(times / 2); 2]);
            let outcome = eventually(PATIENCE, "the counts", || counts() == wanted);
            assert!(outcome.is_ok(), "{capture} {protocol}: {:#}\n{}", port(), proxy.output());
        }
        assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
    }
}

#[test]
fn counters_are_switched_on_while_the_proxy_runs_and_are_shown() {
    let cluster = Cluster::new();
    cluster.service(objects::cluster_ip("web", "10.96.0.77"), &[&cluster.world.pods()[0]]);
    let (socket, node) = (cluster.control_socket(), cluster.world.node().namespace());
    let mut proxy = cluster.start_proxy("");
    logged(&mut proxy, LISTENING, 1);
    in_sync(&mut proxy);
    // The log may say so before the state does.
    until(&proxy, &socket, "in sync", |state| state["inSync"] == true);
    let metrics = || http::get(node, at(METRICS), "/metrics/services").unwrap();
    let shown = status(&socket, &["--counters"]);
    let off = "Not counted: the nftables mode counts only if portolan.serviceCounters is true.\n";
    assert_eq!((shown.code, shown.stdout.as_str()), (0, off), "{}", shown.stderr);
    assert_eq!(metrics().status, 404);
    let rates = || -> Value {
        let page = http::get(node, at(METRICS), "/debug/portolan/rates?top=3").unwrap();
        assert_eq!(page.status, 200, "{}", page.body);
        serde_json::from_str(&page.body).unwrap()
    };
    let first = rates();
    assert_eq!((&first["perSecond"], &first["services"]), (&Value::Null, &Value::Array(Vec::new())));
    assert!(
        first["notCounted"].as_str().unwrap().starts_with("the nftables mode counts only if"),
        "{first:#}"
    );

    let plain = status(&socket, &[]).stdout;
    assert!(plain.contains("\nNew connections: the nftables mode counts only if"), "{plain}");

    cluster.configure("portolan: {serviceCounters: true, serviceMetrics: 5}\n");
    let port = || {
        let shown = status(&socket, &["--service", "default/web", "-o", "json"]).json();
        let ports = shown["services"][0]["ports"].as_array().unwrap().clone();
        ports.into_iter().find(|port| port["protocol"] == "TCP" && port["family"] == "IPv4").unwrap()
    };
    let counted = |wanted: u64| {
        let outcome =
            eventually(PATIENCE, "the counts", || port()["counters"]["passed"]["connections"] == wanted);
        assert!(outcome.is_ok(), "{wanted}: {:#}\n{}", port(), proxy.output());
    };
    counted(0);
    let connect = || {
        let probe = Probe::new(Protocol::Tcp, at("10.96.0.77:80"));
        let result = cluster.world.client().namespace().probe(probe).unwrap();
        assert!(matches!(result, ProbeResult::Reached(_)), "{result:?}");
    };
    (0..CONNECTIONS).for_each(|_| connect());
    counted(CONNECTIONS);
    let port = port();
    assert_eq!(port["endpoints"][0]["counters"]["connections"], Value::from(CONNECTIONS), "{port:#}");
    assert!(port["counters"]["passed"]["bytes"].is_null(), "{port:#}");

    let shown = status(&socket, &["--service", "default/web"]);
    let endpoint = format!(":{}: {CONNECTIONS} connections\n", super::common::BACKEND_PORT);
    assert!(shown.stdout.contains(&endpoint), "{}", shown.stdout);
    let shown = status(&socket, &["--counters", "--namespace", "default"]);
    let busiest = shown.stdout.lines().nth(1).unwrap_or_default();
    let words: Vec<&str> = busiest.split_whitespace().collect();
    assert!(words.first() == Some(&"default/web") && words.contains(&"12"), "{}", shown.stdout);
    let empty = status(&socket, &["--counters", "--namespace", "other", "-o", "json"]).json();
    assert_eq!(empty["services"], Value::Array(Vec::new()));

    let page = metrics();
    assert_eq!(page.status, 200, "{}", page.body);
    let samples: Vec<&str> = page.body.lines().filter(|line| !line.starts_with('#')).collect();
    let is_web = |line: &&str| line.contains("service=\"web\"") && line.ends_with("} 12");
    assert!(samples.len() == 1 && samples.iter().all(is_web), "{}", page.body);

    // Rates are those between two readings.
    let mut last = Value::Null;
    let outcome = eventually(PATIENCE, "a rate", || {
        connect();
        last = rates();
        !last["services"].as_array().unwrap().is_empty()
    });
    assert!(outcome.is_ok(), "{last:#}");
    let service = &last["services"][0];
    assert_eq!((&service["namespace"], &service["name"]), (&"default".into(), &"web".into()), "{last:#}");
    assert_eq!((&last["active"], &last["perSecond"]), (&1.into(), &service["perSecond"]), "{last:#}");
    assert!(
        service["perSecond"].as_f64() > Some(0.0) && last["overSeconds"].as_f64() > Some(0.0),
        "{last:#}"
    );
    let mut plain = String::new();
    let outcome = eventually(PATIENCE, "the rate in the state", || {
        connect();
        plain = status(&socket, &[]).stdout;
        plain.contains("; one Service\n  default/web  ")
    });
    assert!(outcome.is_ok(), "{plain}");
    let mut state = Value::Null;
    let outcome = eventually(PATIENCE, "the rate in the JSON of the state", || {
        connect();
        state = status(&socket, &["-o", "json"]).json();
        state["rates"]["services"][0]["name"] == "web"
    });
    assert!(outcome.is_ok() && state["inSync"] == true, "{state:#}");
    let wrong = http::get(node, at(METRICS), "/debug/portolan/rates?top=0").unwrap();
    assert_eq!((wrong.status, wrong.body.as_str()), (400, "top: `0` is not a number from 1 to 100\n"));
}
