//! Applies the [guard](super::guard) to the Services: keeps the findings of each and touches those that change.
//!
//! A Service is judged again when it changes, when another Service gets or loses a cluster IP that it names, and when
//! this node's addresses, the service CIDRs or the policy change. The last three are rare; then every Service is
//! judged. Whether an address is a cluster IP is looked up in an index. It would cost memory on every node, so it is built
//! for the first address between the lowest and the highest cluster IP. Few clusters have one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

use super::guard::{AddressGuard, AddressOwner, Finding, Guard, GuardAction, reports};
use super::index::Index;
use super::record::ServiceRecord;
use super::store::{Id, Store};
use super::{Applied, Catalog, ObjectFault};
use crate::Family;
use crate::object::{Kind, Service};

/// How many external addresses of Services the guard serves or refuses, for each owner and action of which there are any.
/// An address that several Services name counts for each.
pub type GuardedAddresses = BTreeMap<(AddressOwner, GuardAction), usize>;

/// The guard, what it found, and the index that finds the Services which an event concerns.
#[derive(Debug, Clone, Default)]
pub(super) struct Review {
    pub(super) guard: Guard,
    /// Sorted findings. Services without one have no entry.
    findings: HashMap<Id, Vec<Finding>>,
    counts: GuardedAddresses,
    /// Services by external address. Empty if no Service has one.
    users: Index,
    /// The lowest and highest cluster IP of any Service so far. Addresses outside are not searched for.
    span: Span,
    /// Services by cluster IP. `None` until it is needed.
    cluster_ips: Option<Index>,
    /// False until the first lists are complete: the findings change until then and are not reported.
    reports: bool,
}

/// The range of the addresses seen so far, for IPv4 and for IPv6.
#[derive(Debug, Clone, Copy, Default)]
struct Span([Option<(IpAddr, IpAddr)>; 2]);

impl Span {
    const fn index(family: Family) -> usize {
        match family {
            Family::Ipv4 => 0,
            Family::Ipv6 => 1,
        }
    }

    fn extend(&mut self, address: IpAddr) {
        if let Some(span) = self.0.get_mut(Self::index(Family::of(address))) {
            *span =
                Some(span.map_or((address, address), |(low, high)| (low.min(address), high.max(address))));
        }
    }

    fn contains(&self, address: IpAddr) -> bool {
        let span = self.0.get(Self::index(Family::of(address))).copied().flatten();
        span.is_some_and(|(low, high)| (low..=high).contains(&address))
    }
}

impl Review {
    /// Returns what an external address of a Service belongs to, if the Service's frontends there are left out.
    pub(super) fn refuses(&self, id: Id, address: IpAddr) -> Option<AddressOwner> {
        let mut findings = self.findings.get(&id)?.iter();
        let found = findings.find(|found| found.address == address && found.action == GuardAction::Refuse);
        found.map(|found| found.owner)
    }

    /// Notes the addresses of a Service that replaces another version of itself.
    pub(super) fn replace(&mut self, id: Id, before: Option<&Service>, after: Option<&Service>) {
        for (address, _) in external_addresses(before) {
            self.users.remove(&address, id);
        }
        for (address, _) in external_addresses(after) {
            self.users.insert(&address, id);
        }
        if let Some(index) = &mut self.cluster_ips {
            for address in cluster_ips(before) {
                index.remove(&address, id);
            }
            for address in cluster_ips(after) {
                index.insert(&address, id);
            }
        }
        for address in cluster_ips(after) {
            self.span.extend(address);
        }
    }

    /// Returns the Services that may name one of these cluster IPs as external address.
    pub(super) fn users_of(&self, addresses: &[IpAddr]) -> Vec<Id> {
        addresses.iter().flat_map(|address| self.users.candidates(address)).collect()
    }

    /// Judges the external addresses of a Service.
    fn judge(&mut self, id: Id, services: &Store<ServiceRecord>) -> Vec<Finding> {
        let service = services.get(id).and_then(|record| record.service.as_ref());
        if self.cluster_ips.is_none()
            && external_addresses(service).any(|(address, _)| self.span.contains(address))
        {
            self.cluster_ips = Some(index_of_cluster_ips(services));
        }
        let has = |other: Id, address| {
            let service = services.get(other).and_then(|record| record.service.as_ref());
            other != id
                && service.and_then(|service| service.cluster_ip(Family::of(address))) == Some(address)
        };
        let is_cluster_ip = |address: IpAddr| {
            let mut others = self.cluster_ips.iter().flat_map(|index| index.candidates(&address));
            self.span.contains(address) && others.any(|other| has(other, address))
        };
        let mut findings: Vec<Finding> = external_addresses(service)
            .filter_map(|(address, is_load_balancer_ip)| {
                self.guard.judge(address, is_load_balancer_ip, || is_cluster_ip(address))
            })
            .collect();
        findings.sort_unstable();
        findings.dedup();
        findings
    }

    fn set_findings(&mut self, id: Id, new: Vec<Finding>) {
        for finding in &new {
            let count = self.counts.entry((finding.owner, finding.action)).or_default();
            *count = count.saturating_add(1);
        }
        let old = if new.is_empty() { self.findings.remove(&id) } else { self.findings.insert(id, new) };
        for finding in old.into_iter().flatten() {
            if let Some(count) = self.counts.get_mut(&(finding.owner, finding.action)) {
                *count = count.saturating_sub(1);
            }
        }
        self.counts.retain(|_, count| *count > 0);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let has_no_cluster_ip = self.cluster_ips.as_ref().is_none_or(|index| index.len() == 0);
        self.findings.is_empty() && self.counts.is_empty() && self.users.len() == 0 && has_no_cluster_ip
    }

    #[cfg(test)]
    pub(super) const fn has_index(&self) -> bool {
        self.cluster_ips.is_some()
    }
}

impl Catalog {
    /// Sets the policy of the guard and the cluster CIDRs. If they changed, every Service is judged again.
    pub fn set_address_guard(&mut self, policy: AddressGuard, cluster_cidrs: Vec<IpNet>) -> Applied {
        let mut applied = Applied::default();
        let guard = &mut self.review.guard;
        if guard.policy != policy || guard.cluster_cidrs != cluster_cidrs {
            (guard.policy, guard.cluster_cidrs) = (policy, cluster_cidrs);
            self.review_all(&mut applied);
        }
        applied
    }

    /// Returns how many external addresses belong to something else.
    pub const fn guarded_addresses(&self) -> &GuardedAddresses {
        &self.review.counts
    }

    /// Judges a Service again. Touches it if other frontends are left out than before.
    pub(super) fn review_service(&mut self, id: Id, applied: &mut Applied) {
        let new = self.review.judge(id, &self.services);
        let old = self.review.findings.get(&id).map_or(&[][..], Vec::as_slice);
        if old == new {
            return;
        }
        let refused = |findings: &[Finding]| -> Vec<IpAddr> {
            let refused = findings.iter().filter(|finding| finding.action == GuardAction::Refuse);
            refused.map(|finding| finding.address).collect()
        };
        let reported: Vec<Finding> =
            new.iter().filter(|finding| finding.is_reported() && !old.contains(finding)).copied().collect();
        if refused(old) != refused(&new) {
            // The current forwardings are kept before they change.
            self.touch(id);
        }
        applied.changed = true;
        self.review.set_findings(id, new);
        if self.review.reports {
            self.report_findings(id, &reported, applied);
        }
    }

    /// Judges every Service again.
    fn review_all(&mut self, applied: &mut Applied) {
        let ids: Vec<Id> =
            self.services.iter().filter(|(_, record)| is_judged(record)).map(|(id, _)| id).collect();
        for id in ids {
            self.review_service(id, applied);
        }
    }

    /// Uses the last state of this node.
    pub(super) fn review_node(&mut self, applied: &mut Applied) {
        let changed = self.node.as_ref().is_some_and(|node| self.review.guard.set_node(node));
        if changed {
            self.review_all(applied);
        }
    }

    /// Uses the current service CIDRs.
    pub(super) fn review_cidrs(&mut self, applied: &mut Applied) {
        let cidrs = self.all_cidrs();
        if self.review.guard.service_cidrs != cidrs {
            self.review.guard.service_cidrs = cidrs;
            self.review_all(applied);
        }
    }

    /// Reports every finding when the first lists are complete.
    pub(super) fn review_complete(&mut self, applied: &mut Applied) {
        if self.review.reports || !self.synced() {
            return;
        }
        self.review.reports = true;
        let mut all: Vec<(Id, Vec<Finding>)> =
            self.review.findings.iter().map(|(id, findings)| (*id, findings.clone())).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        for (id, findings) in all {
            let reported: Vec<Finding> = findings.into_iter().filter(Finding::is_reported).collect();
            self.report_findings(id, &reported, applied);
        }
    }

    fn report_findings(&self, id: Id, findings: &[Finding], applied: &mut Applied) {
        let Some(record) = self.services.get(id) else { return };
        let fault = |fault| ObjectFault { kind: Kind::Service, key: record.key(), fault };
        applied.faults.extend(reports(findings).map(fault));
    }
}

fn is_judged(record: &ServiceRecord) -> bool {
    record.service.as_ref().is_some_and(|service| service.external.is_some())
}

/// Returns the cluster IPs of a Service.
pub(super) fn cluster_ips(service: Option<&Service>) -> Vec<IpAddr> {
    let of = |service: &Service| Family::BOTH.map(|family| service.cluster_ip(family));
    service.map(of).into_iter().flatten().flatten().collect()
}

/// Iterates over the external addresses of a Service at which it has frontends, each with true for a load-balancer IP.
/// The cluster IPs of the Service itself are not among them.
fn external_addresses(service: Option<&Service>) -> impl Iterator<Item = (IpAddr, bool)> {
    let judged = service.filter(|service| !service.ports.is_empty()).into_iter();
    judged.flat_map(|service| {
        let balancers = service.load_balancer_ips();
        let external = service.external_ips().iter().filter(|ip| !balancers.contains(ip));
        let all = balancers.iter().map(|ip| (*ip, true)).chain(external.map(|ip| (*ip, false)));
        all.filter(|(ip, _)| service.cluster_ip(Family::of(*ip)).is_some_and(|own| own != *ip))
    })
}

fn index_of_cluster_ips(services: &Store<ServiceRecord>) -> Index {
    let mut index = Index::default();
    for (id, record) in services.iter() {
        for address in cluster_ips(record.service.as_ref()) {
            index.insert(&address, id);
        }
    }
    index
}
