//! Counters as text.

use crate::format::columns;
use crate::services::{Counters, Passed, Refused};
use crate::{ServicePage, ServicePort};

/// Returns what passed, such as `12 connections` or `12 connections, 30 packets, 2.1 kB`.
pub(crate) fn passed(passed: &Passed) -> String {
    let Passed { connections, packets, bytes } = passed;
    let mut parts = vec![format!("{connections} connection{}", if *connections == 1 { "" } else { "s" })];
    parts.extend(packets.map(|packets| format!("{packets} packet{}", if packets == 1 { "" } else { "s" })));
    parts.extend(bytes.map(volume));
    parts.join(", ")
}

/// Returns the parts of what was refused, such as `5 rejected without an endpoint`. Empty if nothing was.
pub(crate) fn refused(refused: &Refused) -> Vec<String> {
    let reasons = [
        (refused.no_endpoint, "rejected without an endpoint"),
        (refused.no_local_endpoint, "dropped without an endpoint on this node"),
        (refused.source_range, "dropped by the source ranges"),
    ];
    let counted =
        reasons.into_iter().filter_map(|(count, reason)| Some((count.filter(|count| *count > 0)?, reason)));
    counted
        .map(|(count, reason)| format!("{count} packet{} {reason}", if count == 1 { "" } else { "s" }))
        .collect()
}

/// Returns a table of the Service ports with counters, those with the most connections first.
pub fn table(pages: &[ServicePage]) -> Vec<String> {
    let head = ["SERVICE", "PORT", "FAMILY", "CONNECTIONS", "BYTES", "REJECTED", "DROPPED"];
    let mut ports: Vec<(String, &ServicePort, Counters)> = Vec::new();
    for service in pages.iter().flat_map(|page| &page.services) {
        let name = format!("{}/{}", service.namespace, service.name);
        ports.extend(service.ports.iter().filter_map(|port| Some((name.clone(), port, port.counters?))));
    }
    let connections = |counters: &Counters| counters.passed.map_or(0, |passed| passed.connections);
    ports
        .sort_by_key(|(_, _, counters)| std::cmp::Reverse((connections(counters), counters.refused.total())));
    let or_dash = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(ports.into_iter().map(|(service, port, counters)| {
        let Refused { no_endpoint, no_local_endpoint, source_range } = counters.refused;
        let dropped = match (no_local_endpoint, source_range) {
            (Some(one), Some(two)) => Some(one.saturating_add(two)),
            (one, two) => one.or(two),
        };
        let name = if port.name.is_empty() { String::new() } else { format!("{} ", port.name) };
        vec![
            service,
            format!("{name}{}", port.protocol),
            port.family.clone(),
            or_dash(counters.passed.map(|passed| passed.connections)),
            counters.passed.and_then(|passed| passed.bytes).map_or("-".to_owned(), volume),
            or_dash(no_endpoint),
            or_dash(dropped),
        ]
    }));
    let mut lines = if rows.len() > 1 { columns("", &rows) } else { Vec::new() };
    let mut missing: Vec<&str> = pages.iter().filter_map(|page| page.not_counted.as_deref()).collect();
    missing.dedup();
    lines.extend(missing.into_iter().map(|why| format!("Not counted: {why}.")));
    if lines.is_empty() {
        lines.push("Nothing is counted: the proxy knows no Service port with counters.".to_owned());
    }
    lines
}

/// Returns a number of bytes with three digits or less.
fn volume(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut number = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if number < 999.5 {
            break;
        }
        number /= 1000.0;
        unit = next;
    }
    if number < 9.95 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Service;

    #[test]
    fn bytes_have_three_digits() {
        let texts = [0, 999, 1000, 9_949, 9_960, 999_499, 999_600, u64::MAX].map(volume);
        assert_eq!(texts, ["0 B", "999 B", "1.0 kB", "9.9 kB", "10 kB", "999 kB", "1.0 MB", "18 EB"]);
    }

    #[test]
    fn a_table_names_the_busiest_first() {
        let port = |connections: Option<u64>, no_endpoint, traffic: Option<u64>| ServicePort {
            family: "IPv4".to_owned(),
            protocol: "TCP".to_owned(),
            counters: Some(Counters {
                passed: connections.map(|connections| Passed {
                    connections,
                    packets: traffic,
                    bytes: traffic,
                }),
                refused: Refused { no_endpoint, ..Refused::default() },
            }),
            ..ServicePort::default()
        };
        let service = |name: &str, port: ServicePort| Service {
            namespace: "demo".to_owned(),
            name: name.to_owned(),
            ports: vec![port],
            ..Service::default()
        };
        let services = vec![
            service("empty", port(None, Some(4), None)),
            service("idle", port(Some(0), None, None)),
            service("web", port(Some(12), None, Some(4_096))),
            service("silent", ServicePort::default()),
        ];
        let page =
            ServicePage { services, not_counted: Some("the kernel".to_owned()), ..ServicePage::default() };
        insta::assert_snapshot!(table(&[page]).join("\n"), @r"
        SERVICE     PORT  FAMILY  CONNECTIONS  BYTES   REJECTED  DROPPED
        demo/web    TCP   IPv4    12           4.1 kB  -         -
        demo/empty  TCP   IPv4    -            -       4         -
        demo/idle   TCP   IPv4    0            -       -         -
        Not counted: the kernel.
        ");
        assert!(table(&[]).concat().starts_with("Nothing is counted"));
        let refusals = Refused { no_endpoint: Some(1), no_local_endpoint: Some(0), source_range: Some(2) };
        let texts = ["1 packet rejected without an endpoint", "2 packets dropped by the source ranges"];
        assert_eq!((refused(&refusals), refusals.total()), (texts.map(str::to_owned).to_vec(), 3));
    }
}
