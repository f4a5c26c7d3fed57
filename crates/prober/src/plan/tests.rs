use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::check::CheckState;
use crate::object::MARKER;
use crate::probe::Failure;
use crate::testing::{patched, service, slice};

mod histories;

const NOW: Duration = Duration::ZERO;

/// A plan with an API server: writes are applied as JSON patches, and come back as observations.
struct World {
    plan: Plan,
    slices: BTreeMap<Key, Value>,
    version: u64,
    now: Duration,
    reports: Vec<String>,
}

impl World {
    /// Returns an active plan with a Service and its annotations.
    fn new(annotations: &[(&str, &str)]) -> Self {
        let plan = Plan::new(false);
        let mut world = Self { plan, slices: BTreeMap::new(), version: 0, now: NOW, reports: Vec::new() };
        world.plan.activate(NOW);
        world.plan.apply(service(annotations), NOW);
        world
    }

    /// Stores a slice as a person would.
    fn store(&mut self, mut slice: Value) {
        self.version += 1;
        slice["metadata"]["resourceVersion"] = self.version.to_string().into();
        let input: EndpointSlice = serde_json::from_value(slice.clone()).unwrap();
        self.slices.insert(input.metadata.key(), slice);
        self.plan.apply(Input::EndpointSlice(Box::new(input)), self.now);
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut slice = self.slices[name].clone();
        edit(&mut slice);
        self.store(slice);
    }

    /// Settles, and writes what the plan asks for. Returns the names of the slices that were written.
    fn settle(&mut self) -> Vec<String> {
        self.plan.settle();
        let changes = self.plan.take_changes();
        self.reports.extend(changes.reports.iter().map(|it| format!("{}: {}", it.reason, it.note)));
        let mut written = Vec::new();
        for key in changes.slices {
            let Some(write) = self.plan.write(&key) else { continue };
            let stored = &self.slices[&key];
            assert_eq!(stored["metadata"]["resourceVersion"], *write.resource_version);
            self.version += 1;
            let version = self.version.to_string();
            let mut new = patched(stored, &write.json_patch());
            new["metadata"]["resourceVersion"] = version.clone().into();
            self.slices.insert(key.clone(), new.clone());
            self.plan.written(&write, &version);
            assert_eq!(self.plan.write(&key), None, "a write is complete");
            let seen: EndpointSlice = serde_json::from_value(new).unwrap();
            self.plan.apply(Input::EndpointSlice(Box::new(seen)), self.now);
            assert_eq!(self.plan.write(&key), None, "the plan knew what the write would give");
            written.push(write.key.to_string());
        }
        written
    }

    /// Applies the result of a probe of an endpoint at port 80 or another one.
    fn result(&mut self, address: &str, passed: bool) {
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:80") };
        let number = self.plan.numbers[&("shop/web".into(), address.parse().unwrap())];
        let outcome = if passed { ProbeOutcome::Passed } else { ProbeOutcome::Failed(Failure::Refused) };
        self.plan.result(number, &outcome, self.now);
    }

    /// Returns address, ready and serving of each endpoint: `+`, `-`, or `.` if absent.
    fn shown(&self, name: &str) -> String {
        let sign = |value: &Value| match value.as_bool() {
            Some(true) => '+',
            Some(false) => '-',
            None => '.',
        };
        let endpoint = |endpoint: &Value| {
            let conditions = &endpoint["conditions"];
            let address = endpoint["addresses"][0].as_str().unwrap();
            format!(
                "{}{}{}",
                address.rsplit('.').next().unwrap(),
                sign(&conditions["ready"]),
                sign(&conditions["serving"])
            )
        };
        let endpoints = self.slices[name]["endpoints"].as_array().unwrap();
        endpoints.iter().map(endpoint).collect::<Vec<_>>().join(" ")
    }

    fn reasons(&mut self) -> Vec<String> {
        let reports = std::mem::take(&mut self.reports);
        reports.iter().map(|report| report.split(':').next().unwrap().to_owned()).collect()
    }
}

#[test]
fn a_new_endpoint_is_not_ready_before_its_first_answer() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    assert_eq!(world.settle(), ["shop/a"]);
    assert_eq!(world.shown("shop/a"), "1-- 2--");
    assert_eq!(world.slices["shop/a"]["metadata"]["annotations"][MARKER], "true");
    world.result("10.0.0.1", true);
    assert_eq!(world.settle(), ["shop/a"]);
    assert_eq!(world.shown("shop/a"), "1++ 2--");
    assert_eq!(world.reasons(), ["EndpointHealthy"]);
    world.result("10.0.0.2", false);
    assert_eq!(world.settle(), [""; 0], "it was not ready before");
    assert_eq!(world.reasons(), ["EndpointUnhealthy"]);
}

#[test]
fn conditions_are_written_only_on_a_change_and_nothing_else_is_touched() {
    let mut world = World::new(&[("", "tcp")]);
    let mut made = slice("a", &["10.0.0.1"]);
    made["endpoints"][0]["zone"] = "z".into();
    made["endpoints"][0]["conditions"] = json!({"terminating": false});
    made["metadata"]["annotations"] = json!({"who": "me"});
    world.store(made);
    world.settle();
    let mut written = 0;
    for result in [true, true, true, false, false, true, false, false, false, false, true, false, true, true]
    {
        world.result("10.0.0.1", result);
        written += world.settle().len();
    }
    assert_eq!(written, 3, "the first answer, the fall and the rise");
    let stored = &world.slices["shop/a"];
    assert_eq!(stored["endpoints"][0]["zone"], "z");
    assert_eq!(
        stored["endpoints"][0]["conditions"],
        json!({"terminating": false, "ready": true, "serving": true})
    );
    assert_eq!(stored["metadata"]["annotations"], json!({"who": "me", MARKER: "true"}));
}

#[test]
fn the_patch_names_single_fields() {
    let mut world = World::new(&[("", "tcp")]);
    let mut made = slice("a", &["10.0.0.1", "10.0.0.2"]);
    made["endpoints"][1]["conditions"] = json!({"ready": true});
    world.store(made);
    world.plan.settle();
    let write = world.plan.write(&"shop/a".into()).unwrap();
    insta::assert_snapshot!(write.json_patch(), @r##"[{"op":"replace","path":"/metadata/resourceVersion","value":"1"},{"op":"add","path":"/metadata/annotations","value":{"portolan.dev/health-checked":"true"}},{"op":"add","path":"/endpoints/0/conditions","value":{"ready":false,"serving":false}},{"op":"add","path":"/endpoints/1/conditions/ready","value":false},{"op":"add","path":"/endpoints/1/conditions/serving","value":false}]"##);
}

#[test]
fn slices_of_controllers_and_of_other_services_are_left_alone() {
    let mut world = World::new(&[("", "tcp")]);
    let mut managed = slice("managed", &["10.0.0.1"]);
    managed["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] =
        "endpointslice-controller.k8s.io".into();
    let mut other = slice("other", &["10.0.0.1"]);
    other["metadata"]["labels"]["kubernetes.io/service-name"] = "other".into();
    world.store(managed);
    world.store(other);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.plan.counts(), Counts::default());
}

#[test]
fn an_endpoint_in_two_slices_is_probed_once() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.store(slice("b", &["10.0.0.1", "10.0.0.2"]));
    world.plan.settle();
    assert_eq!(world.plan.take_changes().started.len(), 2);
    world.result("10.0.0.1", true);
    assert_eq!(world.settle(), ["shop/a", "shop/b"]);
    world.plan.apply(Input::EndpointSliceDeleted("shop/b".into()), NOW);
    assert_eq!(world.plan.take_changes().stopped.len(), 1);
    assert_eq!(world.plan.counts(), Counts { passing: 1, ..Counts::default() });
    world.plan.apply(Input::EndpointSlices(vec![]), NOW);
    assert_eq!(world.plan.take_changes().stopped.len(), 1);
    assert!(
        world.plan.targets.is_empty() && world.plan.numbers.is_empty() && world.plan.slices_of.is_empty()
    );
}

#[test]
fn adding_a_check_takes_no_endpoint_away_before_its_first_result() {
    let mut world = World::new(&[]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    assert_eq!(world.settle(), [""; 0]);
    world.plan.apply(service(&[("", "tcp"), ("-slow-start", "1m")]), NOW);
    assert_eq!(world.settle(), [""; 0]);
    world.result("10.0.0.1", true);
    world.settle();
    world.result("10.0.0.2", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2--");
}

#[test]
fn removing_the_check_removes_the_conditions() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.settle();
    world.plan.apply(service(&[]), NOW);
    assert_eq!(world.settle(), ["shop/a"]);
    assert_eq!(world.shown("shop/a"), "1..");
    assert_eq!(world.slices["shop/a"]["metadata"]["annotations"], json!({}));
    assert_eq!(world.settle(), [""; 0]);
}

#[test]
fn invalid_annotations_keep_the_last_valid_check_and_are_reported_once() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.result("10.0.0.1", true);
    world.settle();
    world.reasons();
    world.plan.apply(service(&[("", "udp")]), NOW);
    world.plan.apply(service(&[("", "udp")]), NOW);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.reasons(), ["InvalidHealthCheck"]);
    (0..3).for_each(|_| world.result("10.0.0.1", false));
    world.settle();
    assert_eq!(world.shown("shop/a"), "1--");
    // A server that takes over knows no valid check: it changes nothing.
    world.plan.deactivate();
    world.plan.apply(Input::Services(vec![]), NOW);
    world.plan.apply(service(&[("", "udp")]), NOW);
    world.plan.activate(NOW);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.shown("shop/a"), "1--");
    assert!(world.reports.iter().any(|report| report.starts_with("InvalidHealthCheck")));
}

#[test]
fn another_port_or_path_keeps_the_states() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    world.result("10.0.0.1", true);
    world.result("10.0.0.2", false);
    world.settle();
    world.plan.apply(service(&[("", "http /ok"), ("-port", "8080"), ("-interval", "1m")]), NOW);
    assert_eq!(world.settle(), [""; 0]);
    world.result("10.0.0.1:8080", false);
    assert_eq!(world.settle(), [""; 0], "one failure is less than a fall");
    assert_eq!(world.plan.counts(), Counts { passing: 1, failing: 1, ..Counts::default() });
}

#[test]
fn another_interval_schedules_again() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    let first = world.plan.take_changes().started;
    assert_eq!((first[0].interval, first[0].soon), (Duration::from_secs(5), true));
    world.plan.apply(service(&[("", "tcp"), ("-interval", "1m")]), NOW);
    let again = world.plan.take_changes().started;
    assert_eq!(
        (again[0].endpoint, again[0].interval, again[0].soon),
        (first[0].endpoint, Duration::from_secs(60), true),
        "it has no result yet"
    );
    world.result("10.0.0.1", true);
    world.plan.take_changes();
    world.plan.apply(service(&[("", "tcp"), ("-interval", "2m")]), NOW);
    assert!(!world.plan.take_changes().started[0].soon);
}

#[test]
fn a_slice_without_the_port_is_reported_and_left_alone() {
    let mut world = World::new(&[("", "tcp"), ("-port", "admin")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.reasons(), ["HealthCheckLacksPort"]);
}

#[test]
fn endpoints_serve_until_their_first_result_when_the_port_of_the_check_is_corrected() {
    let mut world = World::new(&[("", "tcp"), ("-port", "admin"), ("-interval", "5m")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.settle();
    world.plan.apply(service(&[("", "tcp"), ("-interval", "5m")]), NOW);
    let started = world.plan.take_changes().started;
    assert!(started.last().is_some_and(|last| last.soon), "{started:?}");
    world.plan.changes.slices.extend(["shop/a".into()]);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1..", "its conditions stay");
    world.result("10.0.0.1", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1--");
}

#[test]
fn a_complete_list_replaces_newer_slices() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    world.settle();
    let mut older = slice("a", &["10.0.0.1"]);
    older["metadata"]["resourceVersion"] = "0".into();
    let older: EndpointSlice = serde_json::from_value(older).unwrap();
    world.plan.apply(Input::EndpointSlice(Box::new(older.clone())), NOW);
    assert_eq!(world.plan.counts().undecided, 2, "a watch that lags");
    world.plan.apply(Input::EndpointSlices(vec![older]), NOW);
    assert_eq!(world.plan.counts().undecided, 1, "the store was restored");
}

#[test]
fn fail_open_serves_all_when_too_few_are_healthy() {
    let mut world = World::new(&[("", "tcp"), ("-fail-open", "50%"), ("-fall", "1"), ("-rise", "1")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    world.settle();
    world.result("10.0.0.1", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1-- 2-- 3--", "the others have no result");
    world.result("10.0.0.2", true);
    world.result("10.0.0.3", true);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1-- 2++ 3++");
    world.reasons();
    world.result("10.0.0.2", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1+- 2+- 3++", "serving shows what fails");
    assert_eq!(world.reasons(), ["EndpointUnhealthy", "HealthCheckFailOpen"]);
    assert_eq!(world.plan.open_groups(), 1);
    world.edit("shop/a", |slice| {
        slice["endpoints"].as_array_mut().unwrap().push(json!({"addresses": ["10.0.0.4"]}));
    });
    world.settle();
    assert_eq!(world.shown("shop/a"), "1+- 2+- 3++ 4--", "a new endpoint closes nothing before its result");
    world.result("10.0.0.4", true);
    world.result("10.0.0.1", true);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2-- 3++ 4++");
    assert_eq!(world.reasons().last().unwrap(), "HealthCheckFailOpenEnded");
    assert_eq!(world.plan.open_groups(), 0);
}

#[test]
fn without_fail_open_all_may_be_unready() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.result("10.0.0.1", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1--");
}

#[test]
fn slow_start_holds_back_only_while_another_endpoint_serves() {
    let mut world = World::new(&[("", "tcp"), ("-slow-start", "30s"), ("-rise", "1"), ("-fall", "1")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    world.result("10.0.0.1", true);
    world.result("10.0.0.2", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2--", "it is the only one");
    world.result("10.0.0.2", true);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2-+");
    world.now = Duration::from_secs(30);
    world.result("10.0.0.2", true);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2++");
    for (endpoint, passed) in [("10.0.0.2", false), ("10.0.0.2", true), ("10.0.0.1", false)] {
        world.result(endpoint, passed);
    }
    world.settle();
    assert_eq!(world.shown("shop/a"), "1-- 2++", "slow start ends if nothing else serves");
}

#[test]
fn terminating_endpoints_are_not_ready_and_published_ones_are() {
    let mut world = World::new(&[("", "tcp")]);
    let mut made = slice("a", &["10.0.0.1", "10.0.0.2"]);
    made["endpoints"][0]["conditions"] = json!({"terminating": true});
    world.store(made);
    world.result("10.0.0.1", true);
    world.result("10.0.0.2", false);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1-+ 2--");
    let Input::Service(mut all) = service(&[("", "tcp")]) else { panic!() };
    all.spec.publish_not_ready_addresses = true;
    world.plan.apply(Input::Service(all), NOW);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2+-");
}

#[test]
fn a_server_that_takes_over_writes_nothing_before_it_has_results() {
    let mut world = World::new(&[("", "tcp"), ("-fail-open", "0%"), ("-slow-start", "1m"), ("-fall", "1")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    world.result("10.0.0.1", true);
    world.result("10.0.0.2", false);
    world.settle();
    world.store(slice("a", &["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    world.result("10.0.0.3", true);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++ 2-- 3-+");
    let before = world.plan.targets.values().map(|target| (target.address, target.check.state()));
    let before: BTreeMap<SocketAddr, CheckState> = before.collect();
    world.plan.deactivate();
    assert_eq!(world.settle(), [""; 0]);
    assert!(world.plan.probe(0).is_none() && world.plan.counts() == Counts::default());
    world.now = Duration::from_secs(5);
    world.plan.activate(world.now);
    assert_eq!(world.settle(), [""; 0]);
    let after = world.plan.targets.values().map(|target| (target.address, target.check.state()));
    let mut after: BTreeMap<SocketAddr, CheckState> = after.collect();
    let third = "10.0.0.3:80".parse().unwrap();
    assert_eq!(
        after.insert(third, before[&third]),
        Some(CheckState::Warming { until: Duration::from_secs(65) })
    );
    assert_eq!(after, before);
    // And with a group that is open.
    for endpoint in ["10.0.0.1", "10.0.0.3"] {
        world.result(endpoint, false);
    }
    world.settle();
    assert_eq!(world.shown("shop/a"), "1+- 2+- 3+-");
    world.plan.deactivate();
    world.plan.activate(world.now);
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.plan.counts().failing, 3);
}

#[test]
fn what_a_person_overwrites_is_written_again() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.result("10.0.0.1", false);
    world.settle();
    world.store(slice("a", &["10.0.0.1"]));
    assert_eq!(world.settle(), ["shop/a"]);
    assert_eq!(world.shown("shop/a"), "1--");
}

#[test]
fn a_result_after_a_client_wrote_the_one_before_it_is_no_repeat() {
    let mut world = World::new(&[("", "tcp"), ("-rise", "1"), ("-fall", "1")]);
    world.store(slice("a", &["10.0.0.1"]));
    world.result("10.0.0.1", true);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++");
    let unready = |slice: &mut Value| {
        slice["endpoints"][0]["conditions"] = json!({"ready": false, "serving": false});
    };
    world.result("10.0.0.1", false);
    world.edit("shop/a", unready);
    assert_eq!(world.settle(), [""; 0]);
    world.result("10.0.0.1", true);
    world.plan.settle();
    assert!(!world.plan.write(&"shop/a".into()).unwrap().is_repeat);
    world.settle();
    assert_eq!(world.shown("shop/a"), "1++");
    // Another client's change of what this result gave is one.
    world.edit("shop/a", unready);
    assert!(world.plan.write(&"shop/a".into()).unwrap().is_repeat);
}

#[test]
fn an_older_version_of_a_slice_is_ignored_unless_it_is_another_object() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1"]));
    let old = world.slices["shop/a"].clone();
    world.settle();
    let apply = |world: &mut World, slice: &Value| {
        let slice = serde_json::from_value(slice.clone()).unwrap();
        world.plan.apply(Input::EndpointSlice(Box::new(slice)), NOW);
        world.plan.write(&"shop/a".into()).is_some()
    };
    assert!(!apply(&mut world, &old));
    let mut other = old;
    other["metadata"]["uid"] = "new".into();
    assert!(apply(&mut world, &other));
}

#[test]
fn a_result_that_this_node_could_not_get_decides_nothing() {
    let mut world = World::new(&[("", "tcp"), ("-fall", "1")]);
    world.store(slice("a", &["10.0.0.1"]));
    assert_eq!(world.plan.result(0, &ProbeOutcome::Unable("too many open files".to_owned()), NOW), None);
    assert_eq!(world.plan.result(99, &ProbeOutcome::Passed, NOW), None);
    assert_eq!(world.plan.counts(), Counts { undecided: 1, ..Counts::default() });
}

#[test]
fn an_endpoint_that_cannot_be_probed_for_three_intervals_is_reported_once() {
    let mut world = World::new(&[("", "tcp")]);
    world.store(slice("a", &["10.0.0.1", "10.0.0.2"]));
    world.settle();
    let number = world.plan.numbers[&("shop/web".into(), "10.0.0.1:80".parse().unwrap())];
    let unable = ProbeOutcome::Unable("Permission denied".to_owned());
    let unable = |world: &mut World, times: usize| {
        for _ in 0..times {
            assert_eq!(world.plan.result(number, &unable, NOW), None, "it decides nothing");
        }
        world.settle();
        std::mem::take(&mut world.reports)
    };
    assert_eq!(unable(&mut world, 2), Vec::<String>::new());
    let reports = unable(&mut world, 1);
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert!(report.starts_with("EndpointNotProbed: "), "{report}");
    assert!(report.contains("10.0.0.1:80") && report.contains("Permission denied"), "{report}");
    assert_eq!(unable(&mut world, 100), Vec::<String>::new());
    world.result("10.0.0.1", true);
    world.settle();
    assert_eq!(world.reasons(), ["EndpointHealthy"]);
    assert_eq!(unable(&mut world, 2), Vec::<String>::new(), "they were not in a row");
    assert_eq!(unable(&mut world, 1).len(), 1);
}
