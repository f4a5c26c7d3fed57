//! A file that an earlier version wrote can be read and written, whatever has changed since.
//!
//! `format-1.redb.gz` was written by [`a_file_is_written`] and is never written again. A new version of the layout gets a
//! file of its own beside it: `cargo test --package portolan-store --lib earlier -- --ignored` writes it.

use std::{
    io::{Read as _, Write as _},
    path::Path,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use super::*;

const FILE: &[u8] = include_bytes!("format-1.redb.gz");

/// The resources of the file. Each has the object `a`; Services have a history, too.
const RESOURCES: [Resource; 10] = [
    Resource::Namespace,
    Resource::Node,
    Resource::Service,
    Resource::Endpoints,
    Resource::EndpointSlice,
    Resource::ServiceCidr,
    Resource::IpAddress,
    Resource::NodePort,
    Resource::Event,
    Resource::Lease,
];

fn key(resource: Resource, name: &str) -> String {
    if resource.info().namespaced { format!("default/{name}") } else { name.to_owned() }
}

fn draft(resource: Resource, name: &str, content: &str) -> Draft {
    let mut object =
        json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"content": content}});
    if resource.info().namespaced {
        object["metadata"]["namespace"] = "default".into();
    }
    Draft::new(resource, object.as_object().unwrap())
}

fn write(store: &DurableStore, steps: Vec<Step>) -> u64 {
    futures::executor::block_on(store.commit(Transaction { steps })).unwrap().revision
}

fn put(resource: Resource, name: &str, content: &str, expected: Option<u64>) -> Step {
    Step::Put { resource, draft: draft(resource, name, content), expected }
}

fn remove(resource: Resource, name: &str, expected: u64) -> Step {
    Step::Remove { resource, key: key(resource, name).into(), expected }
}

/// Returns what was written into an object.
fn content(store: &DurableStore, resource: Resource, name: &str) -> Option<String> {
    let object = store.get(resource, &key(resource, name))?.decode();
    Some(object["spec"]["content"].as_str().unwrap().to_owned())
}

#[test]
#[ignore = "writes the file of a new layout"]
fn a_file_is_written() {
    let file = format!("src/durable/tests/format-{}.redb.gz", super::super::file::KNOWN_FORMAT);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    assert!(!file.exists(), "{} is never written again", file.display());
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    write(&store, RESOURCES.map(|resource| put(resource, "a", "first", None)).into());
    let first = store.get(Resource::Service, "default/a").unwrap().revision();
    let gone = write(&store, vec![put(Resource::Service, "gone", "first", None)]);
    write(&store, vec![put(Resource::Service, "a", "second", Some(first))]);
    write(&store, vec![remove(Resource::Service, "gone", gone)]);
    drop(store);
    let mut packed = GzEncoder::new(fs::File::create_new(file).unwrap(), Compression::best());
    packed.write_all(&fs::read(dir.path().join("objects.redb")).unwrap()).unwrap();
    packed.finish().unwrap();
}

#[test]
fn every_resource_and_the_history_are_there_and_can_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    GzDecoder::new(FILE).read_to_end(&mut file).unwrap();
    fs::write(dir.path().join("objects.redb"), file).unwrap();
    let store = open(&dir);
    for resource in RESOURCES {
        let wanted = if resource == Resource::Service { "second" } else { "first" };
        assert_eq!(content(&store, resource, "a").as_deref(), Some(wanted), "{resource:?}");
        let object = store.get(resource, &key(resource, "a")).unwrap();
        assert_eq!((object.name(), object.labels().get("app")), ("a", Some("web")), "{resource:?}");
        assert_eq!(store.count(resource), 1, "{resource:?}");
    }
    let begin = store.get(Resource::Namespace, "a").unwrap().revision();
    let changes = store.changes(Resource::Service, begin, 10).unwrap().changes;
    let named = changes.iter().map(|change| {
        let name = |object: &Option<Arc<StoredObject>>| object.as_ref().map(|it| it.name().to_owned());
        (name(&change.old), name(&change.new))
    });
    let (a, gone) = (Some("a".to_owned()), Some("gone".to_owned()));
    let history = [(None, a.clone()), (None, gone.clone()), (a.clone(), a), (gone, None)];
    assert_eq!(named.collect::<Vec<_>>(), history);

    let last = store.revision();
    let steps = RESOURCES.map(|resource| {
        let revision = store.get(resource, &key(resource, "a")).unwrap().revision();
        put(resource, "a", "third", Some(revision))
    });
    assert!(write(&store, steps.into()) > last);
    let node = store.get(Resource::Node, "a").unwrap().revision();
    write(&store, vec![remove(Resource::Node, "a", node), put(Resource::Node, "b", "new", None)]);
    let last = store.revision();
    drop(store);
    let store = open(&dir);
    assert_eq!(store.revision(), last);
    for resource in RESOURCES {
        let wanted = if resource == Resource::Node { None } else { Some("third") };
        assert_eq!(content(&store, resource, "a").as_deref(), wanted, "{resource:?}");
    }
    assert_eq!(content(&store, Resource::Node, "b").as_deref(), Some("new"));
    assert_eq!(store.changes(Resource::Service, begin, 10).unwrap().changes.len(), history.len() + 1);
}
