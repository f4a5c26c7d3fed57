//! Another client that changes the conditions back.

use super::*;

/// Makes every endpoint of the slice `a` ready, as another controller would.
pub(super) fn overwrite(stored: &mut Stored) {
    let mut slice = stored.objects["a"].clone();
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["conditions"] = serde_json::json!({"ready": true, "serving": true});
    }
    slice["metadata"]["managedFields"] = serde_json::json!([
        {"manager": "other-controller", "fieldsV1": {"f:endpoints": {}}},
    ]);
    stored.put(slice);
}

/// Starts a prober of a Service whose first endpoint fails.
async fn start_failing(api: &Api) -> Running {
    let it = start(api, None, ProberOptions::default());
    it.endpoints.set("10.0.0.1:80", false);
    api.send(&service(&[("", "tcp"), ("-interval", "1s"), ("-fall", "1")]));
    api.put(slice("a", &["10.0.0.1", "10.0.0.2"]));
    seconds(5).await;
    assert_eq!(api.ready("a"), "1- 2+");
    it
}

fn reported(api: &Api) -> Vec<String> {
    let stored = api.0.lock().unwrap();
    let events = stored.events.iter().filter(|event| event.reason == "HealthCheckOverwritten");
    events.map(|event| event.note.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_changes_conditions_back_at_once_is_answered_less_and_less_often() {
    let api = Api::default();
    let it = start_failing(&api).await;
    let writes = api.writes();
    api.0.lock().unwrap().is_contested = true;
    overwrite(&mut api.0.lock().unwrap());
    seconds(5).await;
    assert!((3..=5).contains(&(api.writes() - writes)), "{}", api.writes() - writes);
    seconds(600).await;
    let fought = api.writes() - writes;
    assert!((20..=30).contains(&fought), "the intervals are bounded: {fought}");
    let notes = reported(&api);
    assert!(notes.len() == 1 && notes[0].contains("\"other-controller\""), "{notes:?}");

    // A changed result is written at once, with a new fight after it.
    let attempts = api.0.lock().unwrap().attempts.len();
    it.endpoints.set("10.0.0.2:80", false);
    seconds(2).await;
    let fails = |(address, at): &(SocketAddr, Instant)| {
        (address.to_string() == "10.0.0.2:80" && at.elapsed() < Duration::from_secs(2)).then_some(*at)
    };
    let failed = it.endpoints.0.lock().unwrap().probes.iter().find_map(fails).unwrap();
    let began: Vec<Instant> = api.0.lock().unwrap().attempts.split_off(attempts);
    assert!(began.contains(&failed), "{failed:?}: {began:?}");
    assert!(began.len() <= 5, "{began:?}");

    // The fight ends: the last state is the result's.
    api.0.lock().unwrap().is_contested = false;
    seconds(60).await;
    assert_eq!(api.ready("a"), "1- 2-");
    let writes = api.writes();
    seconds(600).await;
    assert_eq!((api.writes(), reported(&api).len()), (writes, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_changes_conditions_back_now_and_then_is_answered_at_once() {
    let api = Api::default();
    let _it = start_failing(&api).await;
    let writes = api.writes();
    for _ in 0..20 {
        overwrite(&mut api.0.lock().unwrap());
        sleep(Duration::from_millis(100)).await;
        assert_eq!(api.ready("a"), "1- 2+");
        seconds(10).await;
    }
    assert_eq!((api.writes() - writes, reported(&api).len()), (20, 1));
}
