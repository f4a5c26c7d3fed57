//! Applies events to the Catalog: stores objects, touches affected Services and reports conflicts.

use std::sync::Arc;

use super::claim::{RankedClaim, claims_of, strength};
use super::compile::Obstacle;
use super::record::{ServiceRecord, SliceContent, SliceRecord, fault_digest};
use super::review::cluster_ips;
use super::store::Id;
use super::{Applied, Catalog, CidrRecord, List, ObjectFault};
use crate::object::{EndpointSlice, Fault, Kind, Node, Object, ObjectKey, Service, ServiceCidr, ServicePort};
use crate::{Family, Protocol};

impl Catalog {
    pub(super) fn upsert_service(&mut self, object: Object<Service>, applied: &mut Applied) {
        let Object { key, mut payload, faults, .. } = object;
        let is_new = self.faulty.note(Kind::Service, &key, self.lists.services.generation, &faults);
        if !payload.is_proxied() {
            self.delete_service(&key, applied);
            return report_if(is_new, applied, Kind::Service, &key, faults);
        }
        payload.ports = self.shared_ports(&payload.ports);
        let id = self.service_id(&key.namespace, &key.name);
        let generation = self.lists.services.generation;
        let digest = fault_digest(&faults);
        let Some(record) = self.services.get_mut(id) else { return };
        record.generation = generation;
        let same = record.service.as_ref() == Some(&payload);
        let is_new = std::mem::replace(&mut record.fault_digest, digest) != digest || !same;
        report_if(is_new, applied, Kind::Service, &key, faults);
        if !same {
            self.replace_service(id, Some(payload), applied);
        }
    }

    /// Shares lists and names of ports: most Services have one of a few lists, and all use the same few names.
    fn shared_ports(&mut self, ports: &[ServicePort]) -> Arc<[ServicePort]> {
        let port = |port: &ServicePort| ServicePort { name: self.names.intern(&port.name), ..port.clone() };
        let ports: Vec<ServicePort> = ports.iter().map(port).collect();
        self.service_ports.intern(&ports)
    }

    pub(super) fn delete_service(&mut self, key: &ObjectKey, applied: &mut Applied) {
        let known = self.services.find(&key.namespace, &key.name);
        if let Some(id) = known.filter(|id| self.services.get(*id).is_some_and(|r| r.service.is_some())) {
            self.replace_service(id, None, applied);
        }
    }

    /// Replaces a Service, updates its claims, and touches the Services that gain or lose frontends by it.
    fn replace_service(&mut self, id: Id, service: Option<Service>, applied: &mut Applied) {
        let before = claims_of(self.services.get(id).and_then(|record| record.service.as_ref()));
        let after = claims_of(service.as_ref());
        let age = |service: Option<&Service>| service.map(|service| service.created);
        let is_another =
            age(self.services.get(id).and_then(|record| record.service.as_ref())) != age(service.as_ref());
        let (lost, gained) = if is_another {
            // The Service was recreated. Another claimant may be the older one.
            (before, after)
        } else {
            (difference(&before, &after), difference(&after, &before))
        };
        let replaced = self.services.get(id).and_then(|record| record.service.as_ref());
        let mut addresses = cluster_ips(replaced);
        self.review.replace(id, replaced, service.as_ref());
        addresses.extend(cluster_ips(service.as_ref()));
        let users = self.review.users_of(&addresses);
        self.touch(id);
        self.touch_rivals(id, &lost);
        self.touch_rivals(id, &gained);
        // They may name a cluster IP that this Service had or gets.
        for user in &users {
            self.touch(*user);
        }
        for (claim, _) in &lost {
            self.claims.remove(claim, id);
        }
        for (claim, _) in &gained {
            self.claims.insert(claim, id);
        }
        if let Some(record) = self.services.get_mut(id) {
            record.service = service;
        }
        applied.changed = true;
        self.count_hidden(id);
        self.review_service(id, applied);
        for user in users {
            self.review_service(user, applied);
        }
        self.report_conflicts(id, &gained, applied);
    }

    /// Touches the strongest rival of each claim, which owns the claim or would get it.
    fn touch_rivals(&mut self, id: Id, claims: &[RankedClaim]) {
        for (claim, _) in claims {
            let rival = self.claims.strongest_rival(claim, id, &self.services);
            if let Some(rival) = rival.map(|(_, rival, _)| rival) {
                self.touch(rival);
            }
        }
    }

    /// Reports the loser of each claim that a Service gained and another one has, too.
    fn report_conflicts(&self, id: Id, gained: &[RankedClaim], applied: &mut Applied) {
        let Some(own) = self.services.get(id) else { return };
        let compiler = self.compiler();
        for (claim, rank) in gained {
            match compiler.obstacle(id, (*claim, *rank)) {
                Some(Obstacle::ApiServer) => {
                    let fault = claim.of_api_server(*rank);
                    applied.faults.push(ObjectFault { kind: Kind::Service, key: own.key(), fault });
                    continue;
                }
                // The guard reports the address.
                Some(Obstacle::Guard(_)) => continue,
                Some(Obstacle::Rival(_)) | None => {}
            }
            let strongest = self.claims.strongest_rival(claim, id, &self.services);
            let Some((rival_rank, _, rival)) = strongest else { continue };
            let (loser, fault) = if strength(rival_rank, rival) < strength(*rank, own) {
                (own, claim.conflict(*rank, rival))
            } else {
                (rival, claim.conflict(rival_rank, own))
            };
            applied.faults.push(ObjectFault { kind: Kind::Service, key: loser.key(), fault });
        }
    }

    pub(super) fn upsert_slice(&mut self, object: Object<EndpointSlice>, applied: &mut Applied) {
        let Object { key, payload, faults, .. } = object;
        let is_new = self.faulty.note(Kind::EndpointSlice, &key, self.lists.slices.generation, &faults);
        let (Some(family), Some(service)) = (payload.family, payload.service.as_deref()) else {
            self.delete_slice(&key, applied);
            return report_if(is_new, applied, Kind::EndpointSlice, &key, faults);
        };
        let content =
            SliceContent::new(&payload, family, &self.node_name, &mut self.slice_ports, &mut self.zones);
        let owner = self.service_id(&key.namespace, service);
        let digest = fault_digest(&faults);
        let known = self.slices.find(&key.namespace, &key.name);
        let (same, same_faults) =
            known.map_or((false, false), |id| self.revisit_slice(id, owner, &content, digest));
        report_if(!same || !same_faults, applied, Kind::EndpointSlice, &key, faults);
        if same {
            return;
        }
        match known {
            Some(id) if self.slices.get(id).is_some_and(|record| record.owner == owner) => {
                self.replace_slice(id, owner, content);
            }
            // The slice moved to another Service: remove it there and add it here.
            Some(id) => {
                self.remove_slice(id, applied);
                self.add_slice(key, owner, content, digest);
            }
            None => self.add_slice(key, owner, content, digest),
        }
        self.note_trigger(owner, family, payload.trigger_time);
        applied.changed = true;
    }

    /// Marks a slice as seen. Returns whether its content and its faults are unchanged.
    fn revisit_slice(&mut self, id: Id, owner: Id, content: &SliceContent, digest: u32) -> (bool, bool) {
        let generation = self.lists.slices.generation;
        let Some(record) = self.slices.get_mut(id) else { return (false, false) };
        record.generation = generation;
        let before = std::mem::replace(&mut record.fault_digest, digest);
        (record.owner == owner && record.content == *content, before == digest)
    }

    pub(super) fn delete_slice(&mut self, key: &ObjectKey, applied: &mut Applied) {
        if let Some(id) = self.slices.find(&key.namespace, &key.name) {
            self.remove_slice(id, applied);
        }
    }

    fn add_slice(&mut self, key: ObjectKey, owner: Id, content: SliceContent, fault_digest: u32) {
        self.touch(owner);
        self.note_udp(owner, &content);
        let namespace = self.names.intern(&*key.namespace);
        let generation = self.lists.slices.generation;
        let record = SliceRecord { namespace, name: key.name, owner, generation, fault_digest, content };
        let slice = self.slices.insert(record);
        self.aside.replace(slice, None, self.slices.get(slice).map(|record| &record.content));
        if let Some(record) = self.services.get_mut(owner) {
            record.slices.push(slice);
        }
    }

    fn replace_slice(&mut self, id: Id, owner: Id, content: SliceContent) {
        self.touch(owner);
        self.note_udp(owner, &content);
        let Some(record) = self.slices.get_mut(id) else { return };
        let old = std::mem::replace(&mut record.content, content);
        self.aside.replace(id, Some(&old), Some(&record.content));
        self.note_udp(owner, &old);
    }

    /// Removes a slice and the pending trigger times of its Service, as kube-proxy does: they would measure a change
    /// that does not show any more.
    fn remove_slice(&mut self, id: Id, applied: &mut Applied) {
        let Some(owner) = self.slices.get(id).map(|record| record.owner) else { return };
        self.touch(owner);
        let Some(record) = self.slices.remove(id) else { return };
        self.aside.replace(id, Some(&record.content), None);
        self.note_udp(owner, &record.content);
        if let Some(service) = self.services.get_mut(owner) {
            service.slices.remove(id);
        }
        self.pending.triggers.remove(&owner);
        applied.changed = true;
    }

    fn note_udp(&mut self, owner: Id, content: &SliceContent) {
        if content.ports.iter().any(|port| port.protocol == Protocol::Udp)
            && let Some(record) = self.services.get_mut(owner)
        {
            *record.udp_touched.get_mut(content.family()) = true;
        }
    }

    fn note_trigger(&mut self, owner: Id, family: Family, time: Option<i64>) {
        if let Some(time) = time.filter(|time| *time > self.triggers_since) {
            self.pending.triggers.entry(owner).or_default().push((family, time));
        }
    }

    /// Stores this node. A change of its zone touches the Services whose endpoints have zone hints.
    pub(super) fn upsert_node(&mut self, object: Object<Node>, applied: &mut Applied) {
        let Object { key, payload, faults, .. } = object;
        if key.name != self.node_name {
            return;
        }
        // The ignored parts of the object may be all that changed.
        let is_new = self.faulty.note(Kind::Node, &key, 0, &faults);
        report_if(is_new, applied, Kind::Node, &key, faults);
        if self.node.as_ref() == Some(&payload) {
            return;
        }
        if self.node.as_ref().and_then(|node| node.zone.as_ref()) != payload.zone.as_ref() {
            let hinted = self.slices.iter().filter(|(_, slice)| !slice.content.zone_sets.is_empty());
            let owners: Vec<Id> = hinted.map(|(_, slice)| slice.owner).collect();
            for owner in owners {
                self.touch(owner);
            }
        }
        self.node = Some(payload);
        applied.changed = true;
        self.review_node(applied);
    }

    pub(super) fn upsert_cidr(&mut self, object: Object<ServiceCidr>, applied: &mut Applied) {
        let Object { key, payload: ServiceCidr { cidrs }, faults, .. } = object;
        let generation = self.lists.cidrs.generation;
        let is_new = self.faulty.note(Kind::ServiceCidr, &key, generation, &faults);
        let known = self.cidrs.get_mut(&key);
        let same = known.as_ref().is_some_and(|record| record.cidrs == cidrs);
        if let Some(record) = known.filter(|_| same) {
            record.generation = generation;
            return report_if(is_new, applied, Kind::ServiceCidr, &key, faults);
        }
        report_if(true, applied, Kind::ServiceCidr, &key, faults);
        self.cidrs.insert(key, CidrRecord { cidrs, generation });
        applied.changed = true;
        self.review_cidrs(applied);
    }

    pub(super) fn start_list(&mut self, kind: Kind) {
        if let Some(list) = self.list(kind) {
            list.generation = list.generation.wrapping_add(1);
        }
    }

    /// Ends a list and removes the objects that were not seen in it.
    pub(super) fn end_list(&mut self, kind: Kind, applied: &mut Applied) {
        let Some(list) = self.list(kind) else { return };
        list.complete = true;
        let current = list.generation;
        self.faulty.end_list(kind, current);
        match kind {
            Kind::Service => self.end_service_list(current, applied),
            Kind::EndpointSlice => {
                let unseen = self.slices.iter().filter(|(_, slice)| slice.generation != current);
                for id in unseen.map(|(id, _)| id).collect::<Vec<_>>() {
                    self.remove_slice(id, applied);
                }
            }
            Kind::ServiceCidr => {
                let before = self.cidrs.len();
                self.cidrs.retain(|_, record| record.generation == current);
                applied.changed |= self.cidrs.len() != before;
                self.review_cidrs(applied);
            }
            Kind::Node => {}
        }
        self.review_complete(applied);
    }

    fn end_service_list(&mut self, current: u32, applied: &mut Applied) {
        let records = self.services.iter();
        let unseen = records.filter(|(_, r)| r.service.is_some() && r.generation != current);
        for id in unseen.map(|(id, _)| id).collect::<Vec<_>>() {
            self.replace_service(id, None, applied);
        }
    }

    fn list(&mut self, kind: Kind) -> Option<&mut List> {
        match kind {
            Kind::Service => Some(&mut self.lists.services),
            Kind::EndpointSlice => Some(&mut self.lists.slices),
            Kind::ServiceCidr => Some(&mut self.lists.cidrs),
            Kind::Node => None,
        }
    }

    fn service_id(&mut self, namespace: &str, name: &str) -> Id {
        if let Some(id) = self.services.find(namespace, name) {
            return id;
        }
        let namespace: Arc<str> = self.names.intern(namespace);
        self.services.insert(ServiceRecord::new(namespace, name.into()))
    }
}

/// Reports faults if they are new.
fn report_if(is_new: bool, applied: &mut Applied, kind: Kind, key: &ObjectKey, faults: Vec<Fault>) {
    if !is_new {
        return;
    }
    let with_key = |fault| ObjectFault { kind, key: key.clone(), fault };
    applied.faults.extend(faults.into_iter().map(with_key));
}

/// Returns the entries of the first sorted list that are not in the second.
fn difference(from: &[RankedClaim], without: &[RankedClaim]) -> Vec<RankedClaim> {
    from.iter().filter(|claim| without.binary_search(claim).is_err()).copied().collect()
}
