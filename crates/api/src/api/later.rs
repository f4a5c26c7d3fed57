//! etcd limits the steps of a transaction. If a Service releases more node ports than fit, its write leaves the objects of the
//! rest, and transactions after it remove them. In between no other Service gets these node ports. If the request or the server
//! ends before, the repair frees them.

use portolan_ipam::{Holder, ServiceKey};
use portolan_schema::Resource;
use portolan_store::{CommitError, Step, Transaction};

use super::Api;
use crate::allocate::parent_of;

/// Conflicts after which the rest is left to the repair.
const CONFLICTS: usize = 5;

/// Keys of the node ports that are still recorded for a Service.
#[derive(Debug, Default)]
pub(super) struct Later {
    service: Box<str>,
    ports: Vec<Box<str>>,
}

/// Takes removals of node ports out of a transaction that has more than `most` steps, as many as needed. Its last step writes
/// or removes the Service.
pub(super) fn put_off(transaction: &mut Transaction, most: Option<usize>) -> Later {
    let mut later = Later::default();
    let Some(excess) = most.and_then(|most| transaction.steps.len().checked_sub(most)) else { return later };
    let Some(object) = transaction.steps.pop() else { return later };
    if object.resource() == Resource::Service {
        later.service = object.key().into();
        transaction.steps.retain(|step| {
            let is_put_off = later.ports.len() < excess
                && step.resource() == Resource::NodePort
                && matches!(step, Step::Remove { .. });
            if is_put_off {
                later.ports.push(step.key().into());
            }
            !is_put_off
        });
    }
    transaction.steps.push(object);
    later
}

impl Api {
    /// Removes the node ports, unless the Service has taken them again. What cannot be removed is left to the repair.
    pub(super) async fn release_later(&self, later: &Later) {
        let mut conflicts = 0;
        // Each transaction removes one node port at least.
        for _ in 0..later.ports.len().saturating_add(CONFLICTS) {
            let Some(transaction) = self.removal_of(later) else { return };
            let result = self.store.commit(transaction).await;
            let error = match result {
                Ok(_) => continue,
                Err(CommitError::Conflict { .. }) if conflicts < CONFLICTS => {
                    self.store.refresh().await.err()
                }
                Err(error) => Some(error),
            };
            conflicts += 1;
            if let Some(error) = error {
                tracing::warn!(service = %later.service, %error, "node ports of the Service are released later, by the repair");
                return;
            }
        }
    }

    /// Returns the next transaction that removes node ports. It requires the Service as it is now, so that this one has not taken
    /// them again meanwhile.
    fn removal_of(&self, later: &Later) -> Option<Transaction> {
        let (namespace, name) = later.service.split_once('/')?;
        let owner = Holder::Service(ServiceKey::new(namespace, name));
        let service = self.store.latest(Resource::Service, &later.service);
        let spec = service.as_ref().map(|service| self.write_lock().stored_spec(&service.decode()));
        let kept: Vec<String> =
            spec.iter().flat_map(|spec| spec.claims().ports).map(|port| port.to_string()).collect();
        let resource = Resource::NodePort;
        let left = later.ports.iter().filter_map(|key| {
            let record = self.store.latest(resource, key).filter(|record| parent_of(record) == owner)?;
            let is_kept = kept.iter().any(|kept| **kept == **key);
            (!is_kept).then(|| Step::Remove { resource, key: key.clone(), expected: record.revision() })
        });
        let most = self.store.most_steps().unwrap_or(usize::MAX).saturating_sub(1);
        let expected = service.as_ref().map(|service| service.revision());
        let mut steps =
            vec![Step::Require { resource: Resource::Service, key: later.service.clone(), expected }];
        steps.extend(left.take(most));
        (steps.len() > 1).then_some(Transaction { steps })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;
    use portolan_schema::json::{Value, json};
    use portolan_store::{Draft, History, Store, faulty::FaultyStore};

    use super::*;
    use crate::{ApiConfig, Part, testing};

    /// As on etcd.
    const MOST: usize = 127;

    fn api() -> (Api, Arc<FaultyStore>) {
        let store = Arc::new(FaultyStore::new(History::default()));
        let config = ApiConfig::default();
        let api = Api::open(Arc::clone(&store) as Arc<dyn Store>, &config).now_or_never().unwrap().unwrap();
        store.limit_steps(MOST);
        (api, store)
    }

    fn service(kind: &str, ports: std::ops::Range<u16>, prefix: &str) -> Value {
        let ports: Vec<Value> =
            ports.map(|port| json!({"port": port, "name": format!("{prefix}{port}")})).collect();
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
            "spec": {"type": kind, "ports": ports}})
    }

    fn records(api: &Api) -> usize {
        testing::list(api, Resource::NodePort).len()
    }

    #[test]
    fn a_service_with_more_node_ports_than_steps_changes_and_goes() {
        let (api, store) = api();
        let apply = |kind: &str, ports, prefix: &str| {
            api.blocking().apply(service(kind, ports, prefix)).map(|it| it.effect)
        };
        apply("ClusterIP", 1..126, "p").unwrap();
        apply("NodePort", 1..126, "p").unwrap();
        assert_eq!(records(&api), 125);
        // Other ports: as many node ports are taken as released.
        apply("NodePort", 201..326, "q").unwrap();
        assert_eq!(records(&api), 125);
        apply("NodePort", 201..426, "q").unwrap();
        assert_eq!(records(&api), 225);
        apply("ClusterIP", 201..426, "q").unwrap();
        assert_eq!(records(&api), 0);
        apply("NodePort", 201..326, "q").unwrap();
        apply("NodePort", 201..426, "q").unwrap();
        apply("NodePort", 201..526, "q").unwrap();
        testing::delete(&api, Resource::Service, "a");
        assert_eq!((records(&api), store.count(Resource::IpAddress)), (0, 0));
    }

    #[test]
    fn what_is_taken_again_stays() {
        let (api, store) = api();
        let first = api.blocking().apply(service("NodePort", 1..120, "p")).unwrap();
        let object: Value = serde_json::from_slice(&first.object).unwrap();
        let port = object["spec"]["ports"][0]["nodePort"].to_string();
        // These two are in the static band, of which no port is chosen.
        let later = Later {
            service: "default/a".into(),
            ports: vec![port.clone().into(), "30001".into(), "30002".into()],
        };
        let mine = crate::port_draft(30_002, &ServiceKey::new("default", "a"));
        let other = crate::port_draft(30_001, &ServiceKey::new("default", "b"));
        for draft in [mine, other] {
            let put = Transaction::put(Resource::NodePort, draft, None);
            store.commit(put).now_or_never().unwrap().unwrap();
        }
        api.release_later(&later).now_or_never().unwrap();
        let has = |key: &str| store.get(Resource::NodePort, key).is_some();
        assert_eq!([has(&port), has("30001"), has("30002")], [true, true, false]);
        // The Service has changed since the transaction was made.
        let mine = crate::port_draft(30_002, &ServiceKey::new("default", "a"));
        store.commit(Transaction::put(Resource::NodePort, mine, None)).now_or_never().unwrap().unwrap();
        let removal = api.removal_of(&later).unwrap();
        let label = json!({"metadata": {"labels": {"a": "b"}}}).as_object().unwrap().clone();
        let target = testing::target(Resource::Service, "a");
        api.blocking().merge_patch(target, Part::Main, label, <_>::default()).unwrap();
        let refused = store.commit(removal).now_or_never().unwrap();
        assert!(matches!(refused, Err(CommitError::Conflict { .. })), "{refused:?}");
    }

    #[test]
    fn only_node_ports_beyond_the_limit_are_put_off() {
        let remove = |resource, key: &str| Step::Remove { resource, key: key.into(), expected: 1 };
        let ports = |number: u16| (0..number).map(|port| remove(Resource::NodePort, &port.to_string()));
        for (number, most, expected) in [(5, None, 0), (5, Some(7), 0), (5, Some(5), 2), (5, Some(1), 5)] {
            let mut steps = vec![remove(Resource::IpAddress, "10.96.0.1")];
            steps.extend(ports(number));
            steps.push(remove(Resource::Service, "default/a"));
            let mut transaction = Transaction { steps };
            let later = put_off(&mut transaction, most);
            assert_eq!((later.ports.len(), transaction.steps.len()), (expected, 7 - expected), "{most:?}");
            assert_eq!(transaction.steps.last().unwrap().key(), "default/a");
        }
        let node = Draft::new(Resource::Node, json!({"metadata": {"name": "a"}}).as_object().unwrap());
        let mut transaction = Transaction::put(Resource::Node, node, None);
        assert!(put_off(&mut transaction, Some(0)).ports.is_empty() && transaction.steps.len() == 1);
    }
}
