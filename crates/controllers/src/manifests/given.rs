//! Objects that the program itself gives, such as those of its command line. They are kept in sync like those of a folder:
//! each has the annotation of manifests, an object that is no longer given is pruned, and a deleted one is created again.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use portolan_api::Api;
use portolan_schema::{Resource, json::Value};
use thiserror::Error;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{
    Folder, ObjectId, Reserved,
    contents::{Contents, Found},
    marker, object_id,
    retry::Retry,
};
use crate::Feed;

/// Objects that the program gives.
#[derive(Debug, Clone)]
pub struct Given {
    /// Where they come from, such as `the command line of host1`. Stands in the annotation in place of a folder, so a later
    /// start with the same text finds them. Servers that share a store need different texts. Has no slash.
    pub source: String,
    /// What other sources begin with whose objects this one takes over, such as `the command line of `: the name of the host may
    /// have changed. `None` if other servers use the store.
    pub takes_over: Option<String>,
    /// The objects, each with a name.
    pub objects: Vec<Value>,
}

/// The reason why given objects cannot be kept in sync.
#[derive(Debug, Error)]
pub enum GivenError {
    /// The store has the object, and it does not come from this source.
    #[error(
        "{object} of {source_name} exists already, and was made by other means; give another name, or start once without this \
         argument, delete the object, and start with it again"
    )]
    Taken {
        /// The object.
        object: String,
        /// The source.
        source_name: String,
    },
    /// The store has the object, and it comes from the same source on another host, or under a former name of this one.
    #[error(
        "{object} of {source_name} exists already, and is of {other}; if another host serves it, leave this argument out here; if \
         this host had that name before, use it again, or start once without this argument, delete the object, and start with it \
         again"
    )]
    OfOther {
        /// The object.
        object: String,
        /// The source.
        source_name: String,
        /// The other source.
        other: String,
    },
    /// Objects were refused.
    #[error("{0}")]
    Refused(String),
    /// Objects were refused, and an earlier start has stored some of them with other fields.
    #[error("{0}; if a stored object cannot change so, start once without this argument, then again with it")]
    RefusedChange(String),
}

/// Keeps the stored objects in sync with given ones.
#[derive(Debug)]
pub struct Keeper {
    folder: Folder,
    files: HashMap<PathBuf, Vec<u8>>,
    feed: Feed,
    retry: Retry,
}

impl Keeper {
    /// Applies the objects, and prunes those of an earlier start that are not among them.
    ///
    /// # Errors
    /// An object belongs to someone else, and nothing was changed; or an object was refused.
    pub async fn start(api: Arc<Api>, given: &Given) -> Result<Self, GivenError> {
        let feed = Feed::new(api.store(), Resource::kept());
        let path = given.source.as_str().into();
        let folder = Folder::taking_over(api, path, given.takes_over.clone());
        let mut files = HashMap::new();
        for object in &given.objects {
            let id = object_id(object).map_err(|refusal| GivenError::Refused(refusal.to_string()))?;
            folder.check_owner(&id, &given.source)?;
            let text = serde_json::to_vec(object).map_err(|error| GivenError::Refused(error.to_string()))?;
            files.insert(folder.path.join(file_name(&id)), text);
        }
        let stored: Vec<PathBuf> = folder.files.keys().cloned().collect();
        let mut keeper = Self { folder, files, feed, retry: Retry::default() };
        let synced = keeper.folder.sync(keeper.contents()).await;
        keeper.retry.after(synced, false, Instant::now());
        let refused = || keeper.folder.files.iter().filter(|(_, file)| !file.complaints.is_empty());
        let complaints = refused().flat_map(|(_, file)| &file.complaints);
        // Each object is a file with one line.
        let reasons =
            complaints.map(|it| it.split_once(", line 1: ").map_or(it.as_str(), |(_, reason)| reason));
        let is_change = refused().any(|(path, _)| stored.contains(path));
        match reasons.collect::<Vec<_>>().as_slice() {
            [] => Ok(keeper),
            reasons if is_change => Err(GivenError::RefusedChange(reasons.join("; "))),
            reasons => Err(GivenError::Refused(reasons.join("; "))),
        }
    }

    /// Returns the objects, so that no folder declares them, too.
    pub fn reserved(&self) -> Reserved {
        let place = self.folder.path.clone();
        let objects = self.folder.files.values().flat_map(|file| &file.objects);
        Reserved(objects.map(|id| (id.clone(), place.clone())).collect())
    }

    /// Keeps the objects in sync until the server stops.
    pub async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        tokio::select! {
            () = self.follow() => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    }

    async fn follow(&mut self) {
        loop {
            // Absolute: changes of the store do not defer it.
            let due = self.retry.at().into_iter().chain(self.folder.due()).min();
            tokio::select! {
                () = self.feed.changed() => {
                    let seen = self.feed.take();
                    if !self.folder.observe(seen, Instant::now()) {
                        continue;
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            let is_retry = self.retry.is_due(Instant::now());
            self.folder.release(Instant::now());
            let result = self.folder.sync(self.contents()).await;
            self.retry.after(result, is_retry, Instant::now());
        }
    }

    fn contents(&self) -> Contents {
        self.files.iter().map(|(path, text)| (path.clone(), Found::Content(text.clone()))).collect()
    }
}

impl Folder {
    /// Returns an error if the store has the object and it does not come from this folder.
    fn check_owner(&self, id: &ObjectId, source_name: &str) -> Result<(), GivenError> {
        let Some(stored) = self.api.store().get(id.resource, &id.target().key()) else { return Ok(()) };
        if self.file_of(id.resource, &stored).is_some() {
            return Ok(());
        }
        let (object, source_name) = (id.to_string(), source_name.to_owned());
        // Folders of manifests have absolute paths.
        let source = marker::file_of(id.resource, &stored).filter(|file| file.is_relative());
        Err(match source.as_deref().and_then(Path::parent) {
            Some(other) => GivenError::OfOther { object, source_name, other: other.display().to_string() },
            None => GivenError::Taken { object, source_name },
        })
    }
}

/// Returns a name that no other object has. Names of objects have no underscore.
fn file_name(id: &ObjectId) -> String {
    format!("{}_{}_{}.json", id.resource.info().kind, id.namespace, id.name)
}

#[cfg(test)]
mod tests {
    use portolan_api::{ApiConfig, Preconditions, Target, WriteOptions};
    use portolan_schema::json::json;
    use portolan_store::Scope;

    use super::*;

    const SOURCE: &str = "the command line of host1";

    fn api() -> Arc<Api> {
        Arc::new(Api::new(&ApiConfig::default()))
    }

    fn service(name: &str, port: u16) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": port}]}})
    }

    async fn start(api: &Arc<Api>, objects: Vec<Value>) -> Result<Keeper, GivenError> {
        start_as(api, SOURCE, objects).await
    }

    async fn start_as(api: &Arc<Api>, source: &str, objects: Vec<Value>) -> Result<Keeper, GivenError> {
        let given = Given { source: source.to_owned(), takes_over: None, objects };
        Keeper::start(Arc::clone(api), &given).await
    }

    fn get(api: &Api, name: &str) -> Value {
        Value::Object(api.store().get(Resource::Service, &format!("default/{name}")).unwrap().decode())
    }

    fn names(api: &Api) -> Vec<String> {
        let snapshot = api.store().snapshot(Resource::Service, &Scope::default(), None).unwrap();
        snapshot.objects.iter().map(|object| object.name().to_owned()).collect()
    }

    #[tokio::test]
    async fn a_later_start_prunes_what_is_not_given() {
        let api = api();
        drop(start(&api, vec![service("a", 80), service("b", 80)]).await.unwrap());
        assert_eq!(names(&api), ["a", "b"]);
        let address = |name: &str| get(&api, name).pointer("/spec/clusterIP").cloned();
        let before = address("b");
        drop(start(&api, vec![service("b", 81)]).await.unwrap());
        assert_eq!((names(&api), address("b")), (vec!["b".to_owned()], before));
        drop(start(&api, Vec::new()).await.unwrap());
        assert!(names(&api).is_empty());
    }

    #[tokio::test]
    async fn two_hosts_keep_their_own_objects_in_one_store() {
        let api = api();
        let other = "the command line of host2";
        drop(start(&api, vec![service("a", 80)]).await.unwrap());
        drop(start_as(&api, other, vec![service("b", 80)]).await.unwrap());
        drop(start(&api, vec![service("a", 80)]).await.unwrap());
        assert_eq!(names(&api), ["a", "b"]);
        let error = start_as(&api, other, vec![service("a", 80)]).await.unwrap_err().to_string();
        assert!(
            error.starts_with(
                "Service default/a of the command line of host2 exists already, and is of the command line of host1; "
            ),
            "{error}"
        );
        assert!(error.contains("if this host had that name before, use it again"), "{error}");
        assert_eq!(names(&api), ["a", "b"], "a refused start changes nothing");
        drop(start_as(&api, other, Vec::new()).await.unwrap());
        assert_eq!(names(&api), ["a"]);
    }

    #[tokio::test]
    async fn a_store_of_one_host_keeps_its_objects_under_another_name() {
        let api = api();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("d.json"), serde_json::to_vec(&service("d", 80)).unwrap()).unwrap();
        drop(super::super::Follower::start(Arc::clone(&api), folder.path().to_owned()).await.unwrap());
        api.apply(service("c", 80)).await.unwrap();
        drop(start(&api, vec![service("a", 80), service("b", 80)]).await.unwrap());
        let renamed = |objects| Given {
            source: "the command line of host2".to_owned(),
            takes_over: Some("the command line of ".to_owned()),
            objects,
        };
        let start_renamed = async |objects| Keeper::start(Arc::clone(&api), &renamed(objects)).await;
        // The address stays, and what is not given goes. Objects of clients and manifests are of others.
        let address = |name: &str| get(&api, name).pointer("/spec/clusterIP").cloned();
        let before = address("b");
        drop(start_renamed(vec![service("b", 81)]).await.unwrap());
        assert_eq!((names(&api), address("b")), (["b", "c", "d"].map(str::to_owned).to_vec(), before));
        let marker = get(&api, "b").pointer("/metadata/annotations").unwrap().to_string();
        assert!(marker.contains(" in the command line of host2/"), "{marker}");
        for name in ["c", "d"] {
            let error = start_renamed(vec![service(name, 80)]).await.unwrap_err();
            assert!(matches!(error, GivenError::Taken { .. }), "{error}");
        }
        let other_family = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"},
            "spec": {"ports": [{"port": 80}], "ipFamilies": ["IPv6"]}});
        let error = start_renamed(vec![other_family]).await.unwrap_err();
        assert!(matches!(error, GivenError::RefusedChange(_)), "{error}");
    }

    #[tokio::test]
    async fn a_refused_change_names_the_mend() {
        let api = api();
        drop(start(&api, vec![service("a", 80)]).await.unwrap());
        let mend = "start once without this argument, then again with it";
        let other_family = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
            "spec": {"ports": [{"port": 80}], "ipFamilies": ["IPv6"]}});
        let error = start(&api, vec![other_family]).await.unwrap_err().to_string();
        assert!(error.contains("spec.") && error.contains(mend), "{error}");
        let error = start(&api, vec![service("b", 0)]).await.unwrap_err().to_string();
        assert!(!error.contains(mend), "{error}");
    }

    #[tokio::test]
    async fn an_object_of_others_is_an_error() {
        let api = api();
        api.apply(service("a", 80)).await.unwrap();
        let revision = api.store().revision();
        let error = start(&api, vec![service("b", 1), service("a", 81)]).await.unwrap_err().to_string();
        assert!(
            error.starts_with("Service default/a of the command line of host1 exists already"),
            "{error}"
        );
        assert_eq!(api.store().revision(), revision, "nothing was written");
    }

    #[tokio::test]
    async fn a_refusal_names_the_object_and_the_field() {
        let error = start(&api(), vec![service("a", 0)]).await.unwrap_err().to_string();
        assert!(error.starts_with("Service \"a\" is invalid: [spec.ports[0].port"), "{error}");
    }

    #[tokio::test]
    async fn a_deleted_object_comes_back_and_folders_do_not_get_it() {
        let api = api();
        let keeper = start(&api, vec![service("a", 80)]).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.json"), serde_json::to_vec(&service("a", 82)).unwrap()).unwrap();
        let follower = super::super::Follower::start_beside(
            Arc::clone(&api),
            folder.path().to_owned(),
            keeper.reserved(),
        );
        drop(follower.await.unwrap());
        let port = || {
            let stored = api.store().get(Resource::Service, "default/a").map(|stored| stored.decode())?;
            Value::Object(stored).pointer("/spec/ports/0/port").and_then(Value::as_i64)
        };
        assert_eq!(port(), Some(80));
        let (_stop, stopping) = watch::channel(false);
        let running = tokio::spawn(keeper.run(stopping));
        let target = Target { resource: Resource::Service, namespace: "default", name: "a" };
        api.delete(target, &Preconditions::default(), WriteOptions::default()).await.unwrap();
        let mut changes = api.store().subscribe(Resource::Service);
        while port().is_none() {
            changes.changed().await.unwrap();
        }
        assert_eq!(port(), Some(80));
        running.abort();
    }
}
