mod emptied;
mod refused;
mod reopened;

use std::time::{Duration, Instant};

use portolan_model::object::Kind;
use proptest::prelude::*;

use super::{Next, Query, Reflector, RestartReason};
use crate::frame::InvalidBody;
use crate::list::ListMeta;
use crate::status::ApiStatus;
use crate::timing::Timing;

const UNAVAILABLE_RETRY: Duration = Duration::from_secs(60);

fn reflector() -> Reflector {
    Reflector::new(Kind::Service, false, 0, Timing::default())
}

fn optional() -> Reflector {
    Reflector::new(Kind::ServiceCidr, true, 0, Timing::default())
}

/// Returns a reflector that watches from version 10.
fn watching() -> Reflector {
    let mut reflector = reflector();
    assert!(reflector.opened(Instant::now()));
    assert!(reflector.bookmark("10", true, Instant::now()).unwrap());
    reflector
}

/// Returns a reflector whose server refused the streamed list.
fn paging() -> Reflector {
    let mut reflector = reflector();
    fail(&mut reflector, refused(400));
    assert_eq!(reflector.query(), FIRST_PAGE);
    reflector
}

const FIRST_PAGE: Query<'static> = Query::Page { limit: Some(500), token: "" };

fn status(code: u16) -> ApiStatus {
    ApiStatus { code, ..ApiStatus::default() }
}

/// Returns the refusal of an API server in trouble. Without a message it would be a load balancer's answer.
fn trouble(code: u16) -> RestartReason {
    RestartReason::Refused(ApiStatus { message: "overloaded".into(), ..status(code) })
}

fn refused(code: u16) -> RestartReason {
    RestartReason::Refused(status(code))
}

fn error_event(code: u16) -> RestartReason {
    RestartReason::ErrorEvent(status(code))
}

fn broken() -> RestartReason {
    RestartReason::Broken("reset".into())
}

/// Reports a failure without jitter.
#[allow(clippy::needless_pass_by_value, reason = "calls read better without `&`")]
fn fail(reflector: &mut Reflector, reason: RestartReason) -> Next {
    reflector.failed(&reason, Instant::now(), 0.0)
}

fn page(resource_version: &str, next: &str) -> ListMeta {
    ListMeta { resource_version: resource_version.into(), next: next.into() }
}

#[test]
fn a_caller_that_has_the_objects_watches_from_their_version() {
    let mut reflector = reflector();
    reflector.resume("10");
    assert_eq!(reflector.query(), Query::Watch { from: "10" });
    assert!(!reflector.opened(Instant::now()), "no list begins");
    reflector.changed("11").unwrap();
    assert_eq!(reflector.query(), Query::Watch { from: "11" });
    fail(&mut reflector, error_event(410));
    assert_eq!(reflector.query(), Query::Stream, "the version is lost");
}

#[test]
fn initial_objects_do_not_move_the_resume_point() {
    let mut reflector = reflector();
    assert_eq!(reflector.query(), Query::Stream);
    assert!(reflector.opened(Instant::now()) && reflector.listing());
    reflector.changed("99").unwrap();
    assert!(!reflector.bookmark("98", false, Instant::now()).unwrap());
    assert!(reflector.bookmark("10", true, Instant::now()).unwrap() && !reflector.listing());
    assert_eq!(reflector.query(), Query::Watch { from: "10" });
    reflector.changed("11").unwrap();
    assert_eq!(reflector.query(), Query::Watch { from: "11" });
    assert!(!reflector.bookmark("20", false, Instant::now()).unwrap());
    assert_eq!(reflector.query(), Query::Watch { from: "20" });
    reflector.changed("").unwrap();
    assert_eq!(reflector.query(), Query::Watch { from: "20" });
}

#[test]
fn an_end_mark_without_a_version_is_garbage() {
    let mut reflector = reflector();
    reflector.opened(Instant::now());
    assert!(reflector.bookmark("", true, Instant::now()).is_err());
}

#[test]
fn a_refused_streamed_list_becomes_pages_at_once_and_for_good() {
    for code in [400, 405, 406, 415, 422, 501] {
        let mut reflector = reflector();
        let next = fail(&mut reflector, refused(code));
        assert_eq!((next.report, reflector.query()), (code >= 500, FIRST_PAGE), "{code}");
        assert!(reflector.opened(Instant::now()));
        assert!(reflector.page(page("5", ""), Instant::now()).unwrap());
        assert!(fail(&mut reflector, refused(410)).relist);
        assert_eq!(reflector.query(), FIRST_PAGE, "{code}");
    }
}

#[test]
fn a_failed_streamed_list_becomes_pages_once() {
    let garbage = || RestartReason::InvalidBody(InvalidBody::TooLong);
    for reason in [
        refused(403),
        refused(404),
        refused(500),
        refused(410),
        error_event(500),
        RestartReason::Closed,
        RestartReason::Silent(Duration::from_secs(60)),
        garbage(),
    ] {
        let mut reflector = reflector();
        fail(&mut reflector, reason);
        assert_eq!(reflector.query(), FIRST_PAGE);
        reflector.page(page("5", ""), Instant::now()).unwrap();
        fail(&mut reflector, refused(410));
        assert_eq!(reflector.query(), Query::Stream);
    }
}

#[test]
fn a_busy_or_absent_server_is_asked_the_same_again() {
    let unreachable = || RestartReason::Unreachable("no route".into());
    for (reason, delay) in [
        (refused(429), 800),
        (trouble(503), 800),
        (error_event(429), 800),
        (refused(503), 500),
        (refused(401), 500),
        (broken(), 500),
        (unreachable(), 500),
    ] {
        let mut reflector = reflector();
        let next = fail(&mut reflector, reason);
        assert_eq!((next.delay, next.relist), (Duration::from_millis(delay), false));
        assert_eq!(reflector.query(), Query::Stream);
    }
}

#[test]
fn a_streamed_list_that_breaks_half_way_becomes_pages() {
    for reason in [broken(), RestartReason::Truncated] {
        let mut reflector = reflector();
        reflector.opened(Instant::now());
        fail(&mut reflector, reason);
        assert_eq!(reflector.query(), FIRST_PAGE);
    }
}

#[test]
fn pages_follow_their_tokens() {
    let mut reflector = paging();
    assert!(reflector.opened(Instant::now()));
    assert!(!reflector.page(page("5", "a"), Instant::now()).unwrap());
    assert_eq!(reflector.query(), Query::Page { limit: Some(500), token: "a" });
    assert!(!reflector.opened(Instant::now()), "the second page begins no list");
    assert!(!fail(&mut reflector, broken()).relist);
    assert_eq!(reflector.query(), Query::Page { limit: Some(500), token: "a" });
    assert!(reflector.page(page("5", ""), Instant::now()).unwrap());
    assert_eq!(reflector.query(), Query::Watch { from: "5" });
}

#[test]
fn a_token_that_leads_to_itself_is_garbage() {
    let mut reflector = paging();
    assert!(!reflector.page(page("5", "a"), Instant::now()).unwrap());
    assert!(reflector.page(page("5", "a"), Instant::now()).is_err());
}

#[test]
fn pages_that_expire_are_read_in_one_piece() {
    let mut reflector = paging();
    reflector.page(page("5", "a"), Instant::now()).unwrap();
    assert!(fail(&mut reflector, refused(410)).relist);
    assert_eq!(reflector.query(), Query::Page { limit: None, token: "" });
    assert!(reflector.opened(Instant::now()), "the list begins anew");
}

#[test]
fn a_watch_that_breaks_goes_on_where_it_was() {
    for (reason, delay) in [
        (broken(), 0),
        (RestartReason::Truncated, 0),
        (RestartReason::Closed, 0),
        (refused(500), 800),
        (refused(429), 800),
        (error_event(500), 800),
        (refused(401), 500),
        (refused(403), 500),
        (refused(502), 500),
    ] {
        let mut reflector = watching();
        let next = fail(&mut reflector, reason);
        assert!(!next.relist && next.report);
        assert_eq!(next.delay, Duration::from_millis(delay));
        assert_eq!(reflector.query(), Query::Watch { from: "10" });
    }
}

#[test]
fn a_watch_from_a_lost_version_starts_over() {
    let too_large = || ApiStatus { code: 504, too_large: true, ..ApiStatus::default() };
    for reason in [
        refused(410),
        error_event(410),
        RestartReason::ErrorEvent(ApiStatus { reason: "Expired".into(), ..status(500) }),
        RestartReason::Refused(too_large()),
        RestartReason::ErrorEvent(too_large()),
        refused(400),
        RestartReason::InvalidBody(InvalidBody::TooLong),
    ] {
        let mut reflector = watching();
        let next = fail(&mut reflector, reason);
        assert!(next.relist && next.report);
        assert_eq!(reflector.query(), Query::Stream);
    }
}

#[test]
fn error_events_without_progress_start_over() {
    let mut reflector = watching();
    assert!(!fail(&mut reflector, error_event(500)).relist);
    assert!(!fail(&mut reflector, error_event(500)).relist);
    reflector.changed("11").unwrap();
    assert!(!fail(&mut reflector, error_event(500)).relist);
    assert!(!fail(&mut reflector, error_event(500)).relist);
    assert!(fail(&mut reflector, error_event(500)).relist);
}

#[test]
fn an_optional_collection_may_be_forbidden_or_missing() {
    let mut reflector = optional();
    assert!(!fail(&mut reflector, refused(403)).unavailable, "pages are tried first");
    let next = reflector.failed(&refused(403), Instant::now(), 0.5);
    assert!(next.unavailable && !next.report);
    assert_eq!(next.delay, UNAVAILABLE_RETRY.mul_f64(1.5));
    assert_eq!(reflector.query(), Query::Stream);

    let mut reflector = optional();
    let delay = |reflector: &mut Reflector, jitter| {
        let next = reflector.failed(&refused(404), Instant::now(), jitter);
        assert!(next.unavailable && !next.report);
        assert_eq!(reflector.query(), Query::Stream, "pages are not tried");
        next.delay.as_secs()
    };
    let delays = [0.0; 6].map(|jitter| delay(&mut reflector, jitter));
    assert_eq!(delays, [60, 120, 240, 480, 600, 600]);
    assert_eq!(delay(&mut reflector, 1.0), 900);
    reflector.opened(Instant::now());
    assert_eq!(delay(&mut reflector, 0.0), 60, "the server had it");
    let mut needed = paging();
    let next = fail(&mut needed, refused(404));
    assert!(!next.unavailable && next.report);
}

proptest! {
    /// After any failure the reflector asks again within a minute, and it lists exactly if its next query begins a
    /// list. There is no tight loop: of the failures without a watch that lasted, at least one of three waits for
    /// half a second, except the few that may follow at once.
    #[test]
    fn every_failure_is_followed_by_a_request_but_not_in_a_tight_loop(
        failures in prop::collection::vec((any::<u16>(), 0u8..11, any::<bool>()), 0..60),
        jitter in 0.0..1.0f64,
    ) {
        let mut reflector = watching();
        let (now, mut waits) = (Instant::now(), 0);
        for (code, kind, open) in &failures {
            if *open {
                reflector.opened(now);
            }
            let reason = match kind {
                0 => RestartReason::Closed,
                1 => RestartReason::Truncated,
                2 => RestartReason::Silent(Duration::from_secs(9)),
                3 => RestartReason::InvalidBody(InvalidBody::TooLong),
                4 => broken(),
                5 => error_event(code % 600),
                6 => RestartReason::NoBookmarks(Duration::from_secs(90)),
                7 => RestartReason::WentBack { known: "9".into(), seen: "8".into() },
                8 => RestartReason::Unreachable("no route".into()),
                9 => RestartReason::NoEnd(Duration::from_secs(60)),
                _ => refused(code % 600),
            };
            let next = reflector.failed(&reason, now, jitter);
            prop_assert!(next.delay <= Duration::from_secs(120));
            prop_assert!(next.unavailable || next.delay <= Duration::from_secs(60));
            waits += usize::from(next.delay >= Duration::from_millis(500));
            if next.relist {
                let begins = matches!(reflector.query(), Query::Stream | Query::Page { token: "", .. });
                prop_assert!(begins);
            }
        }
        prop_assert!(failures.len() <= 3 * waits + 5, "{} failures, {waits} waits", failures.len());
    }
}
