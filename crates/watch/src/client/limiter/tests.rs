use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn bucket(qps: f32, burst: i32) -> Bucket {
    Bucket::new(qps, burst, Instant::now()).unwrap().unwrap()
}

#[test]
fn meaning_of_qps_and_burst() {
    let now = Instant::now();
    let size = |qps, burst| Bucket::new(qps, burst, now).map(|made| made.map(|made| (made.rate, made.burst)));
    assert_eq!(size(5.0, 10), Ok(Some((5.0, 10.0))));
    assert_eq!(size(-1.0, 0), Ok(None));
    assert_eq!(size(-1.0, -1), Ok(None));
    assert_eq!(size(0.0, 0), Ok(Some((5.0, 10.0))));
    assert_eq!(size(0.0, 3), Ok(Some((5.0, 3.0))));
    for (qps, burst) in [(5.0, 0), (0.5, -1), (0.0, -1), (f32::NAN, 1)] {
        assert!(size(qps, burst).is_err(), "{qps} {burst}");
    }
}

#[test]
fn a_burst_then_the_rate() {
    let mut bucket = bucket(5.0, 3);
    let start = bucket.at;
    let waits: Vec<u128> = (0..5).map(|_| bucket.take(start).as_millis()).collect();
    assert_eq!(waits, [0, 0, 0, 200, 400]);
    let waits: Vec<u128> = (0..4).map(|_| bucket.take(start + Duration::from_secs(60)).as_millis()).collect();
    assert_eq!(waits, [0, 0, 0, 200], "an idle minute fills no more than the burst");
}

#[test]
fn a_returned_token_serves_the_next_request() {
    let mut bucket = bucket(1.0, 1);
    let start = bucket.at;
    assert_eq!(bucket.take(start), Duration::ZERO);
    assert_eq!(bucket.take(start), Duration::from_secs(1));
    bucket.give_back();
    assert_eq!(bucket.take(start), Duration::from_secs(1));
}

proptest! {
    /// In any period no more requests are sent than the burst and what the rate allows.
    #[test]
    fn requests_never_exceed_burst_and_rate(
        qps in 0.1_f32..100.0,
        burst in 1_i32..20,
        gaps in proptest::collection::vec(0_u64..2_000, 1..100),
    ) {
        let mut bucket = bucket(qps, burst);
        let mut now = bucket.at;
        let mut sent = Vec::new();
        for gap in gaps {
            now += Duration::from_millis(gap);
            sent.push(now + bucket.take(now));
        }
        for (first, start) in sent.iter().enumerate() {
            for (last, end) in sent.iter().enumerate().skip(first) {
                let span = end.saturating_duration_since(*start).as_secs_f64();
                let allowed = f64::from(burst) + span * f64::from(qps) + 0.001;
                let count = u32::try_from(last - first + 1).unwrap();
                prop_assert!(f64::from(count) <= allowed, "{count} in {span} s");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_allowed_in_order_at_the_rate() {
    let limiter = Arc::new(Limiter::new(2.0, 1).unwrap());
    let start = time::Instant::now();
    let turns = (0..4).map(|_| {
        let limiter = Arc::clone(&limiter);
        async move {
            let waited = limiter.turn().await;
            (waited.as_millis(), start.elapsed().as_millis())
        }
    });
    let turns = futures::future::join_all(turns).await;
    assert_eq!(turns.iter().map(|turn| turn.0).collect::<Vec<_>>(), [0, 500, 1000, 1500]);
    // tokio's timer counts whole milliseconds, rounded up.
    assert!(turns.iter().all(|(waited, passed)| (*waited..=waited + 1).contains(passed)), "{turns:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_returns_its_token() {
    let limiter = Limiter::new(0.1, 1).unwrap();
    limiter.turn().await;
    for _ in 0..3 {
        let gave_up = time::timeout(Duration::from_secs(1), limiter.turn()).await;
        assert!(gave_up.is_err());
    }
    let wait = limiter.turn().await;
    assert!(
        (6_900..=7_000).contains(&wait.as_millis()),
        "ten seconds, of which three have gone by: {wait:?}"
    );
}
