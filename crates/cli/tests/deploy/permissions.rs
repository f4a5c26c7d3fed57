//! The permissions that the binary requests, and those of the manifests.

use std::collections::BTreeSet;
use std::time::Duration;

use portolan_testkit::{Namespace, PortolanProcess};

use crate::files::{BINARY, of_kind, read, yaml};
use crate::recorder::{Recorder, TAINT};

/// API group, resource, verb.
type Permission = (String, String, String);

const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the permissions of the manifests' `ClusterRole`.
pub(crate) fn given(name: &str, text: &str) -> BTreeSet<Permission> {
    let objects = yaml(name, text);
    let rules = of_kind(&objects, "ClusterRole")["rules"].as_array().unwrap().clone();
    let words = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut permissions = BTreeSet::new();
    for rule in &rules {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    permissions.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    permissions
}

fn events(verb: &str) -> Permission {
    ("events.k8s.io".to_owned(), "events".to_owned(), verb.to_owned())
}

const BASE: &str = "deploy/kustomize/base/rbac.yaml";
const READINESS: &str = "deploy/kustomize/readiness/rbac.yaml";

/// The requests include lists because the recorder refuses to stream them, as old API servers do.
#[test]
fn the_role_allows_what_is_asked_for_and_nothing_else() {
    asks_for(&given("rbac.yaml", &read(BASE)), &[]);
}

#[test]
fn the_role_for_readiness_allows_what_it_asks_for_in_addition() {
    let mut all = given("rbac.yaml", &read(BASE));
    let more = given("readiness", &read(READINESS));
    assert!(all.is_disjoint(&more));
    all.extend(more);
    asks_for(&all, &["--readiness-taint", TAINT, "--readiness-condition", "ServicesUnavailable"]);
}

/// Checks that a proxy with these options makes exactly the requests that these permissions allow.
fn asks_for(given: &BTreeSet<Permission>, options: &[&str]) {
    // An Event is created at the start. A patch needs a repeated Event, which does not happen by itself.
    let expected: BTreeSet<Permission> =
        given.iter().filter(|permission| **permission != events("patch")).cloned().collect();
    let node = Namespace::new("recorded").unwrap();
    node.ip("link set lo up\n").unwrap();
    let recorder = Recorder::start(&node);
    let master = format!("http://{}", recorder.address());
    let arguments =
        ["proxy", "--master", &master, "--hostname-override", "node1", "--proxy-mode", "nftables"];
    let arguments = [&arguments[..], options].concat();
    let mut proxy = PortolanProcess::start(&node, BINARY.as_ref(), &arguments).unwrap();
    let outcome = proxy.wait_until(PATIENCE, "every permission is used", || {
        let asked = recorder.permissions();
        asked.is_superset(&expected) || !asked.is_subset(given)
    });
    let asked = recorder.permissions();
    let missing: Vec<_> = asked.difference(given).collect();
    let unused: Vec<_> = expected.difference(&asked).collect();
    assert!(missing.is_empty() && unused.is_empty(), "not given: {missing:?}, not used: {unused:?}");
    outcome.unwrap();
}
