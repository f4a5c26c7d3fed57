//! Metrics of single Services: those with the most connections, as many as the configuration allows.
//!
//! The page has its own path. So a scrape of the agent's other metrics never waits for the kernel, and reading the kernel has
//! the bounds of [`counters`](super::services::counters).

use std::cmp::Reverse;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_model::observed::{Counters, Refused, Total};
use portolan_model::{Family, ServicePortName};
use portolan_web::metrics::{MetricKind, Page, TEXT_FORMAT, labels_text};
use portolan_web::{self as web, Answer};

use super::services::counters;
use super::{Control, RequestPermit, routes};
use crate::agent::Agent;

/// A Service port with its counters.
type Row = (Family, Arc<ServicePortName>, Total);

/// Answers with the metrics.
pub(super) async fn answer(control: Arc<Control>, request: Request<Bytes>, place: RequestPermit) -> Answer {
    let busy = |why: &str| routes::plain(StatusCode::SERVICE_UNAVAILABLE, why);
    let Some(facts) = control.ask(Agent::of_packets).await else { return busy("the agent is ending") };
    let Some(facts) = facts else { return busy("the Services are not known completely yet; ask again") };
    let top = usize::try_from(facts.configuration.portolan.service_metrics).unwrap_or_default();
    if top == 0 {
        return routes::plain(StatusCode::NOT_FOUND, "portolan.serviceMetrics is 0");
    }
    let counts = counters::read(&control).await;
    if let Some(why) = &counts.failed {
        return busy(why);
    }
    if let (false, Some(why)) = (counts.is_counting, counts.not_counted) {
        return routes::plain(StatusCode::NOT_FOUND, why);
    }
    let headers = request.headers().clone();
    let answering = crate::blocking::run(move || {
        let _place = place;
        let rows =
            counts.ports.iter().map(|((family, name), counted)| (*family, name.clone(), counted.total));
        let text = text(busiest(rows.collect(), top));
        web::compressed(&headers, web::answer(StatusCode::OK, TEXT_FORMAT, Bytes::new()), text)
    });
    answering.await.unwrap_or_else(|error| routes::failed(&error))
}

/// Returns the Service ports with the most connections, and among equals with the most refusals. What has counted nothing is
/// left out.
fn busiest(mut rows: Vec<Row>, top: usize) -> Vec<Row> {
    let key = |(family, name, total): &Row| {
        let connections = total.passed.map_or(0, |passed| passed.connections);
        (Reverse(connections), Reverse(refused(&total.refused)), Arc::clone(name), *family)
    };
    rows.retain(|(.., total)| {
        total.passed.is_some_and(|passed| passed.connections > 0) || refused(&total.refused) > 0
    });
    rows.sort_by_cached_key(key);
    rows.truncate(top);
    rows
}

/// Returns all refusals together.
fn refused(refused: &Refused) -> u64 {
    reasons(refused).into_iter().filter_map(|(_, count)| count).fold(0, u64::saturating_add)
}

fn reasons(refused: &Refused) -> [(&'static str, Option<u64>); 3] {
    [
        ("no-endpoint", refused.no_endpoint),
        ("no-local-endpoint", refused.no_local_endpoint),
        ("source-range", refused.source_range),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "every number of the format is an f64")]
fn text(rows: Vec<Row>) -> String {
    let rows: Vec<(String, Total)> =
        rows.into_iter().map(|(family, name, total)| (labels(family, &name), total)).collect();
    let mut page = Page::default();
    let passed = |page: &mut Page, name: &str, help: &str, of: fn(Counters) -> Option<u64>| {
        page.family_with(name, MetricKind::Counter, help, |page| {
            for (labels, total) in &rows {
                if let Some(count) = total.passed.and_then(of) {
                    page.sample(name, labels, count as f64);
                }
            }
        });
    };
    passed(
        &mut page,
        "portolan_service_connections_total",
        "New connections that went to endpoints of the Service port; in iptables mode, and with redirect, also those that are dropped after that.",
        |passed| Some(passed.connections),
    );
    passed(
        &mut page,
        "portolan_service_received_packets_total",
        "Packets from clients of the Service port, in modes that count them.",
        |passed| passed.traffic.map(|traffic| traffic.packets),
    );
    passed(
        &mut page,
        "portolan_service_received_bytes_total",
        "Bytes from clients of the Service port, in modes that count them.",
        |passed| passed.traffic.map(|traffic| traffic.bytes),
    );
    let name = "portolan_service_refused_packets_total";
    page.family_with(
        name,
        MetricKind::Counter,
        "Packets that the Service port refused, by reason.",
        |page| {
            for (labels, total) in &rows {
                for (reason, count) in reasons(&total.refused) {
                    if let Some(count) = count {
                        page.sample(
                            name,
                            &format!("{labels},{}", labels_text([("reason", reason)])),
                            count as f64,
                        );
                    }
                }
            }
        },
    );
    page.into_text()
}

fn labels(family: Family, name: &ServicePortName) -> String {
    labels_text([
        ("ip_family", family.name()),
        ("namespace", &name.namespace),
        ("service", &name.service),
        ("port", &name.port),
        ("protocol", name.protocol.name()),
    ])
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;
    use portolan_model::observed::Traffic;

    use super::*;

    fn row(service: &str, connections: Option<u64>, no_endpoint: Option<u64>) -> Row {
        let [namespace, service, port] = ["demo", service, "http"].map(Arc::from);
        let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
        let passed = connections.map(Counters::of_connections);
        let refused = Refused { no_endpoint, ..Refused::default() };
        (Family::Ipv4, Arc::new(name), Total { passed, refused })
    }

    #[test]
    fn the_busiest_are_shown() {
        let rows = vec![
            row("idle", Some(0), None),
            row("a", Some(3), None),
            row("empty", None, Some(9)),
            row("quiet", None, Some(0)),
            row("b", Some(3), None),
            row("web", Some(1_000), None),
        ];
        let names = |top| {
            let shown = busiest(rows.clone(), top);
            shown.iter().map(|(_, name, _)| name.service.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(10), ["web", "a", "b", "empty"]);
        assert_eq!(names(2), ["web", "a"]);
    }

    #[test]
    fn the_page() {
        let mut web = row("we\"b", Some(12), Some(3));
        web.2.passed =
            Some(Counters { connections: 12, traffic: Some(Traffic { packets: 40, bytes: 9_000 }) });
        let page = text(vec![web, row("dns", Some(2), None)]);
        insta::assert_snapshot!(page, @r###"
        # HELP portolan_service_connections_total New connections that went to endpoints of the Service port; in iptables mode, and with redirect, also those that are dropped after that.
        # TYPE portolan_service_connections_total counter
        portolan_service_connections_total{ip_family="IPv4",namespace="demo",service="we\"b",port="http",protocol="TCP"} 12
        portolan_service_connections_total{ip_family="IPv4",namespace="demo",service="dns",port="http",protocol="TCP"} 2
        # HELP portolan_service_received_packets_total Packets from clients of the Service port, in modes that count them.
        # TYPE portolan_service_received_packets_total counter
        portolan_service_received_packets_total{ip_family="IPv4",namespace="demo",service="we\"b",port="http",protocol="TCP"} 40
        # HELP portolan_service_received_bytes_total Bytes from clients of the Service port, in modes that count them.
        # TYPE portolan_service_received_bytes_total counter
        portolan_service_received_bytes_total{ip_family="IPv4",namespace="demo",service="we\"b",port="http",protocol="TCP"} 9000
        # HELP portolan_service_refused_packets_total Packets that the Service port refused, by reason.
        # TYPE portolan_service_refused_packets_total counter
        portolan_service_refused_packets_total{ip_family="IPv4",namespace="demo",service="we\"b",port="http",protocol="TCP",reason="no-endpoint"} 3
        "###);
    }
}
