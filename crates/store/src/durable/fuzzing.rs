//! The file of a store in memory, for fuzz targets.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, PoisonError},
};

use portolan_schema::{Resource, json::json};

use super::{
    file::{self, Forget, Numbers},
    offline::{self, Memory},
    pages,
};
use crate::{Change, Draft, OpenError, StoredObject, transaction::Write};

/// Resource, revision and JSON of an object.
pub type Object = (Resource, u64, Vec<u8>);

/// What a file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The last revision.
    pub revision: u64,
    /// The objects in the order of their revisions.
    pub objects: Vec<Object>,
}

/// Returns a store's file after each of some transactions, as a server that is killed leaves it, and last as a server
/// closes it.
///
/// # Panics
/// If the file cannot be written in memory.
#[expect(clippy::unwrap_used, reason = "a fuzz target ends if it cannot be prepared")]
pub fn files() -> Vec<Vec<u8>> {
    const TRANSACTIONS: u64 = 24;
    let memory = Memory::default();
    let image = || memory.0.read().unwrap_or_else(PoisonError::into_inner).clone();
    let database = file::database(memory.clone()).unwrap();
    file::write_first(&database, 1).unwrap();
    let mut there = BTreeMap::new();
    let mut files = vec![image()];
    for number in 0..TRANSACTIONS {
        let revision = number + 2;
        let resource = if number % 3 == 0 { Resource::Namespace } else { Resource::Node };
        // Eight objects in turn. The size of a Node differs. A Namespace is deleted, and created again.
        let name = format!("object-{}", number % 8);
        let filler = "x".repeat(usize::try_from(number * 97 % 1500).unwrap());
        let value = json!({ "metadata": { "name": name, "annotations": { "filler": filler } } });
        let old: Option<Arc<StoredObject>> = there.remove(&(resource, name.clone()));
        let new = (resource == Resource::Node || old.is_none())
            .then(|| Arc::new(Draft::new(resource, value.as_object().unwrap()).at(revision)));
        there.extend(new.clone().map(|new| ((resource, name), new)));
        let write = Write { resource, change: Change { revision, old, new } };
        let numbers = Numbers { revision, objects: there.len() as u64 };
        file::write(&database, &[write], numbers, (&Forget::default(), 0)).unwrap();
        files.push(image());
    }
    database.close().unwrap();
    files.push(image());
    files
}

/// Reads a file as `check` does. Also returns the file as the database closed it.
///
/// # Errors
/// The file is damaged.
pub fn load(image: Vec<u8>) -> Result<(Content, Vec<u8>), OpenError> {
    let (tables, image) = offline::load(Path::new("file"), image)?;
    Ok((Content { revision: tables.revision(), objects: described(&offline::objects(&tables)) }, image))
}

/// Returns the objects that `rescue` reads of a damaged file.
pub fn rescue(image: &[u8]) -> Vec<Object> {
    described(&pages::read(image).objects)
}

fn described(objects: &[(Resource, Arc<StoredObject>)]) -> Vec<Object> {
    let described = |(resource, object): &(Resource, Arc<StoredObject>)| {
        (*resource, object.revision(), object.body().to_vec())
    };
    let mut objects: Vec<Object> = objects.iter().map(described).collect();
    objects.sort_unstable_by_key(|(_, revision, _)| *revision);
    objects
}
