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
    /// The objects of a list that is not complete.
    listed: HashMap<Kind, BTreeSet<String>>,
    /// What each object has been, by kind and name, one after the other. `None` is its deletion.
    history: BTreeMap<(Kind, String), Vec<Option<Event>>>,
}

impl Log {
    fn take(&mut self, event: &Event) {
        let (kind, key, is_there) = match event {
            Event::Service(object) => (Kind::Service, &object.key, true),
            Event::EndpointSlice(object) => (Kind::EndpointSlice, &object.key, true),
            Event::Node(object) => (Kind::Node, &object.key, true),
            Event::ServiceCidr(object) => (Kind::ServiceCidr, &object.key, true),
            Event::ServiceDeleted(key) => (Kind::Service, key, false),
            Event::EndpointSliceDeleted(key) => (Kind::EndpointSlice, key, false),
            Event::NodeDeleted(key) => (Kind::Node, key, false),
            Event::ServiceCidrDeleted(key) => (Kind::ServiceCidr, key, false),
            Event::ListStart(kind) => return drop(self.listed.insert(*kind, BTreeSet::new())),
            Event::ListEnd(kind) => {
                let listed = self.listed.remove(kind).unwrap();
                let gone = self.names(*kind).into_iter().filter(|name| !listed.contains(name));
                return gone.for_each(|name| self.set((*kind, name), None));
            }
            Event::ServiceCidrsUnavailable => panic!("the server has no ServiceCIDRs"),
        };
        let name = key.to_string();
        if let Some(listed) = self.listed.get_mut(&kind) {
            listed.insert(name.clone());
        }
        self.set((kind, name), is_there.then(|| event.clone()));
    }

    fn set(&mut self, place: (Kind, String), object: Option<Event>) {
        let history = self.history.entry(place).or_default();
        // A second list has what is known already.
        if history.last() != Some(&object) {
            history.push(object);
        }
    }

    /// Returns the objects of a kind that the server has, with their names.
    fn objects(&self, kind: Kind) -> impl Iterator<Item = (&String, &Event)> {
        let of_kind = self.history.iter().filter(move |((of, _), _)| *of == kind);
        of_kind.filter_map(|((_, name), history)| Some((name, history.last()?.as_ref()?)))
    }

    fn names(&self, kind: Kind) -> BTreeSet<String> {
        self.objects(kind).map(|(name, _)| name.clone()).collect()
    }

    fn changes(&self) -> usize {
        self.history.values().map(Vec::len).sum()
    }

    /// Returns true if an object of each kind has the mark.
    fn has(&self, mark: &str) -> bool {
        let has = |kind: &Kind| {
            let has =
                |(name, event): (&String, &Event)| name.contains(mark) || format!("{event:?}").contains(mark);
            self.objects(*kind).any(has)
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
                for event in &events {
                    log.borrow_mut().take(event);
                }
            }
        }
    };
    let both = join(protobuf.run(sink(0)), json.run(sink(1)));
    if let Either::Left((never, _)) = select(pin!(both), Box::pin(work(&followers))).await {
        match never.0 {}
    }
}

impl Followers {
    /// Waits until both have seen what was written until now. Asserts that each change meant the same to both, and that they know
    /// the objects that the server has.
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
        let there = [objects.names(KINDS[0]).await, objects.names(KINDS[1]).await];
        let [protobuf, json] = self.logs.each_ref().map(RefCell::borrow);
        for (kind, there) in KINDS.into_iter().zip(there) {
            assert_eq!(json.names(kind), there);
        }
        for (place, history) in &protobuf.history {
            assert_eq!(Some(history), json.history.get(place), "{place:?}");
        }
        assert_eq!(protobuf.history.len(), json.history.len());
        eprintln!("{} changes of {} objects", json.changes(), json.history.len());
    }

    /// Returns how many objects could not be read.
    pub(crate) fn faults(&self) -> u64 {
        let of = |counts: &Arc<Counts>| {
            KINDS.map(|kind| counts.of(kind).faults.load(Ordering::Relaxed)).iter().sum::<u64>()
        };
        self.counts.iter().map(of).sum()
    }
}
