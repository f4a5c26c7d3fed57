//! Counters of the server: answers by transport, type and response code, and how long they take. Plain atomics;
//! [`Collect`] writes them to a page of metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use portolan_web::metrics::{Collect, MetricKind, Page, labels_text};

use crate::answer::{Summary, Transport};

/// Names of the types that are counted; all others are counted as the last.
const TYPES: [&str; 10] = ["A", "AAAA", "SRV", "PTR", "TXT", "CNAME", "NS", "SOA", "ANY", "other"];
/// Names of the response codes that are counted; all others are counted as the last.
const CODES: [&str; 7] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED", "other"];
/// Names of the transports.
const TRANSPORTS: [&str; 2] = ["udp", "tcp"];

/// Upper bounds, in microseconds, of the histogram of times that the zone's answers take.
pub const BOUNDS: [u64; 7] = [10, 50, 100, 500, 1_000, 5_000, 10_000];

const CELLS: usize = TRANSPORTS.len() * TYPES.len() * CODES.len();

/// What the server counts.
#[derive(Debug)]
pub struct Metrics {
    answers: [AtomicU64; CELLS],
    durations: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
    /// Answers from which records were left out.
    pub truncated: AtomicU64,
    /// Requests without an answer: malformed beyond recognition, or the answer could not be sent.
    pub dropped: AtomicU64,
    /// Requests that other servers were asked about.
    pub forwarded: AtomicU64,
    /// Requests that no other server answered, or that were too many at once.
    pub forward_failed: AtomicU64,
    /// Open TCP connections.
    pub connections: AtomicU64,
    /// TCP connections that were closed because there were too many.
    pub connections_closed: AtomicU64,
}

/// Number of answers of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    /// `udp` or `tcp`.
    pub transport: &'static str,
    /// Type in the question, or `other`.
    pub kind: &'static str,
    /// Response code, or `other`.
    pub code: &'static str,
    /// The number.
    pub count: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            answers: [const { AtomicU64::new(0) }; CELLS],
            durations: [const { AtomicU64::new(0) }; BOUNDS.len() + 1],
            nanoseconds: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            forwarded: AtomicU64::new(0),
            forward_failed: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            connections_closed: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts an answer, of the zone or of another server.
    pub fn answered(&self, transport: Transport, summary: Summary) {
        let transport = match transport {
            Transport::Udp => 0,
            Transport::Tcp => 1,
        };
        let cell =
            (transport * TYPES.len() + type_index(summary.kind)) * CODES.len() + code_index(summary.code);
        if let Some(cell) = self.answers.get(cell) {
            cell.fetch_add(1, Relaxed);
        }
        if summary.truncated {
            self.truncated.fetch_add(1, Relaxed);
        }
    }

    /// Records how long the zone's answer to a request took.
    pub fn took(&self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < microseconds);
        if let Some(bucket) = self.durations.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        self.nanoseconds.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the numbers of answers that are not zero.
    pub fn answers(&self) -> impl Iterator<Item = Answers> {
        let labels = TRANSPORTS.iter().flat_map(|transport| {
            TYPES.iter().flat_map(move |kind| CODES.iter().map(move |code| (*transport, *kind, *code)))
        });
        let answers = labels.zip(&self.answers).map(|((transport, kind, code), count)| Answers {
            transport,
            kind,
            code,
            count: count.load(Relaxed),
        });
        answers.filter(|answers| answers.count > 0)
    }

    /// Returns the number of answers in each bucket of [`BOUNDS`] and above the last one, not cumulative, and the sum of
    /// their durations.
    pub fn durations(&self) -> ([u64; BOUNDS.len() + 1], Duration) {
        (
            self.durations.each_ref().map(|bucket| bucket.load(Relaxed)),
            Duration::from_nanos(self.nanoseconds.load(Relaxed)),
        )
    }
}

impl Collect for Metrics {
    fn collect(&self, page: &mut Page) {
        let name = "portolan_dns_answers_total";
        page.family_with(
            name,
            MetricKind::Counter,
            "Answers, by transport, type and response code.",
            |page| {
                for Answers { transport, kind, code, count } in self.answers() {
                    let labels = labels_text([("transport", transport), ("type", kind), ("code", code)]);
                    page.sample(name, &labels, number(count));
                }
            },
        );
        let name = "portolan_dns_answer_duration_seconds";
        let (counts, sum) = self.durations();
        page.family(name, MetricKind::Histogram, "Time that an answer from the names of Services takes.");
        let bounds = BOUNDS.map(|microseconds| number(microseconds) / 1e6);
        page.histogram(name, "", &bounds, counts, sum.as_secs_f64());
        let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
        let mut one = |name: &str, kind, help: &str, value: &AtomicU64| {
            page.single(name, kind, help, number(value.load(Relaxed)));
        };
        let help = "Answers from which records were left out because they were too long.";
        one("portolan_dns_truncated_total", counter, help, &self.truncated);
        let help = "Requests without an answer: malformed, or the answer could not be sent.";
        one("portolan_dns_dropped_total", counter, help, &self.dropped);
        let help = "Requests that other servers were asked about.";
        one("portolan_dns_forwarded_total", counter, help, &self.forwarded);
        let help = "Requests that no other server answered, or that were too many at once.";
        one("portolan_dns_forward_failures_total", counter, help, &self.forward_failed);
        one("portolan_dns_connections", gauge, "Open TCP connections.", &self.connections);
        let help = "TCP connections that were closed because there were too many.";
        one("portolan_dns_connections_closed_total", counter, help, &self.connections_closed);
    }
}

/// Converts a count for Prometheus, whose samples are floating-point numbers.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and larger counts need no more digits")]
fn number(count: u64) -> f64 {
    count as f64
}

fn type_index(kind: RecordType) -> usize {
    match kind {
        RecordType::A => 0,
        RecordType::AAAA => 1,
        RecordType::SRV => 2,
        RecordType::PTR => 3,
        RecordType::TXT => 4,
        RecordType::CNAME => 5,
        RecordType::NS => 6,
        RecordType::SOA => 7,
        RecordType::ANY => 8,
        _ => TYPES.len() - 1,
    }
}

fn code_index(code: ResponseCode) -> usize {
    match code {
        ResponseCode::NoError => 0,
        ResponseCode::FormErr => 1,
        ResponseCode::ServFail => 2,
        ResponseCode::NXDomain => 3,
        ResponseCode::NotImp => 4,
        ResponseCode::Refused => 5,
        _ => CODES.len() - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_counted_under_its_labels() {
        let metrics = Metrics::default();
        let answered = |transport, kind, code| {
            metrics.answered(transport, Summary { kind, code, truncated: kind == RecordType::SRV });
        };
        answered(Transport::Udp, RecordType::A, ResponseCode::NoError);
        answered(Transport::Udp, RecordType::A, ResponseCode::NoError);
        answered(Transport::Tcp, RecordType::SRV, ResponseCode::NXDomain);
        answered(Transport::Tcp, RecordType::MX, ResponseCode::BADVERS);
        let counts: Vec<_> =
            metrics.answers().map(|one| (one.transport, one.kind, one.code, one.count)).collect();
        assert_eq!(
            counts,
            [("udp", "A", "NOERROR", 2), ("tcp", "SRV", "NXDOMAIN", 1), ("tcp", "other", "other", 1)]
        );
        assert_eq!(metrics.truncated.load(Relaxed), 1);
    }

    #[test]
    fn the_page_has_every_number() {
        let metrics = Metrics::default();
        let summary = Summary { kind: RecordType::A, code: ResponseCode::NoError, truncated: true };
        metrics.answered(Transport::Udp, summary);
        metrics.took(Duration::from_micros(60));
        for (counter, value) in [
            (&metrics.dropped, 2),
            (&metrics.forwarded, 3),
            (&metrics.forward_failed, 4),
            (&metrics.connections, 5),
            (&metrics.connections_closed, 6),
        ] {
            counter.store(value, Relaxed);
        }
        let mut page = Page::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        for sample in [
            "portolan_dns_answers_total{transport=\"udp\",type=\"A\",code=\"NOERROR\"} 1",
            "portolan_dns_answer_duration_seconds_bucket{le=\"5e-05\"} 0",
            "portolan_dns_answer_duration_seconds_bucket{le=\"0.0001\"} 1",
            "portolan_dns_answer_duration_seconds_count 1",
            "portolan_dns_truncated_total 1",
            "portolan_dns_dropped_total 2",
            "portolan_dns_forwarded_total 3",
            "portolan_dns_forward_failures_total 4",
            "portolan_dns_connections 5",
            "portolan_dns_connections_closed_total 6",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample} is not in:\n{text}");
        }
        for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
            let name = |line: &str| line.split([' ', '{']).next().map(|name| name.replace("_count", ""));
            let mut samples = text.lines().filter(|line| name(line).as_deref() == Some(family));
            assert!(samples.any(|line| !line.ends_with(" 0")), "{family} shows 0 only");
        }
    }

    #[test]
    fn durations_are_counted_in_their_bucket() {
        let metrics = Metrics::default();
        for microseconds in [10, 11, 20_000] {
            metrics.took(Duration::from_micros(microseconds));
        }
        let (buckets, sum) = metrics.durations();
        assert_eq!(buckets, [1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(sum, Duration::from_micros(20_021));
    }
}
