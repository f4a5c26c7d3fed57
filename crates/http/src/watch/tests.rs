use http::HeaderMap;
use portolan_api::ApiConfig;
use portolan_schema::{Resource, json::json};

use super::*;
use crate::accept::Content;

/// Starts a watch of Services from a revision that is `beyond` the store's.
fn from_the_future(api: &Arc<Api>, beyond: u64, stopping: watch::Receiver<bool>) -> Answer {
    let revision = api.store().revision() + beyond;
    start(api, &format!("resourceVersion={revision}&allowWatchBookmarks=true"), stopping)
}

/// Starts a watch of Services.
fn start(api: &Arc<Api>, query: &str, stopping: watch::Receiver<bool>) -> Answer {
    let query = Query::parse(query).unwrap();
    let presenter = Presenter::new(&HeaderMap::new(), &query, Resource::Service, Content::Watch).unwrap();
    let collection = Collection { resource: Resource::Service, namespace: None, watch: false };
    answer(api, stopping, presenter, Arc::default(), &query, &collection, None).unwrap()
}

async fn next(answer: &mut Answer) -> Option<String> {
    let frame = answer.body_mut().frame().await?.unwrap().into_data().unwrap();
    Some(String::from_utf8(frame.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_never_comes_is_an_error_after_a_while() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let (_stop, stopping) = watch::channel(false);
    let (start, mut answer) = (Instant::now(), from_the_future(&api, 100, stopping));
    let event = next(&mut answer).await.unwrap();
    assert!(event.contains(r#""type":"ERROR""#) && event.contains("Expired"), "{event}");
    // The time is paused, and goes on only when everything waits.
    assert!(start.elapsed() >= FUTURE_WAIT);
    assert_eq!(next(&mut answer).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_the_store_passes_later_was_of_another_history() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let (_stop, stopping) = watch::channel(false);
    let mut answer = from_the_future(&api, 2, stopping);
    let waiting = tokio::spawn(async move { (next(&mut answer).await, answer) });
    // The watch begins before the revision is reached.
    tokio::task::yield_now().await;
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    for name in ["a", "b", "c"] {
        api.apply(node(name)).await.unwrap();
    }
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    api.apply(service).await.unwrap();
    let (event, mut answer) = waiting.await.unwrap();
    let event = event.unwrap();
    assert!(event.contains(r#""type":"ERROR""#) && event.contains("Expired"), "{event}");
    assert_eq!(next(&mut answer).await, None);
}

#[tokio::test(start_paused = true)]
async fn the_last_bookmark_is_sent_even_if_it_is_late() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    api.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})).await.unwrap();
    let (_stop, stopping) = watch::channel(false);
    let revision = api.store().revision();
    let query = format!("resourceVersion={revision}&allowWatchBookmarks=true&timeoutSeconds=3");
    let mut answer = start(&api, &query, stopping);
    // The watch should have ended long ago when its task runs.
    tokio::time::advance(LAST_BOOKMARK * 10).await;
    let event = next(&mut answer).await.unwrap();
    assert!(event.contains(r#""type":"BOOKMARK""#), "{event}");
    assert_eq!(next(&mut answer).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_lasts_an_hour_at_most() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    for query in ["timeoutSeconds=86400", "timeoutSeconds=3600", "timeoutSeconds=0", ""] {
        let (_stop, stopping) = watch::channel(false);
        let revision = api.store().revision();
        let begin = Instant::now();
        let mut answer = start(&api, &format!("resourceVersion={revision}&{query}"), stopping);
        assert_eq!(next(&mut answer).await, None);
        let hours = begin.elapsed().as_secs_f64() / 3600.0;
        assert!((0.5..1.01).contains(&hours), "{query}: {hours}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_far_behind_gets_all_changes_in_chunks_of_limited_size() {
    const TEXT: usize = 10_000;
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let before = api.store().revision();
    for round in 0..3 * BATCH {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "annotations": {"round": round.to_string(), "text": "x".repeat(TEXT)}},
            "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
        api.apply(service).await.unwrap();
    }
    let (_stop, stopping) = watch::channel(false);
    let mut answer = start(&api, &format!("resourceVersion={before}&timeoutSeconds=1"), stopping);
    let mut rounds = Vec::new();
    while let Some(chunk) = next(&mut answer).await {
        assert!(chunk.len() < (64 << 10) + 2 * TEXT, "{} bytes", chunk.len());
        for line in chunk.lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            rounds.push(event["object"]["metadata"]["annotations"]["round"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(rounds, (0..3 * BATCH).map(|round| round.to_string()).collect::<Vec<_>>());
}
