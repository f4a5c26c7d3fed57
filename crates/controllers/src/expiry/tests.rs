use portolan_api::{ApiConfig, WriteOptions, metadata::now_micro};
use portolan_schema::json::{Object, Value, json};

use super::*;

const TTL: Duration = Duration::from_secs(3600);

fn event(name: &str, fields: &Value) -> Object {
    let mut event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name}});
    for (key, value) in fields.as_object().unwrap() {
        event[key] = value.clone();
    }
    event.as_object().unwrap().clone()
}

async fn create(api: &Api, name: &str, fields: &Value) {
    api.create(Resource::Event, "default", event(name, fields), WriteOptions::default()).await.unwrap();
}

fn has(api: &Api, name: &str) -> bool {
    api.store().get(Resource::Event, &format!("default/{name}")).is_some()
}

#[tokio::test(start_paused = true)]
async fn events_go_an_hour_after_the_last_write() {
    let api = Arc::new(Api::new(&ApiConfig { validate: false, ..ApiConfig::default() }));
    create(&api, "a", &json!({})).await;
    create(&api, "b", &json!({})).await;
    let mut expiry = Expiry::new(&api, TTL);
    expiry.observe();
    tokio::time::advance(TTL / 2).await;
    let patch = json!({"note": "again"}).as_object().unwrap().clone();
    let target = portolan_api::Target { resource: Resource::Event, namespace: "default", name: "b" };
    api.merge_patch(target, portolan_api::Part::Main, patch, WriteOptions::default()).await.unwrap();
    expiry.observe();
    tokio::time::advance(TTL / 2).await;
    expiry.expire().await;
    assert_eq!((has(&api, "a"), has(&api, "b")), (false, true));
    expiry.observe();
    tokio::time::advance(TTL / 2).await;
    expiry.expire().await;
    assert!(!has(&api, "b"));
    expiry.observe();
    assert_eq!((expiry.due.len(), expiry.times.len()), (0, 0), "nothing is left behind");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_changed_meanwhile_stays() {
    let api = Arc::new(Api::new(&ApiConfig { validate: false, ..ApiConfig::default() }));
    create(&api, "a", &json!({})).await;
    let mut expiry = Expiry::new(&api, TTL);
    expiry.observe();
    let patch = json!({"note": "again"}).as_object().unwrap().clone();
    let target = portolan_api::Target { resource: Resource::Event, namespace: "default", name: "a" };
    api.merge_patch(target, portolan_api::Part::Main, patch, WriteOptions::default()).await.unwrap();
    tokio::time::advance(TTL).await;
    expiry.expire().await;
    assert!(has(&api, "a"));
}

#[test]
fn ages_are_those_of_the_last_sighting() {
    let stored = |fields: &Value| {
        let mut object = event("a", fields);
        object.insert("metadata".to_owned(), json!({"creationTimestamp": "2001-01-01T00:00:00Z"}));
        age(&portolan_store::Draft::new(Resource::Event, &object).at(1))
    };
    let hours = |age: Duration| age.as_secs() / 3600;
    assert!(hours(stored(&json!({}))) > 20 * 365 * 24);
    assert_eq!(hours(stored(&json!({"eventTime": now_micro()}))), 0);
    assert_eq!(
        hours(stored(
            &json!({"eventTime": "2001-01-01T00:00:00.000000Z", "series": {"lastObservedTime": now_micro()}})
        )),
        0
    );
    assert_eq!(hours(stored(&json!({"eventTime": "2999-01-01T00:00:00.000000Z"}))), 0);
}
