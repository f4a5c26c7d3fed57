//! Vectors whose label values are only known at run time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portolan_web::metrics::{MetricKind, Page, labels_text};

use super::Metric;

/// The maximum number of members of one vector. Label values come from a configuration and from an API server, so a
/// larger number means that one of these is faulty.
const MAX_MEMBERS: usize = 512;

/// One metric for each used combination of `N` label values, in the order of their text.
pub struct DynamicVector<const N: usize, M> {
    names: [&'static str; N],
    make: fn() -> M,
    members: Mutex<BTreeMap<String, M>>,
}

impl<const N: usize, M> DynamicVector<N, M> {
    /// Creates a vector without members. `names` are the label names, sorted; `make` creates a member.
    pub fn new(names: [&'static str; N], make: fn() -> M) -> Self {
        Self { names, make, members: Mutex::default() }
    }

    /// Calls `use_it` with the member of some label values, in the order of the names. If there would be too many
    /// members, the observation is lost.
    pub fn with(&self, values: [&str; N], use_it: impl FnOnce(&M)) {
        let mut pairs = self.names.map(|name| (name, ""));
        for (pair, value) in pairs.iter_mut().zip(values) {
            pair.1 = value;
        }
        let labels = labels_text(pairs);
        let mut members = self.lock();
        if members.len() < MAX_MEMBERS || members.contains_key(&labels) {
            use_it(members.entry(labels).or_insert_with(self.make));
        }
    }

    /// Removes every member.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, M>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const N: usize, M: Metric> Metric for DynamicVector<N, M> {
    fn kind(&self) -> MetricKind {
        (self.make)().kind()
    }

    fn collect(&self, name: &str, _: &str, page: &mut Page) {
        for (labels, member) in &*self.lock() {
            member.collect(name, labels, page);
        }
    }
}
