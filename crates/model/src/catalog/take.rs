//! Extracts changes from the Catalog.

use std::cmp::Ordering;
use std::sync::Arc;

use super::compile::Compiled;
use super::store::Id;
use super::{Catalog, Changes, HealthCheckChange, NoLocalEndpoints};
use crate::{Change, ExternalPolicy, Family, Forwarding, InternalPolicy, Protocol, ServicePortName};

impl Catalog {
    /// Returns the differences since the last take. The cost is proportional to the Services touched since then.
    pub fn take_changes(&mut self) -> Changes {
        let mut list = Vec::new();
        let mut changes = self.drain_changes(|change| list.push(change));
        changes.changes = list;
        changes
    }

    /// Passes each change to `on_change` as soon as it is computed, instead of collecting them as
    /// [`take_changes`](Self::take_changes) does. `changes` of the result stays empty. At start, when everything is
    /// new and the whole table is programmed anyway, this avoids holding all changes in memory.
    pub fn drain_changes(&mut self, mut on_change: impl FnMut(Change)) -> Changes {
        let mut changes = Changes::default();
        let mut triggers = std::mem::take(&mut self.pending.triggers);
        for id in std::mem::take(&mut self.pending.dirty) {
            let old = self.pending.old.remove(&id).unwrap_or_default();
            let new = self.compiler().service(id);
            for (family, time) in triggers.remove(&id).unwrap_or_default() {
                changes.triggers.get_mut(family).push(time);
            }
            self.compare(id, &old, &new, &mut changes, &mut on_change);
            self.compare_health_check(id, &mut changes);
            self.settle(id);
        }
        self.pending.old = std::collections::HashMap::new();
        let cidrs = self.all_cidrs();
        changes.service_cidrs = cidrs != self.taken_cidrs;
        self.taken_cidrs = cidrs;
        changes
    }

    /// Returns true if there are touched Services or changed service CIDRs.
    pub fn has_pending(&self) -> bool {
        !self.pending.dirty.is_empty() || self.taken_cidrs != self.all_cidrs()
    }

    /// Compares the two sorted lists in one pass.
    fn compare(
        &mut self,
        id: Id,
        old: &[Compiled],
        new: &[Compiled],
        changes: &mut Changes,
        on_change: &mut impl FnMut(Change),
    ) {
        let udp_touched = self.services.get(id).map(|record| record.udp_touched).unwrap_or_default();
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(before), Some(after)) => before.name.cmp(&after.name),
            };
            let before = if order.is_le() { old.next() } else { None };
            let after = if order.is_ge() { new.next() } else { None };
            let Some(name) = after.or(before).map(|port| &port.name) else { return };
            for family in Family::BOTH {
                let before = before.and_then(|port| port.forwarding.get(family).clone());
                let after = after.and_then(|port| port.forwarding.get(family).clone());
                let touched = *udp_touched.get(family);
                if let Some(change) = self.compare_port(name, family, (before, after), touched, changes) {
                    on_change(change);
                }
            }
        }
    }

    fn compare_port(
        &mut self,
        name: &Arc<ServicePortName>,
        family: Family,
        (old, new): (Option<Arc<Forwarding>>, Option<Arc<Forwarding>>),
        udp_touched: bool,
        changes: &mut Changes,
    ) -> Option<Change> {
        let differs = old != new;
        let present = old.is_some() || new.is_some();
        if name.protocol == Protocol::Udp && present && (differs || udp_touched) {
            *changes.conntrack_check.get_mut(family) = true;
            if new.is_some() {
                changes.udp.push((family, Arc::clone(name)));
            }
        }
        if !differs {
            return None;
        }
        let counts = self.no_local.get_mut(family);
        count(counts, old.as_deref(), |n| n.saturating_sub(1));
        count(counts, new.as_deref(), |n| n.saturating_add(1));
        Some(Change { name: Arc::clone(name), family, old, new })
    }

    fn compare_health_check(&mut self, id: Id, changes: &mut Changes) {
        let new = self.compiler().health_check(id);
        let old = match new {
            Some(check) => self.health_checks.insert(id, check),
            None => self.health_checks.remove(&id),
        };
        if old != new
            && let Some(record) = self.services.get(id)
        {
            changes.health_checks.push(HealthCheckChange { key: record.key(), old, new });
        }
    }

    /// Marks a Service as taken and removes its record if that is vacant.
    fn settle(&mut self, id: Id) {
        let Some(record) = self.services.get_mut(id) else { return };
        record.dirty = false;
        record.settled = true;
        record.udp_touched = super::PerFamily::default();
        if record.is_vacant() {
            self.services.remove(id);
        }
    }
}

/// Counts a Service port if a Local policy leaves it without an endpoint on this node.
fn count(counts: &mut NoLocalEndpoints, forwarding: Option<&Forwarding>, step: impl Fn(usize) -> usize) {
    let Some(forwarding) = forwarding else { return };
    if !forwarding.has_endpoints || !forwarding.local.is_empty() {
        return;
    }
    if forwarding.internal_policy == InternalPolicy::Local {
        counts.internal = step(counts.internal);
    }
    if forwarding.external_policy == ExternalPolicy::Local {
        counts.external = step(counts.external);
    }
}
