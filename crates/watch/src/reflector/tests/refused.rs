//! Requests that the server refuses for good.

use super::*;

/// Ends the watch, refuses every other one for a minute and a half after the first refusal, and checks that it is asked for
/// again. Then refuses it once more.
fn refuse_for_long(reflector: &mut Reflector, reason: &RestartReason, begin: Instant) -> Next {
    reflector.failed(&RestartReason::Closed, begin, 0.0);
    for second in [0, 30, 60, 89] {
        let next = reflector.failed(reason, begin + Duration::from_secs(second), 0.0);
        assert!(!next.relist, "{reason:?} after {second} s");
        assert!(matches!(reflector.query(), Query::Watch { .. }));
    }
    reflector.failed(reason, begin + Duration::from_secs(90), 0.0)
}

#[test]
fn a_watch_that_stays_refused_is_replaced_by_a_list_again_and_again() {
    let cut = [broken(), RestartReason::Truncated];
    let refused = [refused(403), refused(401), refused(408), refused(500), trouble(503), refused(502)];
    for reason in refused.into_iter().chain(cut) {
        let (mut reflector, mut now) = (watching(), Instant::now());
        for _ in 0..3 {
            let next = refuse_for_long(&mut reflector, &reason, now);
            assert!(next.relist && next.delay >= Duration::from_millis(500), "{reason:?}: {next:?}");
            assert_eq!(reflector.query(), Query::Stream);
            reflector.opened(now);
            assert!(reflector.bookmark("10", true, now).unwrap());
            now += Duration::from_secs(3600);
        }
    }
}

/// When the server comes back, only few nodes need a list.
#[test]
fn a_watch_goes_on_if_the_list_in_its_place_is_refused_too() {
    for reason in [broken(), trouble(503), refused(502)] {
        let (mut reflector, mut now) = (watching(), Instant::now());
        for _ in 0..3 {
            refuse_for_long(&mut reflector, &reason, now);
            now += Duration::from_secs(91);
            assert_eq!(reflector.query(), Query::Stream);
            assert!(reflector.failed(&reason, now, 0.0).relist);
            assert_eq!(
                reflector.query(),
                FIRST_PAGE,
                "a proxy may refuse streamed lists as it refuses watches"
            );
            let next = reflector.failed(&reason, now, 0.0);
            assert!(!next.relist && next.delay >= Duration::from_millis(500), "{reason:?}: {next:?}");
            assert_eq!(reflector.query(), Query::Watch { from: "10" });
        }
    }
}

#[test]
fn a_list_that_is_held_is_followed_by_lists() {
    let timing = Timing::default();
    let (mut reflector, now) = (Reflector::new(Kind::Service, false, 7, timing), Instant::now());
    reflector.resume("10");
    reflector.opened(now);
    refuse_for_long(&mut reflector, &broken(), now);
    let then = now + Duration::from_secs(91);
    reflector.opened(then);
    let held = reflector.bookmark("11", true, then).unwrap_err();
    assert!(matches!(held, RestartReason::Emptied { known: 7, first: true }), "{held}");
    reflector.failed(&held, then, 0.0);
    for _ in 0..3 {
        assert_eq!(reflector.query(), FIRST_PAGE);
        reflector.failed(&broken(), then, 0.0);
    }
}

#[test]
fn a_watch_that_opens_ends_the_wait_for_a_list() {
    let (mut reflector, now) = (watching(), Instant::now());
    let at = |seconds| now + Duration::from_secs(seconds);
    assert!(!reflector.failed(&refused(403), at(0), 0.0).relist);
    assert!(!reflector.failed(&refused(403), at(80), 0.0).relist);
    reflector.opened(at(85));
    assert!(!reflector.failed(&RestartReason::Closed, at(88), 0.0).relist);
    refuse_for_long(&mut reflector, &refused(403), at(90));
    assert_eq!(reflector.query(), Query::Stream);
}

#[test]
fn a_server_that_asks_for_fewer_requests_is_not_asked_for_a_list() {
    let (mut reflector, now) = (watching(), Instant::now());
    for minute in 0..10 {
        assert!(!reflector.failed(&refused(429), now + Duration::from_secs(60 * minute), 0.0).relist);
    }
}

#[test]
fn pages_are_tried_once_if_streamed_lists_stay_unavailable() {
    for reason in [|| refused(503), || trouble(503), || refused(502)] {
        let mut reflector = reflector();
        for _ in 0..2 {
            for _ in 0..4 {
                fail(&mut reflector, reason());
                assert_eq!(reflector.query(), Query::Stream);
            }
            assert!(fail(&mut reflector, reason()).delay >= Duration::from_millis(500));
            assert_eq!(reflector.query(), FIRST_PAGE);
            let next = fail(&mut reflector, reason());
            assert!(next.delay >= Duration::from_millis(500), "the server is away: {next:?}");
        }
        assert_eq!(reflector.query(), Query::Stream);
    }
}
