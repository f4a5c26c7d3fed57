use super::*;

fn gates(values: &[(&str, bool)]) -> Result<FeatureGates, Vec<(String, GateError)>> {
    FeatureGates::from_map(&values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
}

fn stage_of(name: &str) -> Option<(Stage, bool)> {
    FeatureGates::default().iter().find(|gate| gate.0 == name).map(|gate| (gate.1, gate.2))
}

#[test]
fn no_gate_is_listed_twice() {
    let listed: usize = known::GROUPS.iter().map(|group| group.names.len()).sum();
    assert_eq!(FeatureGates::default().iter().count(), listed + 2);
    for group in known::GROUPS {
        assert!(group.names.is_sorted_by_key(|name| name.as_bytes()), "{:?}", group.names.first());
    }
}

#[test]
fn the_gates_that_matter_to_a_node_have_their_stages() {
    let table = [
        ("AllowServiceExternalIPs", Stage::Ga, true),
        ("PreferSameTrafficDistribution", Stage::Ga, true),
        ("MultiCIDRServiceAllocator", Stage::Ga, true),
        ("NFTablesProxyMode", Stage::Ga, true),
        ("ComponentFlagz", Stage::Beta, true),
        ("ComponentStatusz", Stage::Beta, true),
        ("NativeHistograms", Stage::Alpha, false),
        ("ContextualLogging", Stage::Beta, true),
        ("LoggingAlphaOptions", Stage::Alpha, false),
        ("LoggingBetaOptions", Stage::Beta, true),
        ("WatchListClient", Stage::Beta, true),
        ("InOrderInformers", Stage::Ga, true),
        ("ClientsAllowCBOR", Stage::Alpha, false),
        ("AllAlpha", Stage::Alpha, false),
        ("AllBeta", Stage::Beta, false),
    ];
    for (name, stage, enabled) in table {
        assert_eq!(stage_of(name), Some((stage, enabled)), "{name}");
    }
}

#[test]
fn alpha_gates_are_off_and_ga_gates_on() {
    for (name, stage, enabled) in FeatureGates::default().iter() {
        match stage {
            Stage::Alpha => assert!(!enabled, "{name}"),
            Stage::Ga => assert!(enabled, "{name}"),
            Stage::Beta | Stage::Deprecated => {}
        }
    }
}

#[test]
fn gates_that_are_set_are_enabled_or_disabled() {
    let set = gates(&[("AllowServiceExternalIPs", false), ("NativeHistograms", true)]).expect("known gates");
    assert!(!set.enabled("AllowServiceExternalIPs"));
    assert!(set.enabled("NativeHistograms"));
    assert!(set.enabled("NFTablesProxyMode"));
    assert!(!set.enabled("NoSuchGate"));
    let needless: Vec<_> = set.needless().collect();
    assert_eq!(needless, [("AllowServiceExternalIPs", Stage::Ga)]);
}

#[test]
fn every_error_is_reported_with_its_fix() {
    let errors = gates(&[
        ("NFTablesProxyMode", false),
        ("ComponentFlags", true),
        ("SomethingElseEntirely", true),
        ("WinDSR", true),
    ])
    .expect_err("three mistakes");
    let reported: Vec<String> = errors.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    insta::assert_snapshot!(reported.join("\n"), @r"
    ComponentFlags: unrecognized feature gate; did you mean `ComponentFlagz`?
    NFTablesProxyMode: cannot be set to false: it is locked to true; leave it out
    SomethingElseEntirely: unrecognized feature gate; Kubernetes 1.36 has none of that name: leave it out
    ");
}

#[test]
fn all_alpha_and_all_beta_do_not_change_named_gates() {
    let set = gates(&[("AllAlpha", true), ("NativeHistograms", false)]).expect("known gates");
    assert!(set.enabled("LoggingAlphaOptions") && set.enabled("AllAlpha"));
    assert!(!set.enabled("NativeHistograms"));
    assert!(!set.enabled("SELinuxMount"), "a beta gate");
    let set = gates(&[("AllBeta", false), ("ComponentFlagz", true)]).expect("known gates");
    assert!(set.enabled("ComponentFlagz") && !set.enabled("ComponentStatusz"));
    assert!(set.enabled("AllowServiceExternalIPs"), "a GA gate");
}

/// A configuration of an older release starts; one that asks for what no release can do any more is refused.
#[test]
fn gates_of_older_releases_are_accepted_with_the_value_that_they_have_for_good() {
    assert!(retired::RETIRED.is_sorted_by_key(|gate| gate.name.as_bytes()));
    for gate in retired::RETIRED {
        assert_eq!(stage_of(gate.name), None, "{}", gate.name);
        let set = gates(&[(gate.name, gate.value)]).expect("its value");
        assert_eq!(set.retired().collect::<Vec<_>>(), [gate]);
        assert_eq!(
            gates(&[(gate.name, !gate.value)]),
            Err(vec![(gate.name.to_owned(), GateError::Retired(*gate))])
        );
    }
    let errors = gates(&[("ProxyTerminatingEndpoints", false), ("ServiceTopology", true)]).expect_err("two");
    let reported: Vec<String> = errors.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    insta::assert_snapshot!(reported.join("\n"), @r"
    ProxyTerminatingEndpoints: cannot be set to false: it is always true since Kubernetes 1.28; leave it out
    ServiceTopology: cannot be set to true: it is always false since Kubernetes 1.20; leave it out
    ");
}
