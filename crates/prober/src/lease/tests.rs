use proptest::prelude::*;

use super::*;

const STEP: Duration = Duration::from_millis(50);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn held(holder: &str, version: u64) -> Held {
    Held {
        holder: holder.to_owned(),
        duration: DURATION,
        transitions: 4,
        resource_version: version.to_string(),
    }
}

fn claim(step: Step) -> Claim {
    let Step::Write(claim) = step else { panic!("{step:?}") };
    claim
}

/// Returns an election that has read a Lease without holder at the beginning, and has taken it with this version.
fn taken(found: Option<Held>, version: &str) -> Election {
    let mut it = Election::new("a".to_owned(), Duration::ZERO);
    it.next(Duration::ZERO);
    it.read(Duration::ZERO, Ok(found));
    let take = claim(it.next(Duration::ZERO));
    it.wrote(&take, Duration::ZERO, Duration::ZERO, Ok(version.to_owned()));
    it
}

/// Returns an election that created the Lease at the beginning, and its renewal two seconds later.
fn renewing() -> (Election, Claim) {
    let mut it = taken(None, "1");
    let renew = claim(it.next(seconds(2)));
    (it, renew)
}

#[test]
fn a_lease_that_does_not_exist_is_created_and_renewed() {
    let mut it = Election::new("a".to_owned(), Duration::ZERO);
    assert_eq!(it.next(Duration::ZERO), Step::Read);
    assert_eq!(it.next(Duration::ZERO), Step::Wait(Duration::MAX), "one request at a time");
    it.read(seconds(1), Ok(None));
    let create = claim(it.next(seconds(1)));
    assert_eq!((create.resource_version.as_deref(), create.is_new), (None, true));
    assert!(!it.leads(seconds(1)));
    it.wrote(&create, seconds(1), seconds(2), Ok("1".to_owned()));
    assert!(it.leads(seconds(2)));
    assert_eq!(it.next(seconds(2)), Step::Wait(seconds(3)));
    let renew = claim(it.next(seconds(3)));
    assert_eq!((renew.resource_version.as_deref(), renew.is_new, renew.transitions), (Some("1"), false, 0));
    it.wrote(&renew, seconds(3), seconds(3), Ok("2".to_owned()));
    assert!(it.leads(seconds(6)) && !it.leads(seconds(7)), "from the beginning of the renewal");
}

#[test]
fn a_holder_that_cannot_renew_stops_at_the_deadline() {
    let (mut it, renew) = renewing();
    it.wrote(&renew, seconds(2), seconds(3), Err(WriteError::Failed("no route".to_owned())));
    assert_eq!(it.next(seconds(3)), Step::Wait(seconds(3) + AFTER_FAILURE));
    assert_eq!(it.next(seconds(3) + AFTER_FAILURE), Step::Read, "the renewal may have been applied");
    assert_eq!(it.next(seconds(3) + AFTER_FAILURE), Step::Wait(DEADLINE));
    assert!(!it.leads(DEADLINE));
    it.read(seconds(5), Ok(Some(held("a", 2))));
    let renew = claim(it.next(seconds(5)));
    assert_eq!(renew.resource_version.as_deref(), Some("2"));
    it.wrote(&renew, seconds(5), seconds(5), Ok("3".to_owned()));
    assert!(it.leads(seconds(5)));
}

#[test]
fn a_lease_that_another_client_annotates_stays_with_its_holder() {
    let (mut it, renew) = renewing();
    it.wrote(&renew, seconds(2), seconds(2), Err(WriteError::Conflict));
    assert_eq!(it.next(seconds(2)), Step::Read);
    it.read(seconds(2), Ok(Some(held("a", 9))));
    assert!(it.leads(seconds(2)));
    assert_eq!(claim(it.next(seconds(2))).resource_version.as_deref(), Some("9"));
}

#[test]
fn a_version_that_stays_unchanged_for_its_duration_is_taken_over() {
    let mut it = Election::new("b".to_owned(), Duration::ZERO);
    for second in 0..6 {
        assert_eq!(it.next(seconds(second)), Step::Read);
        it.read(seconds(second), Ok(Some(held("a", 7))));
        assert_eq!(it.next(seconds(second)), Step::Wait(seconds(second + 1)));
    }
    assert_eq!(it.next(seconds(6)), Step::Read);
    it.read(seconds(6), Ok(Some(held("a", 7))));
    let take = claim(it.next(seconds(6)));
    assert_eq!((take.transitions, take.is_new, take.resource_version.as_deref()), (5, true, Some("7")));
    it.wrote(&take, seconds(6), seconds(6), Err(WriteError::Conflict));
    assert!(!it.leads(seconds(6)), "the holder renewed at the same time");
}

#[test]
fn a_deleted_lease_is_created_by_its_holder_first() {
    let mut other = Election::new("b".to_owned(), Duration::ZERO);
    other.next(Duration::ZERO);
    other.read(Duration::ZERO, Ok(Some(held("a", 7))));
    for second in 1..7 {
        assert_eq!(other.next(seconds(second)), Step::Read);
        other.read(seconds(second), Ok(None));
    }
    assert_eq!(other.next(seconds(7)), Step::Read);
    other.read(seconds(7), Ok(None));
    assert_eq!(claim(other.next(seconds(7))).resource_version, None);
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut it = taken(Some(held("", 7)), "8");
    assert!(it.leads(Duration::ZERO));
    let release = it.release().unwrap();
    assert_eq!((release.holder.as_str(), release.resource_version.as_deref()), ("", Some("8")));
    assert!(!it.leads(Duration::ZERO) && it.release().is_none());
}

#[test]
fn objects_are_read_and_written() {
    let take = Claim {
        holder: "b".to_owned(),
        transitions: 5,
        is_new: true,
        resource_version: Some("7".to_owned()),
    };
    let now = "2026-03-01T10:00:00.000000Z";
    insta::assert_snapshot!(take.merge_patch(now), @r##"{"metadata":{"resourceVersion":"7"},"spec":{"acquireTime":"2026-03-01T10:00:00.000000Z","holderIdentity":"b","leaseDurationSeconds":6,"leaseTransitions":5,"renewTime":"2026-03-01T10:00:00.000000Z"}}"##);
    let mut lease = Claim { is_new: false, ..take }.lease(now);
    insta::assert_snapshot!(lease, @r##"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"portolan-prober","namespace":"kube-system"},"spec":{"holderIdentity":"b","leaseDurationSeconds":6,"leaseTransitions":5,"renewTime":"2026-03-01T10:00:00.000000Z"}}"##);
    lease["metadata"]["resourceVersion"] = "9".into();
    let read =
        Held { holder: "b".to_owned(), duration: DURATION, transitions: 5, resource_version: "9".to_owned() };
    assert_eq!(Held::of(&lease), read);
    assert_eq!(Held::of(&json!({})).holder, "");
}

/// A server of the simulation, with its request that is under way.
struct Server {
    election: Election,
    request: Option<Request>,
    is_dead: bool,
    /// No request of the server reaches the store before this step.
    cut_off_until: u32,
}

/// A request that the store applies at one time and answers at another.
struct Request {
    step: Step,
    begun: u32,
    applied: u32,
    answered: u32,
    /// True if the request never reaches the store.
    is_lost: bool,
    /// True if its answer never reaches the server.
    fails: bool,
    answer: Option<Result<Answer, WriteError>>,
}

enum Answer {
    Read(Option<Held>),
    Wrote(String),
}

/// The stored Lease.
#[derive(Default)]
struct Stored {
    lease: Option<Held>,
    version: u64,
}

impl Stored {
    fn apply(&mut self, step: &Step) -> Result<Answer, WriteError> {
        let Step::Write(claim) = step else { return Ok(Answer::Read(self.lease.clone())) };
        if claim.resource_version != self.lease.as_ref().map(|lease| lease.resource_version.clone()) {
            return Err(WriteError::Conflict);
        }
        self.version += 1;
        let resource_version = self.version.to_string();
        let (holder, transitions) = (claim.holder.clone(), claim.transitions);
        self.lease = Some(Held {
            holder,
            duration: DURATION,
            transitions,
            resource_version: resource_version.clone(),
        });
        Ok(Answer::Wrote(resource_version))
    }
}

impl Server {
    fn new(name: u32) -> Self {
        Self {
            election: Election::new(name.to_string(), Duration::ZERO),
            request: None,
            is_dead: false,
            cut_off_until: 0,
        }
    }

    /// Advances by one step. `chance` returns a random number below its argument.
    fn step(&mut self, tick: u32, stored: &mut Stored, failures: u32, chance: &mut impl FnMut(u32) -> u32) {
        let now = STEP * tick;
        if let Some(mut request) = self.request.take() {
            if tick >= request.applied && request.answer.is_none() && !request.is_lost {
                request.answer = Some(stored.apply(&request.step));
            }
            if tick < request.answered {
                self.request = Some(request);
                return;
            }
            let answer = request.answer.filter(|_| !request.fails);
            let answer = answer.unwrap_or_else(|| Err(WriteError::Failed("lost".to_owned())));
            match (request.step, answer) {
                (Step::Write(claim), Ok(Answer::Wrote(version))) => {
                    self.election.wrote(&claim, STEP * request.begun, now, Ok(version));
                }
                (Step::Write(claim), Err(error)) => {
                    self.election.wrote(&claim, STEP * request.begun, now, Err(error));
                }
                (_, Ok(Answer::Read(held))) => self.election.read(now, Ok(held)),
                (_, _) => self.election.read(now, Err(WriteError::Failed("lost".to_owned()))),
            }
        }
        if self.is_dead {
            return;
        }
        let step = self.election.next(now);
        if !matches!(step, Step::Wait(_)) {
            let applied = tick + chance(4);
            let answered = applied + chance(4);
            // Some requests are lost, some answers are lost although the write was applied, and some hang.
            let is_cut_off = tick < self.cut_off_until;
            let fails = is_cut_off || chance(100) < failures;
            let is_lost = is_cut_off || (fails && chance(2) == 0);
            let answered = if fails { answered + chance(100) } else { answered };
            self.request =
                Some(Request { step, begun: tick, applied, answered, is_lost, fails, answer: None });
        }
    }
}

fn random(seed: u64) -> impl FnMut(u32) -> u32 {
    let mut state = seed;
    move |below| {
        // Splitmix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(below)).unwrap()
    }
}

proptest! {
    /// With requests that take time, fail or hang, never two servers lead.
    #[test]
    fn never_two_servers_lead(
        seed in any::<u64>(),
        count in 2_u32..5,
        failures in prop_oneof![1 => Just(0), 3 => 1_u32..60],
    ) {
        let mut chance = random(seed);
        let mut stored = Stored::default();
        let mut servers: Vec<Server> = (0..count).map(Server::new).collect();
        let mut has_led = false;
        for tick in 0..1200 {
            for server in &mut servers {
                // A server stops for a while, as on a busy machine.
                if failures > 0 && chance(300) == 0 {
                    server.cut_off_until = tick + chance(400);
                }
                if chance(200) > 0 {
                    server.step(tick, &mut stored, failures, &mut chance);
                }
            }
            let leaders = servers.iter().filter(|server| server.election.leads(STEP * tick)).count();
            prop_assert!(leaders <= 1);
            has_led |= leaders == 1;
        }
        // Servers that are cut off for long may not get to lead at all.
        prop_assert!(has_led || failures > 0);
    }

    /// Another server leads within 10 s of the leader's death, wherever the leader's requests are then.
    #[test]
    fn a_dead_leader_is_replaced_within_10_s(seed in any::<u64>(), count in 2_u32..5, death in 60_u32..300) {
        let mut chance = random(seed);
        let mut stored = Stored::default();
        let mut servers: Vec<Server> = (0..count).map(Server::new).collect();
        for tick in 0..death {
            for server in &mut servers {
                server.step(tick, &mut stored, 0, &mut chance);
            }
        }
        let leader = servers.iter().position(|server| server.election.leads(STEP * death));
        let leader = leader.expect("one leads");
        servers[leader].is_dead = true;
        let within = death + u32::try_from(seconds(10).as_millis() / STEP.as_millis()).unwrap();
        let mut replaced = None;
        for tick in death..=within {
            for server in &mut servers {
                server.step(tick, &mut stored, 0, &mut chance);
            }
            let leads = |(index, server): (usize, &Server)| index != leader && server.election.leads(STEP * tick);
            replaced = replaced.or(servers.iter().enumerate().any(leads).then_some(tick));
        }
        prop_assert!(replaced.is_some());
    }
}
