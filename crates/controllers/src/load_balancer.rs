//! Gives Services the load-balancer addresses for which they wait.
//!
//! A Service of type LoadBalancer gets its address when it is written. If none is free, it is stored without. This
//! controller reports that in an Event, and writes the Service again when an address may have become free. The Service
//! that has waited longest is the first.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use portolan_api::{
    Api,
    events::Notice,
    load_balancer::{self, Pending, free_families, settle},
};
use portolan_ipam::{Family, ServiceKey};
use portolan_schema::Resource;
use portolan_store::{Change, StoredObject};

use super::{
    RECHECK_INTERVAL,
    feed::{Feed, Seen},
};

#[cfg(test)]
mod tests;

/// Pause after a change of an IPAddress before waiting Services are written: many addresses may be released at once.
const PAUSE: Duration = Duration::from_millis(100);

/// The Services that wait.
#[derive(Debug)]
pub(super) struct LoadBalancers {
    api: Arc<Api>,
    services: Feed,
    /// What each Service waits for, by the revision at which it was seen waiting first.
    waiting: BTreeMap<(u64, ServiceKey), Pending>,
    since: HashMap<ServiceKey, u64>,
    /// The notes of the Events that were written.
    reported: HashMap<ServiceKey, String>,
}

impl LoadBalancers {
    pub(super) fn new(api: &Arc<Api>) -> Self {
        let services = Feed::new(api.store(), [Resource::Service]);
        let (waiting, since, reported) = <_>::default();
        Self { api: Arc::clone(api), services, waiting, since, reported }
    }

    /// Follows Services and addresses. Never returns.
    pub(super) async fn run(mut self) {
        let mut addresses = self.api.store().subscribe(Resource::IpAddress);
        loop {
            addresses.borrow_and_update();
            self.pass().await;
            if self.services.has_more() {
                continue;
            }
            let is_any_waiting = !self.waiting.is_empty();
            tokio::select! {
                () = self.services.changed() => {}
                _ = addresses.changed(), if is_any_waiting => tokio::time::sleep(PAUSE).await,
                () = tokio::time::sleep(RECHECK_INTERVAL), if is_any_waiting => {}
            }
        }
    }

    /// Observes the changes since the last pass, and writes the Services that may get an address.
    pub(super) async fn pass(&mut self) {
        for seen in self.services.take() {
            match seen {
                Seen::State(_, services) => {
                    self.waiting.clear();
                    self.since.clear();
                    for service in &services {
                        self.observe(service);
                    }
                }
                Seen::Change(_, Change { new: Some(service), .. }) => self.observe(&service),
                Seen::Change(_, Change { old: Some(service), .. }) => {
                    self.forget(&load_balancer::key_of(&service));
                }
                Seen::Change(..) => {}
            }
        }
        self.settle().await;
        self.report().await;
    }

    fn observe(&mut self, service: &StoredObject) {
        let key = load_balancer::key_of(service);
        match load_balancer::pending(&self.api, service) {
            Some(pending) => {
                let since = *self.since.entry(key.clone()).or_insert_with(|| service.revision());
                self.waiting.insert((since, key), pending);
            }
            None => self.forget(&key),
        }
    }

    fn forget(&mut self, service: &ServiceKey) {
        if let Some(since) = self.since.remove(service) {
            self.waiting.remove(&(since, service.clone()));
        }
        self.reported.remove(service);
    }

    /// Writes the waiting Services for which addresses are free.
    async fn settle(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut free = free_families(&self.api);
        if free.is_empty() {
            return;
        }
        let waiting: Vec<((u64, ServiceKey), Pending)> =
            self.waiting.iter().map(|(key, pending)| (key.clone(), pending.clone())).collect();
        for ((_, key), pending) in waiting {
            if free.is_empty() {
                return;
            }
            if !may_get_one(&pending, &free) {
                continue;
            }
            match settle(&self.api, &key).await {
                // The feed returns the written Service, and it is no longer waiting then.
                Ok(true) => free = free_families(&self.api),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(service = %key, %error, "load-balancer address not allocated");
                }
            }
        }
    }

    /// Writes an Event for each Service that waits for another reason than the last one.
    async fn report(&mut self) {
        let news: Vec<(ServiceKey, String)> = self
            .waiting
            .iter()
            .filter(|((_, key), pending)| self.reported.get(key) != Some(&pending.note))
            .map(|((_, key), pending)| (key.clone(), pending.note.clone()))
            .collect();
        for (key, note) in news {
            // The Service may have got its address in this pass.
            let stored = self.api.store().latest(Resource::Service, &key.to_string());
            if stored.is_none_or(|service| load_balancer::pending(&self.api, &service).is_none()) {
                continue;
            }
            let notice = Notice {
                regarding: (Resource::Service, &key.namespace, &key.name),
                uid: None,
                is_warning: true,
                controller: "load-balancer-controller",
                reason: "LoadBalancerIPPending",
                action: "LoadBalancerIPAllocation",
                note: note.clone(),
            };
            notice.send(&self.api).await;
            self.reported.insert(key, note);
        }
    }
}

fn may_get_one(pending: &Pending, free: &[Family]) -> bool {
    pending.families.iter().any(|family| free.contains(family))
}
