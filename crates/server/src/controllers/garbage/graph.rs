//! Who says to be owned by whom: an index of the objects with owner references, by the uid of the owner.
//!
//! Pure, and kept from changes: what an update costs depends on the owners of that object alone.

use std::collections::{BTreeSet, HashMap};

use super::super::object::{ObjectRef, OwnerReference};
use crate::resource::Resource;

/// See the module. Objects without owners take no room.
#[derive(Debug, Default)]
pub(super) struct Graph {
    dependents: HashMap<Box<str>, BTreeSet<ObjectRef>>,
    owners: HashMap<ObjectRef, Vec<Owner>>,
}

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: Box<str>,
    /// What it names; `None` if no such kind is served here.
    pub(super) resource: Option<Resource>,
    pub(super) name: Box<str>,
    /// Whether the owner, deleted in the foreground, waits for the object.
    pub(super) blocks: bool,
}

impl From<OwnerReference> for Owner {
    fn from(reference: OwnerReference) -> Self {
        Self {
            resource: Resource::by_kind(&reference.api_version, &reference.kind),
            uid: reference.uid.into(),
            name: reference.name.into(),
            blocks: reference.block_owner_deletion,
        }
    }
}

impl Owner {
    /// Where the owner must be: in the namespace of what it owns, or in none. `None` if no such kind is served, or if
    /// an object outside of namespaces names an owner inside of one.
    pub(super) fn place(&self, dependent: &ObjectRef) -> Option<ObjectRef> {
        let resource = self.resource?;
        if !resource.info().namespaced {
            return Some(ObjectRef::new(resource, &self.name));
        }
        let namespace = dependent.namespace();
        (!namespace.is_empty()).then(|| ObjectRef::new(resource, &format!("{namespace}/{}", self.name)))
    }
}

impl Graph {
    /// The object has these owners now; returns those it had.
    pub(super) fn set(&mut self, object: &ObjectRef, owners: Vec<Owner>) -> Vec<Owner> {
        let old = if owners.is_empty() {
            self.owners.remove(object).unwrap_or_default()
        } else {
            for owner in &owners {
                self.dependents.entry(owner.uid.clone()).or_default().insert(object.clone());
            }
            self.owners.insert(object.clone(), owners).unwrap_or_default()
        };
        for gone in &old {
            let is_kept = self.owners.get(object).is_some_and(|new| new.iter().any(|it| it.uid == gone.uid));
            if !is_kept {
                self.part(&gone.uid, object);
            }
        }
        old
    }

    /// The owners that an object names.
    pub(super) fn owners(&self, object: &ObjectRef) -> &[Owner] {
        self.owners.get(object).map_or(&[], Vec::as_slice)
    }

    /// The objects that name this owner.
    pub(super) fn dependents(&self, uid: &str) -> impl Iterator<Item = &ObjectRef> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Those of them that the owner waits for when it is deleted in the foreground.
    pub(super) fn blocking(&self, uid: &str) -> impl Iterator<Item = &ObjectRef> {
        self.dependents(uid)
            .filter(move |it| self.owners(it).iter().any(|owner| &*owner.uid == uid && owner.blocks))
    }

    /// Every object with owners.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        self.owners.keys()
    }

    fn part(&mut self, owner: &str, object: &ObjectRef) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(object);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str, blocks: bool) -> Owner {
        Owner { uid: uid.into(), resource: Some(Resource::Service), name: "s".into(), blocks }
    }

    fn slice(name: &str) -> ObjectRef {
        ObjectRef::new(Resource::EndpointSlice, &format!("default/{name}"))
    }

    #[test]
    fn the_index_follows_what_objects_say() {
        let mut graph = Graph::default();
        let (a, b) = (slice("a"), slice("b"));
        graph.set(&a, vec![owner("1", true), owner("2", false)]);
        graph.set(&b, vec![owner("1", false)]);
        assert_eq!(graph.dependents("1").collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(graph.blocking("1").collect::<Vec<_>>(), [&a]);
        let old = graph.set(&a, vec![owner("2", true)]);
        assert_eq!(old, [owner("1", true), owner("2", false)]);
        assert_eq!(graph.dependents("1").collect::<Vec<_>>(), [&b]);
        assert_eq!(graph.blocking("2").collect::<Vec<_>>(), [&a]);
        graph.set(&a, Vec::new());
        graph.set(&b, Vec::new());
        assert_eq!((graph.dependents.len(), graph.owners.len()), (0, 0), "nothing is left behind");
    }

    #[test]
    fn owners_are_in_the_same_namespace_or_in_none() {
        let node = ObjectRef::new(Resource::Node, "n");
        let on_node = Owner { resource: Some(Resource::Node), ..owner("1", false) };
        let unknown = Owner { resource: None, ..owner("1", false) };
        assert_eq!(
            owner("1", false).place(&slice("a")),
            Some(ObjectRef::new(Resource::Service, "default/s"))
        );
        assert_eq!(owner("1", false).place(&node), None);
        assert_eq!(on_node.place(&slice("a")), Some(ObjectRef::new(Resource::Node, "s")));
        assert_eq!(unknown.place(&slice("a")), None);
    }
}
