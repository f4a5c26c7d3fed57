use super::*;
use Family::{Ipv4, Ipv6};
use IpFamilyPolicy::{PreferDualStack, RequireDualStack, SingleStack};

const CLUSTERS: [Families; 4] =
    [Families::single(Ipv4), Families::single(Ipv6), Families::dual(Ipv4), Families::dual(Ipv6)];

type Row = (&'static [Option<IpFamilyPolicy>], &'static [Family], [&'static [Family]; 4]);

const E: &[Family] = &[];
const V4: &[Family] = &[Ipv4];
const V6: &[Family] = &[Ipv6];
const V46: &[Family] = &[Ipv4, Ipv6];
const V64: &[Family] = &[Ipv6, Ipv4];

/// Policies, requested families, and the resulting families on each of the clusters. Empty families stand for an
/// error.
const TABLE: [Row; 9] = [
    (&[None, Some(SingleStack)], E, [V4, V6, V4, V6]),
    (&[None, Some(SingleStack)], V4, [V4, E, V4, V4]),
    (&[None, Some(SingleStack)], V46, [E, E, E, E]),
    (&[Some(PreferDualStack)], E, [V4, V6, V46, V64]),
    (&[Some(PreferDualStack)], V6, [E, V6, V64, V64]),
    (&[Some(PreferDualStack)], V46, [E, E, V46, V46]),
    (&[Some(RequireDualStack)], E, [E, E, V46, V64]),
    (&[Some(RequireDualStack)], V4, [E, E, V46, V46]),
    (&[Some(RequireDualStack)], V46, [E, E, V46, V46]),
];

fn spec(policy: Option<IpFamilyPolicy>, families: &[Family]) -> ServiceSpec {
    ServiceSpec {
        ip_family_policy: policy,
        ip_families: families.to_vec(),
        has_selector: true,
        ..ServiceSpec::default()
    }
}

fn with_ips(mut spec: ServiceSpec, texts: &[&str]) -> ServiceSpec {
    spec.cluster_ips = texts.iter().map(|text| (*text).to_owned()).collect();
    spec.cluster_ip = texts.first().copied().unwrap_or_default().to_owned();
    spec
}

fn check_table(prepare: impl Fn(ServiceSpec) -> ServiceSpec, old: Option<&ServiceSpec>) {
    for (policies, asked, expected) in TABLE {
        for policy in policies {
            for (cluster, expected) in CLUSTERS.into_iter().zip(expected) {
                let mut spec = prepare(spec(*policy, asked));
                let result = decide(&mut spec, old, cluster);
                let what = format!("{policy:?} {asked:?} on {cluster:?}: {result:?}");
                assert_eq!(result.is_err(), expected.is_empty(), "{what}");
                if result.is_ok() {
                    assert_eq!(spec.ip_families, expected, "{what}");
                    assert_eq!(spec.ip_family_policy, Some(policy.unwrap_or(SingleStack)), "{what}");
                }
            }
        }
    }
}

#[test]
fn families_of_new_services() {
    check_table(|spec| spec, None);
}

#[test]
fn families_of_headless_services_with_selector() {
    check_table(|spec| with_ips(spec, &["None"]), None);
}

/// A Service that was ExternalName has neither families nor policy, so they are decided as for a new Service.
#[test]
fn families_of_services_that_were_external_names() {
    let old = ServiceSpec { service_type: ServiceType::ExternalName, ..ServiceSpec::default() };
    check_table(|spec| spec, Some(&old));
}

#[test]
fn headless_services_without_selector_do_not_depend_on_the_cluster() {
    for cluster in CLUSTERS {
        let both = [cluster.primary(), cluster.primary().other()];
        for (policy, families, expected) in [
            (None, E, both.as_slice()),
            (Some(RequireDualStack), V6, V64),
            (Some(PreferDualStack), V4, V46),
            (Some(SingleStack), E, &both[..1]),
            (Some(SingleStack), V6, V6),
        ] {
            let mut spec = with_ips(spec(policy, families), &["None"]);
            spec.has_selector = false;
            decide(&mut spec, None, cluster).unwrap();
            assert_eq!(spec.ip_families, expected, "{policy:?} {families:?} on {cluster:?}");
            assert_eq!(spec.ip_family_policy, Some(policy.unwrap_or(RequireDualStack)));
        }
    }
}

#[test]
fn families_are_read_from_addresses() {
    let decided = |ips: &[&str], policy, cluster| {
        let mut spec = with_ips(spec(policy, &[]), ips);
        decide(&mut spec, None, cluster).map(|()| spec.ip_families)
    };
    let dual = Families::dual(Ipv4);
    assert_eq!(decided(&["fd00::1"], None, dual).unwrap(), V6);
    assert_eq!(decided(&["fd00::1"], Some(PreferDualStack), dual).unwrap(), V64);
    assert_eq!(decided(&["fd00::1", "10.0.0.1"], Some(RequireDualStack), dual).unwrap(), V64);
    let error = decided(&["fd00::1"], None, Families::single(Ipv4)).unwrap_err();
    assert_eq!(error[0].field, "spec.clusterIPs[0]");
    assert_eq!(error[0].reason, Refusal::FamilyNotConfigured(Ipv6));
    let error = decided(&["fd00::1", "10.0.0.1"], None, dual).unwrap_err();
    assert_eq!(error[0].field, "spec.ipFamilyPolicy");
}

#[test]
fn each_error_names_its_field() {
    let dual = Some(RequireDualStack);
    let node_port = |spec: ServiceSpec| ServiceSpec { service_type: ServiceType::NodePort, ..spec };
    let external = ServiceSpec { service_type: ServiceType::ExternalName, ..spec(dual, V4) };
    let first_differs =
        ServiceSpec { cluster_ip: "10.0.0.2".to_owned(), ..with_ips(spec(None, E), &["10.0.0.1"]) };
    let first_missing = ServiceSpec { cluster_ip: String::new(), ..with_ips(spec(None, E), &["10.0.0.1"]) };
    let cases = [
        (with_ips(spec(None, E), &["10.0.0"]), "spec.clusterIPs[0]", Refusal::NotAnAddress),
        (with_ips(spec(dual, E), &["10.0.0.1", "None"]), "spec.clusterIPs[1]", Refusal::NotAnAddress),
        (with_ips(spec(dual, E), &["None", "10.0.0.1"]), "spec.clusterIPs", Refusal::NoneNotAlone),
        (with_ips(spec(dual, E), &["10.0.0.1", "10.0.0.2"]), "spec.clusterIPs", Refusal::FamilyTwice),
        (with_ips(spec(None, V6), &["10.0.0.1"]), "spec.clusterIPs[0]", Refusal::FamilyDiffers(Ipv6)),
        (node_port(with_ips(spec(None, E), &["None"])), "spec.clusterIPs[0]", Refusal::NoneNeedsClusterIp),
        (spec(dual, &[Ipv4, Ipv4]), "spec.ipFamilies[1]", Refusal::FamilyTwice),
        (spec(dual, &[Ipv4, Ipv6, Ipv4]), "spec.ipFamilies[2]", Refusal::FamilyTwice),
        (external, "spec.ipFamilies", Refusal::ForbiddenForExternalName),
        (first_differs, "spec.clusterIPs", Refusal::FirstDiffers),
        (first_missing, "spec.clusterIPs", Refusal::FirstMissing),
    ];
    for (mut spec, field, reason) in cases {
        let errors = decide(&mut spec, None, Families::dual(Ipv4)).unwrap_err();
        assert_eq!((errors[0].field.as_str(), &errors[0].reason), (field, &reason), "{spec:?}");
        assert!(errors[0].is_invalid());
    }
    let errors = decide(&mut spec(dual, V4), None, Families::single(Ipv4)).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "spec.ipFamilyPolicy: this cluster is configured with ranges of one family only"
    );
    let errors = decide(&mut spec(Some(PreferDualStack), V46), None, Families::single(Ipv4)).unwrap_err();
    assert_eq!(errors[0].field, "spec.ipFamilies[1]");
}

#[test]
fn a_preference_sticks_when_the_cluster_changes() {
    let stored = with_ips(spec(Some(PreferDualStack), V4), &["10.0.0.1"]);
    let mut same = stored.clone();
    decide(&mut same, Some(&stored), Families::dual(Ipv4)).unwrap();
    assert_eq!(same, stored);
    let mut other_type = ServiceSpec { service_type: ServiceType::NodePort, ..stored.clone() };
    decide(&mut other_type, Some(&stored), Families::dual(Ipv4)).unwrap();
    assert_eq!(other_type.ip_families, V46);
    let stored = with_ips(spec(Some(PreferDualStack), V46), &["10.0.0.1", "fd00::1"]);
    let mut same = stored.clone();
    decide(&mut same, Some(&stored), Families::single(Ipv4)).unwrap();
    assert_eq!(same, stored);
}

#[test]
fn the_secondary_family_may_change_and_the_primary_may_not() {
    let cluster = Families::dual(Ipv4);
    let single = with_ips(spec(Some(SingleStack), V4), &["10.0.0.1"]);
    let dual = with_ips(spec(Some(RequireDualStack), V46), &["10.0.0.1", "fd00::1"]);
    let update = |mut new: ServiceSpec, old: &ServiceSpec| {
        decide(&mut new, Some(old), cluster).map(|()| new).map_err(|errors| errors[0].clone())
    };
    let upgraded = update(with_ips(spec(Some(PreferDualStack), V4), &["10.0.0.1"]), &single).unwrap();
    assert_eq!(upgraded.ip_families, V46);
    let downgraded = ServiceSpec { ip_family_policy: Some(SingleStack), ..dual.clone() };
    assert_eq!(update(downgraded, &dual).unwrap(), single);
    // The policy is inherited, so the second address is missing.
    let error = update(with_ips(spec(None, V46), &["10.0.0.1"]), &dual).unwrap_err();
    assert_eq!(
        (error.field.as_str(), error.reason),
        ("spec.ipFamilyPolicy", Refusal::ReleaseNeedsSingleStack)
    );
    let error = update(with_ips(spec(Some(SingleStack), V4), &["10.0.0.2"]), &single).unwrap_err();
    assert_eq!((error.field.as_str(), error.reason), ("spec.clusterIPs[0]", Refusal::Immutable));
    let error = update(with_ips(spec(Some(SingleStack), V4), &["None"]), &single).unwrap_err();
    assert_eq!(error.reason, Refusal::Immutable);
    let reordered = with_ips(spec(Some(RequireDualStack), V64), &["fd00::1", "10.0.0.1"]);
    let error = update(reordered, &dual).unwrap_err();
    assert_eq!(error.reason, Refusal::Immutable);
    let replaced = with_ips(spec(Some(RequireDualStack), V46), &["10.0.0.1", "fd00::2"]);
    let error = update(replaced, &dual).unwrap_err();
    assert_eq!((error.field.as_str(), error.reason), ("spec.clusterIPs[1]", Refusal::Immutable));
    // Another spelling of the same address is not a change.
    let v6 = with_ips(spec(Some(SingleStack), V6), &["fd00::1"]);
    assert!(update(with_ips(spec(Some(SingleStack), V6), &["FD00:0::1"]), &v6).is_ok());
    let headless = with_ips(spec(Some(SingleStack), V4), &["None"]);
    let moved = with_ips(spec(Some(SingleStack), V6), &["None"]);
    assert_eq!(update(moved, &headless).unwrap().ip_families, V6);
}

#[test]
fn stored_services_of_older_versions_are_completed() {
    let read = |mut spec: ServiceSpec| {
        default_on_read(&mut spec, Ipv6);
        (spec.ip_families, spec.ip_family_policy)
    };
    let old =
        |ip: &str| ServiceSpec { cluster_ip: ip.to_owned(), has_selector: true, ..ServiceSpec::default() };
    assert_eq!(read(old("10.0.0.1")), (V4.to_vec(), Some(SingleStack)));
    assert_eq!(read(old("None")), (V6.to_vec(), Some(SingleStack)));
    assert_eq!(
        read(ServiceSpec { has_selector: false, ..old("None") }),
        (V64.to_vec(), Some(RequireDualStack))
    );
    assert_eq!(read(with_ips(old(""), &["10.0.0.1", "fd00::1"])), (V46.to_vec(), Some(RequireDualStack)));
    let external = ServiceSpec { service_type: ServiceType::ExternalName, ..old("") };
    assert_eq!(read(external), (E.to_vec(), None));
}
