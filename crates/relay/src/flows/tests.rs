use super::*;

const IDLE: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(1);

/// Flows whose values are the names of their Service ports.
type Named = Flows<char, char>;

fn named() -> Named {
    Flows::new(IDLE, |name| *name)
}

fn key(client: u16) -> Key {
    (([10, 0, 0, 1], client).into(), ([10, 96, 0, 10], 53).into())
}

fn answered(flows: &mut Named, client: u16, service: char, now: Instant) -> FlowId {
    let id = flows.insert(key(client), service, now);
    flows.answered(id, now);
    id
}

#[test]
fn a_flow_ends_after_its_last_use() {
    let (mut flows, start) = (named(), Instant::now());
    let first = flows.insert(key(1), 'a', start);
    flows.insert(key(2), 'b', start);
    let half = start + IDLE / 2;
    assert_eq!(flows.using(first, half).map(|(_, value)| *value), Some('a'));
    assert_eq!(flows.take_idle(half), None);
    assert_eq!(flows.next(), Some(start + IDLE));
    assert_eq!(flows.take_idle(start + IDLE), Some((key(2), 'b')));
    assert_eq!(flows.take_idle(start + IDLE), None);
    assert_eq!((flows.find(&key(1)), flows.find(&key(2))), (Some(first), None));
    assert_eq!(flows.take_idle(half + IDLE), Some((key(1), 'a')));
    assert_eq!((flows.len(), flows.next()), (0, None));
}

#[test]
fn flows_that_end_early_leave_nothing() {
    let (mut flows, start) = (named(), Instant::now());
    flows.insert(key(0), 'a', start);
    for n in 1..10_000 {
        let id = answered(&mut flows, n, 'b', start);
        assert_eq!(flows.remove(id), Some((key(n), 'b')));
    }
    assert_eq!((flows.ids.len(), flows.holders.len(), flows.by_number.len()), (1, 1, 1));
    assert_eq!(flows.take_idle(start + IDLE), Some((key(0), 'a')));
    assert_eq!((flows.ids.len(), flows.holders.len(), flows.by_number.len()), (0, 0, 0));
}

#[test]
fn a_flow_that_was_ended_leaves_nothing() {
    let (mut flows, start) = (named(), Instant::now());
    let first = flows.insert(key(1), 'a', start);
    assert_eq!(flows.remove(first), Some((key(1), 'a')));
    flows.insert(key(1), 'b', start);
    assert_eq!(flows.remove(first), None, "a number of before is not the new flow's");
    assert_eq!(flows.take_idle(start + IDLE), Some((key(1), 'b')));
    assert_eq!(flows.take_idle(start + IDLE), None);
}

#[test]
fn of_the_answered_flows_the_one_that_was_idle_longest_gives_its_place() {
    let (mut flows, start) = (named(), Instant::now());
    let [first, second, third] = [1, 2, 3].map(|client| answered(&mut flows, client, 'a', start));
    let later = start + MOMENT;
    flows.using(first, later);
    let due = start + RECENT;
    for wanted in [Some(second), Some(third), None] {
        assert_eq!(flows.replaceable('a', due), wanted);
        wanted.and_then(|id| flows.remove(id));
    }
    assert_eq!(flows.replaceable('a', later + RECENT), Some(first));
}

#[test]
fn a_flow_without_an_answer_or_that_was_used_a_moment_ago_stays() {
    let (mut flows, start) = (named(), Instant::now());
    let asked = flows.insert(key(1), 'a', start);
    let recent = answered(&mut flows, 2, 'a', start);
    assert_eq!(flows.replaceable('a', start + RECENT / 2), None);
    assert_eq!(flows.replaceable('a', start + RECENT), Some(recent));
    flows.using(recent, start + RECENT);
    assert_eq!(flows.replaceable('a', start + RECENT), None);
    flows.remove(recent);
    assert_eq!(flows.replaceable('a', start + IDLE), None);
    flows.answered(asked, start + IDLE);
    assert_eq!(flows.replaceable('a', start + IDLE), None, "the answer is a use");
    assert_eq!(flows.replaceable('a', start + IDLE + RECENT), Some(asked));
}

#[test]
fn flows_that_last_are_the_last_choice() {
    let (mut flows, start) = (named(), Instant::now());
    let lasting = answered(&mut flows, 1, 'a', start);
    let brief = answered(&mut flows, 2, 'a', start);
    flows.using(brief, start + LASTING);
    let later = start + LASTING + MOMENT;
    flows.using(lasting, later);
    let newest = answered(&mut flows, 3, 'a', later + MOMENT);
    let due = later + MOMENT + RECENT;
    for id in [brief, newest, lasting] {
        assert_eq!(flows.replaceable('a', due), Some(id));
        flows.remove(id);
    }
    assert_eq!(flows.replaceable('a', due), None);
}

#[test]
fn a_service_gives_its_own_places_before_one_with_more_flows_does() {
    let (mut flows, start) = (named(), Instant::now());
    let [first, second] = [1, 2].map(|client| answered(&mut flows, client, 'a', start));
    answered(&mut flows, 3, 'b', start);
    let own = answered(&mut flows, 4, 'c', start + MOMENT);
    let due = start + MOMENT + RECENT;
    assert_eq!(flows.replaceable('c', due), Some(own));
    assert_eq!(flows.replaceable('d', due), Some(first), "of the one with the most");
    flows.using(own, due);
    assert_eq!(flows.replaceable('c', due), Some(first));
    flows.using(first, due);
    assert_eq!(flows.replaceable('c', due), Some(second));
    flows.using(second, due);
    assert_eq!(flows.replaceable('c', due), None, "'b' has no more than 'c'");
    assert_eq!(flows.replaceable('a', due), None, "'a' has the most");
}

#[test]
fn a_service_whose_flows_wait_for_answers_gives_no_place() {
    let (mut flows, start) = (named(), Instant::now());
    for client in 1..=5 {
        flows.insert(key(client), 'a', start);
    }
    let other = [6, 7].map(|client| answered(&mut flows, client, 'b', start))[0];
    assert_eq!(flows.replaceable('c', start + RECENT), Some(other), "the next one is asked");
    assert_eq!(flows.replaceable('a', start + RECENT), None, "it takes none of those with fewer");
}
