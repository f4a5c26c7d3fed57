//! New connections of Services per second: the difference of two readings of the counters.
//!
//! Requests share readings ([`counters`](super::services::counters)). The one before is kept while rates are
//! asked for, and freed a minute later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use portolan_model::observed::Counted;
use portolan_model::{Family, ServicePortName};
use portolan_node::health::Now;
use portolan_node::time::rfc3339;
use portolan_status::{self as status, Busiest, Reading, ServiceRate, ServiceRates};
use portolan_web::Answer;

use super::services::counters::{self, Counts};
use super::{Control, RequestPermit, routes};

/// Services in an answer, if the request names no number.
const TOP: usize = 10;
/// Services in an answer at most.
const TOP_MAX: usize = 100;
/// After this time, a reading is no longer compared with.
const KEPT: Duration = Duration::from_secs(60);

/// A Service port of a family.
type Port = (Family, Arc<ServicePortName>);
/// A namespace and the name of a Service in it.
type Key = (Arc<str>, Arc<str>);

/// The last reading for which rates were asked.
#[derive(Debug, Default)]
pub(super) struct Last {
    kept: Mutex<Option<Kept>>,
}

#[derive(Debug)]
struct Kept {
    reading: Reading<Port>,
    /// The rates since the reading before it.
    rates: Option<Busiest<Key>>,
}

/// Answers with the rates of the busiest Services.
pub(super) async fn answer(control: Arc<Control>, request: Request<Bytes>, place: RequestPermit) -> Answer {
    let top = match top(request.uri().query().unwrap_or_default()) {
        Ok(top) => top,
        Err(error) => return routes::plain(StatusCode::BAD_REQUEST, &error),
    };
    let counts = counters::read(&control).await;
    let is_new = counts.at.is_some_and(|at| control.rates.lacks(control.seconds(at)));
    if is_new {
        let control = Arc::clone(&control);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            control.rates.forget(control.seconds(Now::read()) - KEPT.as_secs_f64());
        });
    }
    routes::document(&request, place, move || document(&control, &counts, top)).await
}

/// Returns how many Services the query of a URL asks for.
fn top(query: &str) -> Result<usize, String> {
    let mut top = TOP;
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if name != "top" {
            return Err(format!("{name}: unknown; use top"));
        }
        let number = value.parse().ok().filter(|number| (1..=TOP_MAX).contains(number));
        top = number.ok_or(format!("top: `{value}` is not a number from 1 to {TOP_MAX}"))?;
    }
    Ok(top)
}

fn document(control: &Control, counts: &Counts, top: usize) -> ServiceRates {
    let mut answer = ServiceRates {
        version: status::VERSION,
        time: rfc3339(Now::read().wall),
        counted_at: counts.at.map(|at| rfc3339(at.wall)),
        not_counted: counts.missing().map(str::to_owned),
        ..ServiceRates::default()
    };
    let rates = counts.at.and_then(|at| control.rates.take(control.seconds(at), &counts.ports));
    if let Some(Busiest { seconds, per_second, active, services }) = rates {
        let rate = |((namespace, name), per_second): (Key, f64)| ServiceRate {
            namespace: namespace.to_string(),
            name: name.to_string(),
            per_second: rounded(per_second),
        };
        answer.over_seconds = Some(rounded(seconds));
        answer.per_second = Some(rounded(per_second));
        answer.active = active;
        answer.services = services.into_iter().take(top).map(rate).collect();
    }
    answer
}

impl Last {
    /// Returns true if a reading of this time is not known yet.
    fn lacks(&self, at: f64) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().is_none_or(|kept| kept.reading.at < at)
    }

    /// Returns the rates between a reading and the one before. `at` is when the kernel was read, in seconds.
    fn take(&self, at: f64, counted: &HashMap<Port, Counted>) -> Option<Busiest<Key>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // Several requests may have one reading, and come in another order.
        if let Some(known) = kept.as_ref().filter(|known| known.reading.at >= at) {
            return known.rates.clone();
        }
        let count =
            |(port, counted): (&Port, &Counted)| Some((port.clone(), counted.total.passed?.connections));
        let connections: HashMap<Port, u64> = counted.iter().filter_map(count).collect();
        let reading = Reading { at, connections };
        let service = |(_, name): &Port| (name.namespace.clone(), name.service.clone());
        let before = kept.as_ref().filter(|known| at - known.reading.at <= KEPT.as_secs_f64());
        let rates = before.and_then(|known| reading.busiest_since(&known.reading, TOP_MAX, service));
        *kept = Some(Kept { reading, rates: rates.clone() });
        rates
    }

    /// Frees a reading that is as old as this time, in seconds, or older.
    fn forget(&self, until: f64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|kept| kept.reading.at <= until) {
            *kept = None;
        }
    }
}

/// Returns a number with thousandths.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;
    use portolan_model::observed::{Counters, Total};

    use super::*;

    fn counts(connections: &[(&str, u64)]) -> HashMap<Port, Counted> {
        let port = |&(service, connections): &(&str, u64)| {
            let [namespace, service, port] = ["demo", service, "http"].map(Arc::from);
            let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
            let passed = Some(Counters::of_connections(connections));
            let counted = Counted { total: Total { passed, ..Total::default() }, ..Counted::default() };
            ((Family::Ipv4, Arc::new(name)), counted)
        };
        connections.iter().map(port).collect()
    }

    fn shown(rates: Option<Busiest<Key>>) -> Vec<(String, f64)> {
        let services = rates.map(|rates| rates.services).unwrap_or_default();
        services.into_iter().map(|((_, name), rate)| (name.to_string(), rate)).collect()
    }

    #[test]
    fn each_reading_is_compared_with_the_one_before() {
        let last = Last::default();
        assert_eq!(last.take(100.0, &counts(&[("web", 10), ("dns", 10)])), None, "the first reading");
        let rates = last.take(105.0, &counts(&[("web", 60), ("dns", 20)]));
        assert_eq!(shown(rates.clone()), [("web".to_owned(), 10.0), ("dns".to_owned(), 2.0)]);
        assert!(!last.lacks(105.0) && last.lacks(106.0));
        assert_eq!(last.take(105.0, &counts(&[])), rates, "another request with the same reading");
        assert_eq!(last.take(100.0, &counts(&[])), rates, "a request that comes late");
        let later = last.take(110.0, &counts(&[("web", 60), ("dns", 25)]));
        assert_eq!(shown(later), [("dns".to_owned(), 1.0)]);
    }

    #[test]
    fn an_old_reading_is_not_compared_with_and_freed() {
        let last = Last::default();
        last.take(0.0, &counts(&[("web", 1)]));
        assert_eq!(last.take(61.0, &counts(&[("web", 2)])), None);
        last.forget(60.0);
        assert!(!last.lacks(61.0), "it is younger");
        last.forget(61.0);
        assert!(last.lacks(61.0));
    }

    #[test]
    fn a_wrong_number_is_refused() {
        for (query, want) in [
            ("", Ok(TOP)),
            ("top=3", Ok(3)),
            ("top=100&", Ok(100)),
            ("top=0", Err("top: `0` is not a number from 1 to 100")),
            ("top=101", Err("top: `101` is not a number from 1 to 100")),
            ("limit=1", Err("limit: unknown; use top")),
        ] {
            assert_eq!(top(query), want.map_err(str::to_owned), "{query}");
        }
    }
}
