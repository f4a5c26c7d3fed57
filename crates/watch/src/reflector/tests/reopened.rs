//! How soon the next request follows after each kind of end.

use super::*;

/// Opens a watch of this reflector for `lasted`, then ends it. Returns what follows, and when.
fn ends_after(
    reflector: &mut Reflector,
    at: Instant,
    lasted: Duration,
    reason: &RestartReason,
) -> (Next, Instant) {
    reflector.opened(at);
    let end = at + lasted;
    (reflector.failed(reason, end, 1.0), end)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const AT_ONCE: Duration = Duration::from_millis(250);

#[test]
fn a_watch_that_had_worked_is_opened_again_at_once_however_it_ends_and_how_often() {
    for reason in [
        broken,
        || RestartReason::Truncated,
        || RestartReason::Closed,
        || RestartReason::Silent(seconds(330)),
    ] {
        let (mut reflector, mut now) = (watching(), Instant::now());
        for _ in 0..100 {
            let (next, end) = ends_after(&mut reflector, now, seconds(5), &reason());
            assert!(next.delay <= AT_ONCE && !next.relist, "{next:?}");
            now = end;
        }
    }
}

#[test]
fn an_ordinary_end_is_no_failure() {
    let (next, _) = ends_after(&mut watching(), Instant::now(), seconds(1), &RestartReason::Closed);
    assert_eq!(next, Next { delay: AT_ONCE, relist: false, report: false, unavailable: false });
    let (next, _) = ends_after(&mut watching(), Instant::now(), seconds(1), &broken());
    assert!(next.report);
}

#[test]
fn a_server_that_cuts_every_watch_at_once_is_not_asked_in_a_tight_loop() {
    let (mut reflector, now) = (watching(), Instant::now());
    fail(&mut reflector, broken());
    let delays: Vec<u128> = (0..5)
        .map(|_| ends_after(&mut reflector, now, Duration::from_millis(999), &broken()).0.delay.as_millis())
        .collect();
    assert_eq!(delays, [1000, 2000, 4000, 5000, 5000]);
}

#[test]
fn a_server_that_sends_an_event_and_cuts_every_watch_is_not_asked_in_a_tight_loop() {
    let (mut reflector, now) = (watching(), Instant::now());
    let mut cut = |version: u32| {
        reflector.opened(now);
        reflector.changed(&version.to_string()).unwrap();
        reflector.failed(&broken(), now, 0.0).delay.as_millis()
    };
    assert_eq!([cut(11), cut(12), cut(13), cut(14)], [0, 500, 1000, 2000]);
}

#[test]
fn trouble_is_forgotten_after_a_watch_that_worked() {
    let (mut reflector, now) = (watching(), Instant::now());
    for delay in [800, 1600, 3200, 6400] {
        assert_eq!(fail(&mut reflector, refused(500)).delay.as_millis(), delay);
    }
    ends_after(&mut reflector, now, seconds(2), &broken());
    assert_eq!(fail(&mut reflector, refused(500)).delay.as_millis(), 12_800, "too short a cure");
    ends_after(&mut reflector, now, seconds(3), &broken());
    assert_eq!(fail(&mut reflector, refused(500)).delay.as_millis(), 800);
}

/// Restarts in a row, each with seconds in which nothing listens.
#[test]
fn each_of_many_restarts_of_the_server_is_followed_as_soon_as_the_first() {
    let refused: fn() -> RestartReason = || {
        let error = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        RestartReason::Unreachable(Box::new(std::io::Error::other(error)))
    };
    for end in [|| RestartReason::Closed, broken] {
        let (mut reflector, mut now) = (watching(), Instant::now());
        for _ in 0..20 {
            let (next, end) = ends_after(&mut reflector, now, seconds(2), &end());
            now = end + next.delay;
            for _ in 0..30 {
                let next = reflector.failed(&refused(), now, 1.0);
                assert_eq!(next.delay, seconds(1), "each attempt, however long it takes");
                now += next.delay;
            }
        }
    }
}

#[test]
fn a_host_without_a_way_to_it_is_asked_as_often_as_one_where_nothing_listens() {
    use std::io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    for kind in [HostUnreachable, NetworkUnreachable, TimedOut] {
        let reason =
            || RestartReason::Unreachable(Box::new(std::io::Error::other(std::io::Error::from(kind))));
        let mut reflector = watching();
        let delays = [0; 9].map(|_| reflector.failed(&reason(), Instant::now(), 1.0).delay);
        assert_eq!(delays, [seconds(1); 9], "{kind:?}");
    }
    let certificate = || RestartReason::Unreachable("invalid peer certificate".into());
    let mut reflector = watching();
    let longest = (0..9).map(|_| reflector.failed(&certificate(), Instant::now(), 1.0).delay).max();
    assert_eq!(longest, Some(seconds(5)), "a server that is there");
}

#[test]
fn a_load_balancer_that_answers_for_an_absent_server_is_asked_every_second_and_a_half() {
    for reason in [|| refused(502), || refused(503), broken] {
        let mut reflector = watching();
        fail(&mut reflector, RestartReason::Closed);
        let delays: Vec<u128> =
            (0..9).map(|_| reflector.failed(&reason(), Instant::now(), 1.0).delay.as_millis()).collect();
        assert_eq!((delays[0], &delays[1..]), (1000, &[1500; 8][..]));
        assert_eq!(reflector.query(), Query::Watch { from: "10" });
    }
}

#[test]
fn failures_other_than_server_trouble_are_retried_every_five_seconds() {
    let credentials = || RestartReason::Credentials("no token".into());
    for reason in [|| refused(401), || refused(403), credentials] {
        let mut reflector = watching();
        let longest = (0..20).map(|_| reflector.failed(&reason(), Instant::now(), 1.0).delay).max();
        assert_eq!(longest, Some(seconds(5)));
    }
}

#[test]
fn a_lost_version_leads_to_a_list_at_once_but_not_to_list_after_list() {
    let too_large = || {
        RestartReason::ErrorEvent(ApiStatus { too_large: true, retry_after: Some(seconds(1)), ..status(504) })
    };
    for reason in [|| refused(410), || error_event(410), too_large] {
        let mut reflector = watching();
        let mut lost = || {
            let next = reflector.failed(&reason(), Instant::now(), 0.0);
            assert!(next.relist && reflector.opened(Instant::now()));
            assert!(reflector.bookmark("11", true, Instant::now()).unwrap());
            reflector.opened(Instant::now());
            next.delay.as_millis()
        };
        assert_eq!([lost(), lost(), lost(), lost()], [0, 800, 1600, 3200]);
    }
}

/// A lagging replica sends this after some seconds, each time.
#[test]
fn a_watch_that_ends_in_an_error_event_without_anything_before_has_not_worked() {
    let (mut reflector, now) = (watching(), Instant::now());
    let lags = RestartReason::ErrorEvent(ApiStatus { too_large: true, ..status(504) });
    let delays = [0, 1, 2].map(|_| ends_after(&mut reflector, now, seconds(3), &lags).0.delay.as_millis());
    assert_eq!(delays, [250, 1600, 3200]);
}

#[test]
fn retry_after_is_honoured() {
    let mut reflector = watching();
    let busy = |seconds| {
        RestartReason::Refused(ApiStatus { retry_after: Some(Duration::from_secs(seconds)), ..status(429) })
    };
    assert_eq!(fail(&mut reflector, busy(30)).delay, seconds(30));
    assert_eq!(reflector.failed(&busy(7), Instant::now(), 1.0).delay, Duration::from_millis(10_500));
}

#[test]
fn a_server_whose_etcd_is_too_old_for_streamed_lists_gets_pages_at_once_and_for_good() {
    let old = ApiStatus {
        message: "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled".into(),
        ..status(500)
    };
    let once = [RestartReason::Refused(old.clone()), RestartReason::ErrorEvent(old)];
    for (reason, most) in
        once.into_iter().map(|it| (it, 0)).chain([(RestartReason::Silent(seconds(30)), 250)])
    {
        let mut reflector = reflector();
        reflector.opened(Instant::now());
        let next = reflector.failed(&reason, Instant::now(), 1.0);
        assert_eq!((next.delay, reflector.query()), (Duration::from_millis(most), FIRST_PAGE));
        reflector.page(page("5", ""), Instant::now()).unwrap();
        fail(&mut reflector, refused(410));
        assert_eq!(reflector.query(), FIRST_PAGE);
    }
}

/// Returns how long a watch may be silent, if the limit is that for missing bookmarks.
fn patience(reflector: &mut Reflector, now: Instant) -> Option<u64> {
    match reflector.silence(seconds(3600), now) {
        (silence, RestartReason::NoBookmarks(_)) => Some(silence.as_secs()),
        _ => None,
    }
}

fn list(reflector: &mut Reflector, version: &str, now: Instant) {
    reflector.opened(now);
    reflector.bookmark(version, true, now).unwrap();
}

#[test]
fn bookmarks_that_stay_away_lead_to_a_list_at_once() {
    let now = Instant::now();
    let mut reflector = reflector();
    list(&mut reflector, "10", now);
    assert_eq!(patience(&mut reflector, now), Some(90));
    let (next, end) = ends_after(&mut reflector, now, seconds(90), &RestartReason::NoBookmarks(seconds(90)));
    assert!(next.relist && next.delay <= AT_ONCE);
    list(&mut reflector, "3", end);
    assert_eq!(reflector.query(), Query::Watch { from: "3" });
    assert_eq!(
        patience(&mut reflector, end),
        Some(90),
        "it had lost its history: the silence meant something"
    );
}

#[test]
fn a_server_that_never_sends_bookmarks_is_listed_ever_more_seldom_but_never_left_alone() {
    let (mut reflector, mut now) = (reflector(), Instant::now());
    list(&mut reflector, "10", now);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let wait = patience(&mut reflector, now).unwrap();
        waits.push(wait);
        let reason = RestartReason::NoBookmarks(seconds(wait));
        now = ends_after(&mut reflector, now, seconds(wait), &reason).1;
        list(&mut reflector, "10", now);
    }
    assert_eq!(waits, [90, 180, 360, 720, 720, 720], "the alert on stale watches begins at 900 s");
}

#[test]
fn silence_counts_over_all_answers_of_a_watch_but_not_while_the_server_is_away() {
    let (mut reflector, mut now) = (reflector(), Instant::now());
    list(&mut reflector, "10", now);
    now += seconds(50);
    reflector.failed(&broken(), now, 0.0);
    now += seconds(3600);
    reflector.opened(now);
    assert_eq!(patience(&mut reflector, now), Some(40));
    now += seconds(39);
    reflector.failed(&broken(), now, 0.0);
    reflector.opened(now);
    assert_eq!(patience(&mut reflector, now), Some(1));
    reflector.deleted("11");
    now += seconds(1);
    assert_eq!(patience(&mut reflector, now), Some(90), "an event came");
    reflector.failed(&broken(), now + seconds(20), 0.0);
    reflector.opened(now);
    reflector.bookmark("11", false, now).unwrap();
    reflector.failed(&broken(), now, 0.0);
    reflector.opened(now);
    assert_eq!(patience(&mut reflector, now), Some(90), "a bookmark came last");
}

#[test]
fn bookmarks_that_come_again_reset_the_patience() {
    let (mut reflector, now) = (watching(), Instant::now());
    fail(&mut reflector, RestartReason::NoBookmarks(seconds(90)));
    list(&mut reflector, "10", now);
    assert_eq!(patience(&mut reflector, now), Some(180));
    reflector.opened(now);
    for _ in 0..7 {
        reflector.bookmark("10", false, now).unwrap();
    }
    reflector.failed(&RestartReason::Closed, now + seconds(450), 0.0);
    assert_eq!(
        reflector.silence(seconds(3600), now).1.to_string(),
        RestartReason::NoBookmarks(seconds(90)).to_string()
    );
}

#[test]
fn a_version_that_goes_back_leads_to_a_list() {
    let mut watches = [watching(), watching()];
    let [by_bookmark, by_event] = &mut watches;
    let errors =
        [by_bookmark.bookmark("9", false, Instant::now()).unwrap_err(), by_event.changed("9").unwrap_err()];
    for (reflector, error) in watches.iter_mut().zip(errors) {
        assert_eq!(
            error.to_string(),
            "resource version 9 came after 10: the API server has lost its history"
        );
        assert!(fail(reflector, error).relist);
        assert_eq!(reflector.query(), Query::Stream);
    }
    let mut reflector = watching();
    reflector.changed("10").unwrap();
    reflector.changed("no number").unwrap();
    assert_eq!(reflector.query(), Query::Watch { from: "no number" });
    let mut reflector = watching();
    reflector.deleted("3");
    assert_eq!(reflector.query(), Query::Watch { from: "10" }, "the object's own version is no step back");
    reflector.deleted("12");
    assert_eq!(reflector.query(), Query::Watch { from: "12" });
}
