//! A slice as it was last observed or written.

use std::collections::HashMap;

use super::write::{EndpointWrite, MarkerChange, SliceWrite};
use crate::object::{Conditions, EndpointSlice, Key, MARKER};

/// A slice, with the endpoints that are probed.
#[derive(Debug)]
pub(super) struct SliceEntry {
    pub(super) key: Key,
    pub(super) service: Option<Key>,
    pub(super) slice: EndpointSlice,
    /// For each endpoint its number in the plan, if it is probed. Empty if none is.
    pub(super) targets: Vec<Option<u64>>,
    /// True if the slice should be checked and does not have the port.
    pub(super) lacks_port: bool,
    /// What was written.
    pub(super) written: Written,
}

/// What was written to a slice, whatever it has meanwhile: another client may have changed it back.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The last conditions `ready` and `serving` of endpoints, by their numbers in the plan.
    conditions: HashMap<u64, (Option<bool>, Option<bool>)>,
    /// True if the last write removed them.
    is_released: bool,
}

impl Written {
    /// Drops the endpoints that are not probed any more.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        self.conditions.retain(|number, _| is_kept(*number));
    }

    fn add(&mut self, write: &SliceWrite) {
        self.is_released = write.marker == MarkerChange::Remove;
        let numbered = |change: &EndpointWrite| Some((change.number?, (change.ready, change.serving)));
        self.conditions.extend(write.endpoints.iter().filter_map(numbered));
    }

    /// Notes that an endpoint has the conditions that it should have. If another client has set them, the last written ones
    /// are out of date.
    fn found(&mut self, number: u64, conditions: (Option<bool>, Option<bool>)) {
        if let Some(written) = self.conditions.get_mut(&number) {
            *written = conditions;
        }
    }

    fn has(&self, endpoints: &[EndpointWrite], marker: MarkerChange) -> bool {
        let has = |change: &EndpointWrite| {
            let written = change.number.and_then(|number| self.conditions.get(&number));
            written == Some(&(change.ready, change.serving))
        };
        if marker == MarkerChange::Remove { self.is_released } else { endpoints.iter().all(has) }
    }
}

impl SliceEntry {
    pub(super) fn new(slice: EndpointSlice) -> Self {
        let (key, service) = (slice.metadata.key(), slice.service());
        Self { key, service, slice, targets: Vec::new(), lacks_port: false, written: Written::default() }
    }

    /// Returns true if `other` is an older version of the slice. A watch that lags delivers such versions after a write.
    /// Resource versions that are no numbers are not compared.
    pub(super) fn is_older(&self, other: &EndpointSlice) -> bool {
        let version = |slice: &EndpointSlice| slice.metadata.resource_version.parse::<u64>();
        let (Ok(own), Ok(other_version)) = (version(&self.slice), version(other)) else { return false };
        self.slice.metadata.uid == other.metadata.uid && other_version < own
    }

    pub(super) fn conditions(&self, index: usize) -> Conditions {
        self.slice.endpoints.get(index).and_then(|endpoint| endpoint.conditions).unwrap_or_default()
    }

    /// Returns the write that gives endpoints these conditions, by index; `None` if they have them. Endpoints that are
    /// not listed stay as they are.
    pub(super) fn write(
        &mut self,
        mut wanted: Vec<(usize, Option<bool>, Option<bool>)>,
    ) -> Option<SliceWrite> {
        wanted.retain(|(index, ready, serving)| {
            let old = self.conditions(*index);
            let is_same = (old.ready, old.serving) == (*ready, *serving);
            if let (true, Some(number)) = (is_same, self.targets.get(*index).copied().flatten()) {
                self.written.found(number, (*ready, *serving));
            }
            !is_same
        });
        let endpoint = |(index, ready, serving): (usize, Option<bool>, Option<bool>)| {
            let old = self.slice.endpoints.get(index)?.conditions;
            let number = self.targets.get(index).copied().flatten();
            Some(EndpointWrite { index, number, old, ready, serving })
        };
        let endpoints: Vec<EndpointWrite> = wanted.into_iter().filter_map(endpoint).collect();
        let annotations = self.slice.metadata.annotations.is_some();
        let marker =
            if self.slice.is_marked() { MarkerChange::None } else { MarkerChange::Add { annotations } };
        (!endpoints.is_empty()).then(|| self.with(endpoints, marker))
    }

    /// Returns the write that removes the prober's conditions and marker, or `None` if the slice has no marker.
    pub(super) fn release(&self) -> Option<SliceWrite> {
        let is_set = |conditions: &Conditions| conditions.ready.is_some() || conditions.serving.is_some();
        let endpoint = |(index, endpoint): (usize, &crate::object::Endpoint)| {
            let old = endpoint.conditions.filter(is_set)?;
            Some(EndpointWrite { index, number: None, old: Some(old), ready: None, serving: None })
        };
        let endpoints = || self.slice.endpoints.iter().enumerate().filter_map(endpoint).collect();
        self.slice.is_marked().then(|| self.with(endpoints(), MarkerChange::Remove))
    }

    fn with(&self, endpoints: Vec<EndpointWrite>, marker: MarkerChange) -> SliceWrite {
        let metadata = &self.slice.metadata;
        let (uid, resource_version) = (metadata.uid.clone(), metadata.resource_version.clone());
        let is_repeat = self.written.has(&endpoints, marker);
        SliceWrite { key: self.key.clone(), uid, resource_version, endpoints, is_repeat, marker }
    }

    /// Applies a write that succeeded, unless another version of the slice has been observed meanwhile.
    pub(super) fn written(&mut self, write: &SliceWrite, resource_version: &str) {
        let metadata = &mut self.slice.metadata;
        if metadata.uid != write.uid {
            return;
        }
        self.written.add(write);
        if metadata.resource_version != write.resource_version {
            return;
        }
        resource_version.clone_into(&mut metadata.resource_version);
        match write.marker {
            MarkerChange::None => {}
            MarkerChange::Add { .. } => {
                metadata.annotations.get_or_insert_default().insert(MARKER.to_owned(), "true".to_owned());
            }
            MarkerChange::Remove => {
                metadata.annotations.get_or_insert_default().remove(MARKER);
            }
        }
        for change in &write.endpoints {
            if let Some(endpoint) = self.slice.endpoints.get_mut(change.index) {
                let conditions = endpoint.conditions.get_or_insert_default();
                (conditions.ready, conditions.serving) = (change.ready, change.serving);
            }
        }
    }
}
