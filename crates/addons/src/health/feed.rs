//! Passes the stored Services and EndpointSlices to the prober.

use std::sync::Arc;

use portolan_api::Api;
use portolan_controllers::{Feed, Seen};
use portolan_prober::{EndpointSlice, Input, Service};
use portolan_schema::Resource;
use portolan_store::{Change, StoredObject};
use tokio::sync::mpsc;

/// Passes all objects and then each change. Ends if the prober has ended.
pub(super) async fn follow(api: &Arc<Api>, inputs: mpsc::Sender<Input>) {
    let mut feed = Feed::new(api.store(), [Resource::Service, Resource::EndpointSlice]);
    loop {
        for seen in feed.take() {
            let Some(input) = input(seen) else { continue };
            if inputs.send(input).await.is_err() {
                return;
            }
        }
        feed.changed().await;
    }
}

fn input(seen: Seen) -> Option<Input> {
    Some(match seen {
        Seen::State(Resource::Service, objects) => Input::Services(decoded(&objects)),
        Seen::State(_, objects) => Input::EndpointSlices(decoded(&objects)),
        Seen::Change(resource, Change { old, new, .. }) => {
            let key = new.as_deref().or(old.as_deref())?.key().into();
            match resource {
                Resource::Service => match new.and_then(|new| decode::<Service>(&new)) {
                    Some(service) => Input::Service(Box::new(service)),
                    None => Input::ServiceDeleted(key),
                },
                _ => match new.and_then(|new| decode::<EndpointSlice>(&new)) {
                    Some(slice) => Input::EndpointSlice(Box::new(slice)),
                    None => Input::EndpointSliceDeleted(key),
                },
            }
        }
    })
}

fn decoded<T: serde::de::DeserializeOwned>(objects: &[Arc<StoredObject>]) -> Vec<T> {
    objects.iter().filter_map(|object| decode(object)).collect()
}

/// Decodes an object. One that cannot be decoded is left out, as if it did not exist: without validation, clients can
/// store objects of any shape.
fn decode<T: serde::de::DeserializeOwned>(object: &StoredObject) -> Option<T> {
    let decoded = serde_json::from_slice(object.body());
    decoded
        .inspect_err(|error| tracing::warn!(object = object.key(), %error, "not checked: not a valid object"))
        .ok()
}
