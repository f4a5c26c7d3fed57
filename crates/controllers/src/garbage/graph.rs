//! The graph of owner references: an index of the objects that have owners, by the uid of each owner.
//!
//! Pure, and updated by changes. The cost of an update depends only on the number of that object's owners.

use std::collections::{BTreeSet, HashMap};

use portolan_schema::Resource;

use super::super::object::{ObjectRef, OwnerReference};

/// The graph; see the module. Objects without owners have no entry.
#[derive(Debug, Default)]
pub(super) struct Graph {
    dependents: HashMap<Box<str>, BTreeSet<ObjectRef>>,
    owners: HashMap<ObjectRef, Vec<Owner>>,
}

/// One owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: Box<str>,
    /// The resource that the reference names; `None` if the kind is not stored here.
    pub(super) resource: Option<Resource>,
    pub(super) name: Box<str>,
    /// True if the owner, when deleted in the foreground, waits for the object.
    pub(super) blocks: bool,
}

impl From<OwnerReference> for Owner {
    fn from(reference: OwnerReference) -> Self {
        Self {
            resource: Resource::by_kind(&reference.api_version, &reference.kind).filter(|it| it.is_stored()),
            uid: reference.uid.into(),
            name: reference.name.into(),
            blocks: reference.block_owner_deletion,
        }
    }
}

impl Owner {
    /// Returns the reference to the owner: in the namespace of its dependent, or cluster-scoped. `None` if the kind
    /// is not stored here, or if a cluster-scoped object names a namespaced owner.
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
    /// Sets the owners of an object. Returns its former owners.
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

    /// Returns the owners that an object names.
    pub(super) fn owners(&self, object: &ObjectRef) -> &[Owner] {
        self.owners.get(object).map_or(&[], Vec::as_slice)
    }

    /// Returns the objects that name this owner.
    pub(super) fn dependents(&self, uid: &str) -> impl Iterator<Item = &ObjectRef> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Returns the dependents that the owner waits for when it is deleted in the foreground.
    pub(super) fn blocking(&self, uid: &str) -> impl Iterator<Item = &ObjectRef> {
        self.dependents(uid)
            .filter(move |it| self.owners(it).iter().any(|owner| &*owner.uid == uid && owner.blocks))
    }

    /// Returns all objects with owners.
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
    fn the_index_follows_the_owner_references() {
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
