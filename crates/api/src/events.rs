//! The Events that the server itself reports.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
};

use crate::{
    api::{Api, Part, Target, WriteOptions},
    error::ApiError,
    metadata,
};

/// Most bytes of a note (`pkg/apis/events/validation`).
const MOST_NOTE: usize = 1024;

/// An Event for users. If it repeats, the stored Event counts it.
#[derive(Debug)]
pub struct Notice<'a> {
    /// Resource, namespace (empty for a cluster-scoped kind) and name of the object.
    pub regarding: (Resource, &'a str, &'a str),
    /// The object's uid, by which `kubectl describe` finds Events; `None` if it is that of the stored object.
    pub uid: Option<&'a str>,
    /// True for the type `Warning`, false for `Normal`.
    pub is_warning: bool,
    /// `reportingController`.
    pub controller: &'static str,
    /// `reason`.
    pub reason: &'static str,
    /// `action`.
    pub action: &'static str,
    /// `note`.
    pub note: String,
}

impl Notice<'_> {
    /// Writes the Event. A failure is only logged.
    pub async fn send(&self, api: &Api) {
        if let Err(error) = self.write(api).await {
            tracing::warn!(reason = self.reason, note = self.note, %error, "Event not written");
        }
    }

    async fn write(&self, api: &Api) -> Result<(), ApiError> {
        let (resource, namespace, name) = self.regarding;
        let event_namespace = if namespace.is_empty() { "default" } else { namespace };
        let uid = self.uid.map(str::to_owned).or_else(|| stored_uid(api, resource, namespace, name));
        let event = format!("{}.{:016x}", name.replace(':', "-"), self.fingerprint(uid.as_deref()));
        let target = Target { resource: Resource::Event, namespace: event_namespace, name: &event };
        let now = metadata::now_micro();
        if let Some(stored) = api.store().latest(Resource::Event, &target.key()) {
            let stored = Value::Object(stored.decode());
            let count = stored.pointer("/series/count").and_then(Value::as_u64).unwrap_or(1);
            let patch = json!({"series": {"count": count.saturating_add(1), "lastObservedTime": now}});
            let patch = patch.as_object().cloned().unwrap_or_default();
            return api.merge_patch(target, Part::Main, patch, WriteOptions::default()).await.map(drop);
        }
        let info = resource.info();
        let mut regarding = Object::new();
        regarding.insert("apiVersion".to_owned(), info.api_version.into());
        regarding.insert("kind".to_owned(), info.kind.into());
        regarding.insert("name".to_owned(), name.into());
        if !namespace.is_empty() {
            regarding.insert("namespace".to_owned(), namespace.into());
        }
        if let Some(uid) = uid {
            regarding.insert("uid".to_owned(), uid.into());
        }
        let event = json!({
            "metadata": {"name": event, "namespace": event_namespace},
            "eventTime": now, "type": if self.is_warning { "Warning" } else { "Normal" }, "reason": self.reason, "action": self.action,
            "note": shortened(&self.note), "regarding": regarding,
            "reportingController": self.controller, "reportingInstance": "portolan",
        });
        let event = event.as_object().cloned().unwrap_or_default();
        match api.create(Resource::Event, event_namespace, event, WriteOptions::default()).await {
            // Another server has written the same Event.
            Ok(_) | Err(ApiError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn fingerprint(&self, uid: Option<&str>) -> u64 {
        let mut hasher = DefaultHasher::new();
        let (resource, namespace, name) = self.regarding;
        (resource, namespace, name, uid, self.reason, &self.note).hash(&mut hasher);
        hasher.finish()
    }
}

fn stored_uid(api: &Api, resource: Resource, namespace: &str, name: &str) -> Option<String> {
    let stored = api.store().latest(resource, &Target { resource, namespace, name }.key())?.decode();
    json::text(json::object(&stored, "metadata")?, "uid").map(str::to_owned)
}

/// Returns as many whole characters of the note as an Event may have.
fn shortened(note: &str) -> &str {
    let ends = note.char_indices().map(|(start, character)| start.saturating_add(character.len_utf8()));
    let end = ends.take_while(|end| *end <= MOST_NOTE).last().unwrap_or(0);
    note.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;
    use crate::testing::{self, delete, get, list, service};

    #[test]
    fn an_event_has_the_uid_of_its_object() {
        let api = testing::api("10.0.0.0/24");
        let tell = || {
            let regarding = (Resource::Service, "default", "a");
            let (controller, reason, action, note) = ("c", "Reason", "Action", "note".to_owned());
            let notice = Notice { regarding, uid: None, is_warning: true, controller, reason, action, note };
            block_on(notice.send(&api));
        };
        let mut uids = Vec::new();
        for _ in 0..2 {
            api.blocking().apply(service("a", "10.0.0.7")).unwrap();
            tell();
            tell();
            uids.push(get(&api, Resource::Service, "default/a").unwrap()["metadata"]["uid"].clone());
            delete(&api, Resource::Service, "a");
        }
        let events = list(&api, Resource::Event);
        let mut told: Vec<_> = events.iter().map(|it| it["regarding"]["uid"].clone()).collect();
        told.sort_by_key(|uid| uids.iter().position(|it| it == uid));
        assert_eq!(told, uids, "{events:?}");
        assert!(events.iter().all(|it| it["series"]["count"] == 2), "{events:?}");
    }

    #[test]
    fn a_long_note_is_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"x".repeat(1025)).len(), 1024);
        assert_eq!(shortened(&("x".to_owned() + &"\u{e9}".repeat(512))).len(), 1023);
    }
}
