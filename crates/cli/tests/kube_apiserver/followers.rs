//! Two watchers of one node: one asks for protobuf, the other for JSON.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::future::{Either, join, select};
use portolan_model::Event;
use portolan_model::object::Kind;
use portolan_watch::{ClientSettings, Counts, WatchEvent, Watcher};

use crate::common::{NODE, PATIENCE};
use crate::site::Objects;

const KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

/// What one watcher has reported.
#[derive(Default)]
struct Log {
    /// The objects that the server has, by kind and name.
    objects: BTreeMap<(Kind, String), Event>,
    /// The objects of a list that is not complete.
    listed: HashMap<Kind, BTreeSet<String>>,
    changes: usize,
}

impl Log {
    fn take(&mut self, event: Event) {
        match &event {
            Event::Service(object) => self.set(Kind::Service, object.key.to_string(), event.clone()),
            Event::EndpointSlice(object) => {
                self.set(Kind::EndpointSlice, object.key.to_string(), event.clone())
            }
            Event::Node(object) => self.set(Kind::Node, object.key.to_string(), event.clone()),
            Event::ServiceCidr(object) => self.set(Kind::ServiceCidr, object.key.to_string(), event.clone()),
            Event::ServiceDeleted(key) => self.remove(Kind::Service, &key.to_string()),
            Event::EndpointSliceDeleted(key) => self.remove(Kind::EndpointSlice, &key.to_string()),
            Event::NodeDeleted(key) => self.remove(Kind::Node, &key.to_string()),
            Event::ServiceCidrDeleted(key) => self.remove(Kind::ServiceCidr, &key.to_string()),
            Event::ListStart(kind) => drop(self.listed.insert(*kind, BTreeSet::new())),
            Event::ListEnd(kind) => {
                let listed = self.listed.remove(kind).unwrap();
                self.objects.retain(|(of, name), _| of != kind || listed.contains(name));
            }
            Event::ServiceCidrsUnavailable => panic!("the server has no ServiceCIDRs"),
        }
    }

    fn set(&mut self, kind: Kind, name: String, event: Event) {
        if let Some(listed) = self.listed.get_mut(&kind) {
            listed.insert(name.clone());
        }
        self.changes += 1;
        self.objects.insert((kind, name), event);
    }

    fn remove(&mut self, kind: Kind, name: &str) {
        self.changes += 1;
        self.objects.remove(&(kind, name.to_owned()));
    }

    /// Returns true if an object of each kind has the mark.
    fn has(&self, mark: &str) -> bool {
        let has = |kind: &Kind| {
            let mut of_kind = self.objects.iter().filter(|((of, _), _)| of == kind);
            of_kind.any(|((_, name), event)| name.contains(mark) || format!("{event:?}").contains(mark))
        };
        self.listed.is_empty() && KINDS.iter().all(has)
    }
}

pub(crate) struct Followers {
    /// With protobuf, and with JSON.
    logs: [RefCell<Log>; 2],
    counts: [Arc<Counts>; 2],
    marks: Cell<u8>,
}

/// Runs two watchers while `work` runs.
pub(crate) async fn followed(kubeconfig: &Path, work: impl AsyncFnOnce(&Followers)) {
    let settings = ClientSettings { kubeconfig: Some(kubeconfig.to_owned()), ..ClientSettings::default() };
    let mut watchers = Vec::new();
    for is_in_protobuf in [true, false] {
        let client = portolan_watch::connect(&settings).await.unwrap();
        watchers.push(Watcher::new(client, NODE).in_protobuf(is_in_protobuf));
    }
    let [protobuf, json]: [Watcher; 2] = watchers.try_into().ok().unwrap();
    let counts = [protobuf.counts(), json.counts()];
    let followers = Followers { logs: Default::default(), counts, marks: Cell::new(0) };
    let sink = |index: usize| {
        let log = &followers.logs[index];
        move |event: WatchEvent| {
            if let WatchEvent::Objects(events) = event {
                events.into_iter().for_each(|event| log.borrow_mut().take(event));
            }
        }
    };
    let both = join(protobuf.run(sink(0)), json.run(sink(1)));
    if let Either::Left((never, _)) = select(pin!(both), pin!(work(&followers))).await {
        match never.0 {}
    }
}

impl Followers {
    /// Waits until both have seen what was written until now. Asserts that it means the same to both.
    pub(crate) async fn agree_after_a_mark(&self, objects: &Objects) {
        let number = self.marks.get() + 1;
        self.marks.set(number);
        let mark = format!("mark-{number}-");
        objects.mark(&format!("{mark}x"), number).await;
        let deadline = Instant::now() + PATIENCE;
        while !self.logs.iter().all(|log| log.borrow().has(&mark)) {
            assert!(Instant::now() < deadline, "a watcher has not seen {mark}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let [protobuf, json] = self.logs.each_ref().map(RefCell::borrow);
        for (name, event) in &protobuf.objects {
            assert_eq!(Some(event), json.objects.get(name), "{name:?}");
        }
        assert_eq!(protobuf.objects.len(), json.objects.len());
        eprintln!(
            "{} objects mean the same, after {} and {} changes",
            json.objects.len(),
            protobuf.changes,
            json.changes
        );
    }

    /// Returns how many objects could not be read.
    pub(crate) fn faults(&self) -> u64 {
        let of = |counts: &Arc<Counts>| {
            KINDS.map(|kind| counts.of(kind).faults.load(Ordering::Relaxed)).iter().sum::<u64>()
        };
        self.counts.iter().map(of).sum()
    }
}
