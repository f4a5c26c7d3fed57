//! Random histories of objects, results and changes of the server that probes.

use proptest::prelude::*;

use super::*;

/// A step of a random history.
#[derive(Debug, Clone)]
enum Action {
    Result(u8, bool),
    Slice(u8, Vec<u8>),
    Delete(u8),
    Service(u8),
    ServiceDeleted,
    Overwrite(u8),
    TakeOver,
    Pass(u8),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => (0_u8..6, any::<bool>()).prop_map(|(endpoint, passed)| Action::Result(endpoint, passed)),
        3 => (0_u8..3, proptest::collection::vec(0_u8..6, 0..5)).prop_map(|(name, all)| Action::Slice(name, all)),
        1 => (0_u8..3).prop_map(Action::Delete),
        2 => (0_u8..5).prop_map(Action::Service),
        1 => Just(Action::ServiceDeleted),
        1 => (0_u8..3).prop_map(Action::Overwrite),
        1 => Just(Action::TakeOver),
        2 => (0_u8..40).prop_map(Action::Pass),
    ]
}

const CHECKS: [&[(&str, &str)]; 5] = [
    &[("", "tcp"), ("-rise", "1"), ("-fall", "1")],
    &[("", "tcp"), ("-fail-open", "40%"), ("-slow-start", "20s")],
    &[("", "http /x"), ("-port", "8080"), ("-fail-open", "0%")],
    &[],
    &[("", "nonsense")],
];

fn perform(world: &mut World, action: Action) {
    match action {
        Action::Result(endpoint, passed) => {
            let numbers: Vec<u64> = world.plan.targets.keys().copied().collect();
            if let Some(number) = numbers.get(usize::from(endpoint)) {
                let outcome =
                    if passed { ProbeOutcome::Passed } else { ProbeOutcome::Failed(Failure::TimedOut) };
                world.plan.result(*number, &outcome, world.now);
            }
        }
        Action::Slice(name, all) => {
            let addresses: Vec<String> = all.iter().map(|last| format!("10.0.0.{last}")).collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            world.store(slice(&name.to_string(), &addresses));
        }
        Action::Delete(name) => {
            let key: Key = format!("shop/{name}").into();
            world.slices.remove(&key);
            world.plan.apply(Input::EndpointSliceDeleted(key), world.now);
        }
        Action::Service(check) => world.plan.apply(service(CHECKS[usize::from(check)]), world.now),
        Action::ServiceDeleted => world.plan.apply(Input::ServiceDeleted("shop/web".into()), world.now),
        Action::Overwrite(name) => {
            let name = format!("shop/{name}");
            if world.slices.contains_key(&*name) {
                world.edit(&name, |slice| slice["metadata"]["annotations"] = json!({}));
            }
        }
        Action::TakeOver => {
            world.plan.deactivate();
            world.plan.activate(world.now);
        }
        Action::Pass(seconds) => world.now += Duration::from_secs(seconds.into()),
    }
}

proptest! {
    /// After any history the counts are those of the targets, nothing is left to write, every slice has the conditions
    /// of its endpoints, and an open group has no endpoint that fails and is not ready.
    #[test]
    fn any_history_ends_in_sync(actions in proptest::collection::vec(action(), 0..80)) {
        let mut world = World::new(CHECKS[0]);
        for action in actions {
            perform(&mut world, action);
            world.settle();
            let mut counts = Counts::default();
            world.plan.targets.values().for_each(|target| counts.add(target.check.state()));
            prop_assert_eq!(world.plan.counts(), counts);
            prop_assert_eq!(world.plan.targets.len(), world.plan.numbers.len());
            let service = world.plan.services.get("shop/web");
            if let Some(service) = service {
                prop_assert_eq!(service.ipv4.counts, counts);
                prop_assert_eq!(world.plan.open_groups(), usize::from(service.ipv4.is_open));
                prop_assert!(!service.ipv4.counts.must_admit());
            } else {
                prop_assert_eq!(counts, Counts::default());
                prop_assert_eq!(world.plan.open_groups(), 0);
            }
            for key in world.slices.keys() {
                prop_assert_eq!(world.plan.write(key), None);
            }
        }
    }
}
