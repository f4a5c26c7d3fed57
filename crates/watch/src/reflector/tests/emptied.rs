//! Lists that are empty although objects are known.

use super::*;

fn knowing(kind: Kind, objects: usize, timing: Timing) -> Reflector {
    let mut reflector = Reflector::new(kind, false, 0, timing);
    reflector.opened(Instant::now());
    (0..objects).for_each(|_| reflector.counted());
    reflector.bookmark("10", true, Instant::now()).unwrap();
    reflector
}

/// Reads a streamed list, or a page, without objects.
fn empty_list(reflector: &mut Reflector, now: Instant) -> Result<bool, RestartReason> {
    let streams = reflector.query() == Query::Stream;
    reflector.opened(now);
    if streams { reflector.bookmark("20", true, now) } else { reflector.page(page("20", ""), now) }
}

#[allow(clippy::needless_pass_by_value, reason = "calls read better without `&`")]
fn doubted(outcome: Result<bool, RestartReason>) -> Option<(usize, bool)> {
    match outcome {
        Err(RestartReason::Emptied { known, first }) => Some((known, first)),
        _ => None,
    }
}

#[test]
fn an_empty_list_is_accepted_when_another_one_is_empty_after_half_a_minute() {
    let start = Instant::now();
    for kind in [Kind::Service, Kind::EndpointSlice] {
        let mut reflector = knowing(kind, 3, Timing::default());
        fail(&mut reflector, refused(410));
        for after in [0, 5, 29] {
            let now = start + Duration::from_secs(after);
            let outcome = empty_list(&mut reflector, now);
            assert_eq!(doubted(outcome), Some((3, after == 0)), "{kind} after {after} s");
            assert!(reflector.listing(), "it is no watch that could go on from there");
            let next = reflector.failed(&RestartReason::Emptied { known: 3, first: after == 0 }, now, 0.0);
            assert_eq!((next.delay, next.relist), (Duration::from_secs(5), true));
            assert_eq!(reflector.query(), FIRST_PAGE, "the second is asked for in another way");
        }
        assert!(empty_list(&mut reflector, start + Duration::from_secs(30)).unwrap());
        assert_eq!(reflector.query(), Query::Watch { from: "20" });
    }
}

#[test]
fn an_empty_list_that_began_before_the_hold_ended_does_not_count() {
    let (mut reflector, start) = (knowing(Kind::Service, 3, Timing::default()), Instant::now());
    fail(&mut reflector, refused(410));
    assert!(doubted(empty_list(&mut reflector, start)).is_some());
    fail(&mut reflector, RestartReason::Emptied { known: 3, first: true });
    reflector.opened(start + Duration::from_secs(29));
    let slow = reflector.page(page("20", ""), start + Duration::from_secs(40));
    assert_eq!(doubted(slow), Some((3, false)));
    assert!(empty_list(&mut reflector, start + Duration::from_secs(41)).unwrap());
}

#[test]
fn a_successor_knows_the_objects_of_its_predecessor() {
    let mut reflector = Reflector::new(Kind::Service, false, 3, Timing::default());
    assert_eq!(doubted(empty_list(&mut reflector, Instant::now())), Some((3, true)));
    assert_eq!(reflector.known(), 3);
}

#[test]
fn a_long_hold_asks_as_often_as_a_short_one() {
    for (hold, delay) in [(6, 1000), (30, 5000), (3600, 5000)] {
        let timing = Timing { empty_list_hold: Duration::from_secs(hold), ..Timing::default() };
        let mut reflector = knowing(Kind::Service, 3, timing);
        fail(&mut reflector, refused(410));
        assert!(doubted(empty_list(&mut reflector, Instant::now())).is_some());
        let next = fail(&mut reflector, RestartReason::Emptied { known: 3, first: true });
        assert_eq!(next.delay.as_millis(), delay, "{hold} s");
    }
}

#[test]
fn one_object_in_the_next_list_ends_the_hold() {
    let (mut reflector, now) = (knowing(Kind::Service, 3, Timing::default()), Instant::now());
    fail(&mut reflector, refused(410));
    assert!(doubted(empty_list(&mut reflector, now)).is_some());
    fail(&mut reflector, RestartReason::Emptied { known: 3, first: true });
    reflector.opened(now);
    reflector.counted();
    reflector.counted();
    assert!(reflector.page(page("21", ""), now).unwrap());
    fail(&mut reflector, refused(410));
    let later = now + Duration::from_secs(3600);
    assert_eq!(doubted(empty_list(&mut reflector, later)), Some((2, true)), "it begins anew");
}

#[test]
fn objects_deleted_one_by_one_are_not_counted() {
    let mut reflector = knowing(Kind::Service, 3, Timing::default());
    reflector.counted();
    (0..3).for_each(|_| reflector.deleted("12"));
    fail(&mut reflector, refused(410));
    assert!(empty_list(&mut reflector, Instant::now()).unwrap(), "one alone may be deleted meanwhile");
}

#[test]
fn empty_lists_of_other_kinds_and_with_a_hold_of_zero_are_accepted_at_once() {
    let at_once = Timing { empty_list_hold: Duration::ZERO, ..Timing::default() };
    for (kind, timing) in
        [(Kind::Node, Timing::default()), (Kind::ServiceCidr, Timing::default()), (Kind::Service, at_once)]
    {
        let mut reflector = knowing(kind, 3, timing);
        fail(&mut reflector, refused(410));
        assert!(empty_list(&mut reflector, Instant::now()).unwrap(), "{kind}");
    }
}

#[test]
fn a_list_that_fails_during_a_hold_changes_nothing() {
    let (mut reflector, start) = (knowing(Kind::Service, 3, Timing::default()), Instant::now());
    fail(&mut reflector, refused(410));
    assert!(doubted(empty_list(&mut reflector, start)).is_some());
    fail(&mut reflector, RestartReason::Emptied { known: 3, first: true });
    for _ in 0..9 {
        assert!(!fail(&mut reflector, broken()).relist);
    }
    assert_eq!(reflector.query(), FIRST_PAGE);
    assert!(empty_list(&mut reflector, start + Duration::from_secs(60)).unwrap());
}
