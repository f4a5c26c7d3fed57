use proptest::prelude::*;

use super::*;

const ENDPOINT: &str = "10.1.0.5:8080";
const FRONTEND: &str = "10.96.0.1:80";

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A TCP flow to an endpoint, from this port of a client.
fn flow_to(endpoint: SocketAddr, port: u16) -> Flow {
    let (client, frontend) = (("10.1.0.1".parse::<std::net::IpAddr>().unwrap(), port), socket(FRONTEND));
    Flow {
        original: Tuple::with_ports(6, client, (frontend.ip(), frontend.port())),
        reply: Tuple::with_ports(6, (endpoint.ip(), endpoint.port()), client),
        status: status::CONFIRMED | status::DST_NAT,
        mark: None,
        id: Some(port.into()),
        timeout: Some(120),
        zone: None,
        tcp_state: Some(tcp_state::SYN_SENT),
    }
}

fn flow() -> Flow {
    flow_to(socket(ENDPOINT), 40_000)
}

fn refused() -> Flow {
    Flow { tcp_state: Some(tcp_state::CLOSE), ..flow() }
}

const fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// The kernel has no flow.
const fn nothing(_: &Followed) -> Seen {
    Seen::Nothing
}

/// Judges all followed flows that are due.
fn judge_due(judge: &mut Judge, seen: Seen, now: Instant) -> bool {
    let mut is_changed = false;
    while let Some(followed) = judge.next_due(now) {
        is_changed |= judge.judged(&followed, seen, now, nothing);
    }
    is_changed
}

fn refuse(judge: &mut Judge, times: usize, now: Instant) -> bool {
    (0..times).fold(false, |changed, _| judge.ended(&refused(), now, nothing) || changed)
}

/// Connects once for each letter, 100 ms apart: F is refused, S is answered. The kernel still has the answered flows. Returns
/// true if the endpoint is set aside at the end.
fn connect(judge: &mut Judge, outcomes: &str, start: Instant) -> bool {
    for (port, outcome) in (1..).zip(outcomes.chars()) {
        let now = start + Duration::from_millis(100) * u32::from(port);
        let flow = flow_to(socket(ENDPOINT), port);
        judge.begun(&flow, now);
        if outcome == 'F' {
            let refused = Flow { tcp_state: Some(tcp_state::CLOSE), ..flow };
            let answered = |asked: &Followed| {
                let of = asked.id.and_then(|id| outcomes.chars().nth(usize::try_from(id).unwrap() - 1));
                if of == Some('S') { Seen::Answer } else { Seen::Nothing }
            };
            judge.ended(&refused, now, answered);
        }
    }
    !judge.aside().is_empty()
}

#[test]
fn an_answer_between_failures_ends_the_row() {
    for outcomes in ["FSFSF", "FFSF", "FSFF", "FFSFF", "FSSSSSSSSFSFSFFSSF", "SSSSSSFFSSSF", "SSSSFSFSF"] {
        assert!(!connect(&mut Judge::default(), outcomes, Instant::now()), "{outcomes}");
    }
    for outcomes in ["FFF", "SSSSFFF", "FSFFF", "FFSFFF", "SSSSSSSSFFSFFF"] {
        assert!(connect(&mut Judge::default(), outcomes, Instant::now()), "{outcomes}");
    }
}

#[test]
fn an_answer_before_the_first_failure_of_a_trial_ends_the_trial() {
    let (mut judge, start) = (Judge::default(), Instant::now());
    refuse(&mut judge, 3, start);
    assert!(judge.pass(start + seconds(10)));
    assert!(!connect(&mut judge, "SF", start + seconds(10)));
    assert!(connect(&mut judge, "FF", start + seconds(11)), "they are the second and the third one");
}

#[test]
fn an_answered_flow_that_ends_counts_if_it_began_after_a_failure() {
    let answered = Flow { status: status::CONFIRMED | status::SEEN_REPLY, ..flow_to(socket(ENDPOINT), 1) };
    for (begun, is_set_aside) in [(0, true), (2, false)] {
        let (mut judge, start) = (Judge::default(), Instant::now());
        if begun == 0 {
            judge.begun(&answered, start);
        }
        refuse(&mut judge, 2, start + seconds(1));
        if begun != 0 {
            judge.begun(&answered, start + seconds(begun));
        }
        judge.ended(&answered, start + seconds(2), nothing);
        assert_eq!(refuse(&mut judge, 1, start + seconds(3)), is_set_aside, "begun at {begun}");
    }
}

#[test]
fn a_flow_that_is_answered_after_unanswered_ones_ends_the_row() {
    // Three flows are not answered; the fourth one is not followed any more, but it is known.
    let (mut judge, start) = (Judge::default(), Instant::now());
    for port in 1..5 {
        judge.begun(&flow_to(socket(ENDPOINT), port), start + Duration::from_millis(port.into()));
    }
    let answered = |asked: &Followed| if asked.id == Some(4) { Seen::Answer } else { Seen::NoAnswer };
    let now = start + seconds(4);
    while let Some(followed) = judge.next_due(now) {
        assert!(!judge.judged(&followed, answered(&followed), now, answered));
    }
    // The second one of three is answered.
    let mut judge = Judge::default();
    for (port, millis) in [(1, 0), (2, 100), (3, 200)] {
        judge.begun(&flow_to(socket(ENDPOINT), port), start + Duration::from_millis(millis));
    }
    let now = start + seconds(4);
    for seen in [Seen::NoAnswer, Seen::Answer, Seen::NoAnswer] {
        let followed = judge.next_due(now).unwrap();
        judge.judged(&followed, seen, now, nothing);
    }
    assert!(!refuse(&mut judge, 1, now) && refuse(&mut judge, 1, now), "the row has one failure");
}

#[test]
fn endpoints_beyond_a_limit_are_not_judged() {
    let (mut judge, now) = (Judge::default(), Instant::now());
    let refuse = |judge: &mut Judge, port: u16| {
        let refused =
            Flow { tcp_state: Some(tcp_state::CLOSE), ..flow_to(SocketAddr::from(([10, 1, 0, 5], port)), 1) };
        judge.begun(&refused, now);
        (0..FAILURES).fold(false, |changed, _| judge.ended(&refused, now, nothing) || changed)
    };
    let limit = u16::try_from(RECORDS_MAX).unwrap();
    assert!((1..=limit).all(|port| !judge.is_full() && refuse(&mut judge, port)));
    assert!(judge.is_full() && !refuse(&mut judge, limit + 1));
    assert_eq!((judge.records.len(), judge.aside().len()), (RECORDS_MAX, RECORDS_MAX));
    judge.pass(now + seconds(10));
    judge.pass(now + seconds(10) + LONGEST_PAUSE);
    judge_due(&mut judge, Seen::Nothing, now + LONGEST_PAUSE);
    judge.pass(now + seconds(11) + LONGEST_PAUSE);
    assert!(!judge.is_full() && refuse(&mut judge, limit + 1));
}

#[test]
fn three_refused_connections_in_a_row_set_an_endpoint_aside() {
    let (mut judge, start) = (Judge::default(), Instant::now());
    assert!(!refuse(&mut judge, 2, start));
    assert!(judge.aside().is_empty());
    assert!(refuse(&mut judge, 1, start));
    let how = SetAside { failure: Failure::Refused, pause: seconds(10) };
    assert_eq!(judge.aside(), [(socket(ENDPOINT), how)].into());
    assert!(!refuse(&mut judge, 5, start), "it is set aside already");

    assert!(!judge.pass(start + seconds(9)));
    assert!(judge.pass(start + seconds(10)) && judge.aside().is_empty());
}

#[test]
fn failures_that_are_far_apart_do_not_count() {
    let (mut judge, start) = (Judge::default(), Instant::now());
    for minute in 0..10 {
        assert!(!refuse(&mut judge, 1, start + seconds(minute * 31)));
    }
}

#[test]
fn connections_without_an_answer_set_an_endpoint_aside() {
    let (mut judge, start) = (Judge::default(), Instant::now());
    for port in 1..10 {
        judge.begun(&flow_to(socket(ENDPOINT), port), start);
    }
    assert_eq!(judge.next_due(start + seconds(2)), None);
    let first = judge.next_due(start + ANSWER_WITHIN).unwrap();
    assert_eq!(
        (first.endpoint, first.reply, first.id),
        (socket(ENDPOINT), flow_to(socket(ENDPOINT), 1).reply, Some(1))
    );
    assert!(!judge.judged(&first, Seen::NoAnswer, start + ANSWER_WITHIN, nothing));
    assert!(judge_due(&mut judge, Seen::NoAnswer, start + ANSWER_WITHIN), "the third one of three");
    let how = judge.aside().values().next().copied();
    assert_eq!(how.map(|how| how.failure), Some(Failure::NoAnswer));
}

#[test]
fn an_answer_clears_older_failures_but_not_newer_ones() {
    let (mut judge, start) = (Judge::default(), Instant::now());
    refuse(&mut judge, 2, start);
    judge.begun(&flow(), start + seconds(1));
    assert!(!judge_due(&mut judge, Seen::Answer, start + seconds(4)));
    assert!(!refuse(&mut judge, 2, start + seconds(5)));
    // A flow that began before both of them was answered.
    judge.begun(&flow(), start + seconds(2));
    judge_due(&mut judge, Seen::Answer, start + seconds(5));
    assert!(refuse(&mut judge, 1, start + seconds(5)));
}

#[test]
fn on_trial_one_failure_is_enough_and_the_pause_doubles() {
    let (mut judge, mut now) = (Judge::default(), Instant::now());
    refuse(&mut judge, 3, now);
    for pause in [20, 40, 80, 160, 300, 300] {
        now += seconds(300);
        judge.pass(now);
        assert!(refuse(&mut judge, 1, now));
        let how = judge.aside()[&socket(ENDPOINT)];
        assert_eq!(how.pause, seconds(pause));
    }
    // An answer ends the trial.
    now += seconds(300);
    judge.pass(now);
    judge.begun(&flow(), now);
    now += ANSWER_WITHIN;
    assert!(!judge_due(&mut judge, Seen::Answer, now));
    assert!(!refuse(&mut judge, 2, now) && refuse(&mut judge, 1, now));
    assert_eq!(judge.aside()[&socket(ENDPOINT)].pause, seconds(10));
}

#[test]
fn an_endpoint_that_is_in_use_all_the_same_is_back_with_its_first_answer() {
    let (mut judge, start) = (Judge::default(), Instant::now());
    judge.begun(&flow(), start);
    refuse(&mut judge, 3, start + seconds(1));
    assert!(!judge_due(&mut judge, Seen::Answer, start + seconds(3)), "it was sound before");
    judge.begun(&flow(), start + seconds(4));
    assert!(judge_due(&mut judge, Seen::Answer, start + seconds(7)));
    assert!(judge.aside().is_empty());
}

#[test]
fn other_flows_are_not_judged() {
    let (mut judge, now) = (Judge::default(), Instant::now());
    let untranslated = {
        let frontend = socket(FRONTEND);
        let mut flow = flow_to(frontend, 1);
        flow.tcp_state = Some(tcp_state::CLOSE);
        flow
    };
    let udp = {
        let mut flow = refused();
        (flow.original.protocol, flow.reply.protocol) = (17, 17);
        flow
    };
    // It was answered and then reset; it was deleted; it expired without an answer, which was judged long before.
    let reset = Flow { status: status::CONFIRMED | status::SEEN_REPLY, ..refused() };
    for flow in [untranslated, udp, reset, flow(), Flow { tcp_state: None, ..flow() }] {
        for _ in 0..FAILURES {
            assert!(!judge.ended(&flow, now, nothing), "{flow:?}");
        }
    }
    judge.begun(&untranslated, now);
    judge.begun(&udp, now);
    judge.pass(now);
    assert!(!judge.is_waiting());
    // A flow of which the kernel knows nothing any more.
    judge.begun(&flow(), now);
    for _ in 0..FAILURES {
        assert!(!judge_due(&mut judge, Seen::Nothing, now + ANSWER_WITHIN));
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Begun(u8),
    Refused(u8),
    Judged(Seen),
    Passed(u16),
}

fn any_step() -> impl Strategy<Value = Step> {
    let seen = prop_oneof![Just(Seen::Answer), Just(Seen::NoAnswer), Just(Seen::Nothing)];
    prop_oneof![
        (0_u8..4).prop_map(Step::Begun),
        (0_u8..4).prop_map(Step::Refused),
        seen.prop_map(Step::Judged),
        (0_u16..20).prop_map(Step::Passed),
    ]
}

proptest! {
    #[test]
    fn changes_are_reported_and_everything_is_forgotten(steps in proptest::collection::vec(any_step(), 0..200)) {
        let (mut judge, mut now) = (Judge::default(), Instant::now());
        let endpoint = |host: u8| SocketAddr::from(([10, 1, 0, host], 8080));
        for step in steps {
            let before = judge.aside();
            let is_changed = match step {
                Step::Begun(host) => {
                    judge.begun(&flow_to(endpoint(host), 1), now);
                    false
                }
                Step::Refused(host) => {
                    let flow = Flow { tcp_state: Some(tcp_state::CLOSE), ..flow_to(endpoint(host), 1) };
                    judge.ended(&flow, now, nothing)
                }
                Step::Judged(seen) => judge_due(&mut judge, seen, now),
                Step::Passed(seconds) => {
                    now += Duration::from_secs(seconds.into());
                    judge.pass(now)
                }
            };
            let after = judge.aside();
            prop_assert!(is_changed || before == after, "{:?}", step);
            prop_assert!(judge.records.values().all(|record| record.followed <= FOLLOWED));
            prop_assert!(judge.records.values().all(|record| record.later.len() <= LATER));
            let counted: usize = judge.records.values().map(|record| usize::from(record.followed)).sum();
            prop_assert_eq!(counted, judge.followed.len());
        }
        now += LONGEST_PAUSE;
        judge_due(&mut judge, Seen::Nothing, now);
        judge.pass(now);
        prop_assert!(judge.aside().is_empty());
        now += LONGEST_PAUSE;
        judge.pass(now);
        prop_assert!(!judge.is_waiting());
    }
}
