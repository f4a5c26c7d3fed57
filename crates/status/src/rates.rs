//! New connections of Services per second, from two readings of the kernel's counters.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use serde::{Deserialize, Serialize};

/// The Services with the most new connections per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceRates {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// When the document was made, in RFC 3339.
    pub time: String,
    /// When the counters were read, in RFC 3339. Null if they were not.
    pub counted_at: Option<String>,
    /// Seconds between this reading and the one before. Null if there is none to compare with; then there are no rates.
    pub over_seconds: Option<f64>,
    /// New connections per second of all Services together. Null if there are no rates.
    pub per_second: Option<f64>,
    /// How many Services had new connections.
    pub active: usize,
    /// The busiest of these, the busiest first.
    pub services: Vec<ServiceRate>,
    /// Why counters are missing. Null if none are.
    pub not_counted: Option<String>,
}

/// The rate of a Service: of all its ports in both families.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceRate {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// New connections per second.
    pub per_second: f64,
}

/// What the Service ports of a node had counted at one time. `P` names a Service port of a family.
#[derive(Clone, Debug)]
pub struct Reading<P> {
    /// The time, in seconds of a clock that does not go back.
    pub at: f64,
    /// New connections since each counter began.
    pub connections: HashMap<P, u64>,
}

/// The Services with the most new connections between two readings. `S` names a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Busiest<S> {
    /// Seconds between the readings.
    pub seconds: f64,
    /// New connections per second of all Services together.
    pub per_second: f64,
    /// How many Services had new connections.
    pub active: usize,
    /// The busiest of these, the busiest first, and among equals in the order of their names.
    pub services: Vec<(S, f64)>,
}

impl<P: Eq + Hash> Reading<P> {
    /// Returns the rates since an earlier reading, of `top` Services at most. `None` if no time has passed.
    ///
    /// A Service port counts if both readings have it. One whose count is lower than before has a new counter: how many
    /// connections it had in between is not known, so it does not count until the next reading.
    pub fn busiest_since<S: Ord>(
        &self,
        earlier: &Self,
        top: usize,
        service: impl Fn(&P) -> S,
    ) -> Option<Busiest<S>> {
        let seconds = self.at - earlier.at;
        if seconds <= 0.0 {
            return None;
        }
        let mut increases: BTreeMap<S, u64> = BTreeMap::new();
        for (port, now) in &self.connections {
            let increase = earlier.connections.get(port).and_then(|before| now.checked_sub(*before));
            if let Some(increase) = increase.filter(|increase| *increase > 0) {
                let sum = increases.entry(service(port)).or_default();
                *sum = sum.saturating_add(increase);
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "an increase within minutes is small")]
        let mut services: Vec<(S, f64)> =
            increases.into_iter().map(|(service, increase)| (service, increase as f64 / seconds)).collect();
        // A sum of no numbers would be -0.0.
        let per_second = services.iter().fold(0.0, |sum, (_, rate)| sum + rate);
        let active = services.len();
        // The sort is stable, and the names are in order.
        services.sort_by(|(_, one), (_, other)| other.partial_cmp(one).unwrap_or(Ordering::Equal));
        services.truncate(top);
        Some(Busiest { seconds, per_second, active, services })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Port = (&'static str, u16);

    fn reading(at: f64, connections: &[(Port, u64)]) -> Reading<Port> {
        Reading { at, connections: connections.iter().copied().collect() }
    }

    fn rates(before: &[(Port, u64)], now: &[(Port, u64)], top: usize) -> Busiest<&'static str> {
        let earlier = reading(10.0, before);
        reading(14.0, now)
            .busiest_since(&earlier, top, |(service, _)| *service)
            .expect("some time has passed")
    }

    #[test]
    fn the_ports_of_a_service_are_added_up_and_the_busiest_is_first() {
        let before = [(("web", 80), 100), (("web", 443), 50), (("dns", 53), 7), (("idle", 80), 9)];
        let now = [(("web", 80), 104), (("web", 443), 54), (("dns", 53), 407), (("idle", 80), 9)];
        let all = rates(&before, &now, 10);
        assert_eq!(all.services, [("dns", 100.0), ("web", 2.0)]);
        assert_eq!((all.seconds, all.per_second, all.active), (4.0, 102.0, 2));
        let one = rates(&before, &now, 1);
        assert_eq!(one.services, [("dns", 100.0)]);
        assert_eq!((one.per_second, one.active), (102.0, 2), "all Services count");
    }

    #[test]
    fn without_new_connections_the_rate_is_0() {
        let none = rates(&[(("web", 80), 5)], &[(("web", 80), 5)], 10);
        assert_eq!((format!("{:.1}", none.per_second), none.active), ("0.0".to_owned(), 0));
    }

    #[test]
    fn equals_are_in_the_order_of_their_names() {
        let ports = ["d", "b", "a", "c"];
        let counted = |count: u64| ports.map(|service| ((service, 80), count));
        let found = rates(&counted(1), &counted(5), 3).services;
        assert_eq!(found, [("a", 1.0), ("b", 1.0), ("c", 1.0)]);
    }

    #[test]
    fn a_counter_that_is_new_or_began_again_does_not_count_yet() {
        let before = [(("again", 80), 1_000), (("gone", 80), 5), (("web", 80), 1_000)];
        let now = [(("again", 80), 900), (("new", 80), 900), (("web", 80), 1_001)];
        assert_eq!(rates(&before, &now, 10).services, [("web", 0.25)]);
    }

    #[test]
    fn without_time_between_them_there_is_no_rate() {
        let (one, two) = (reading(3.0, &[(("web", 80), 1)]), reading(3.0, &[(("web", 80), 2)]));
        assert_eq!(two.busiest_since(&one, 10, |(service, _)| *service), None);
        let none = reading(4.0, &[]).busiest_since(&one, 10, |(service, _)| *service);
        assert_eq!(none, Some(Busiest { seconds: 1.0, per_second: 0.0, active: 0, services: Vec::new() }));
    }
}
