use super::*;

#[test]
fn every_resource_is_at_its_place_in_the_list() {
    for (index, resource) in Resource::ALL.into_iter().enumerate() {
        assert_eq!(resource.index(), index, "{resource:?}");
    }
}

#[test]
fn clients_reach_served_resources_alone() {
    assert_eq!(Resource::by_path("", "v1", "events"), Some(Resource::CoreEvent));
    assert_eq!(Resource::by_path("events.k8s.io", "v1", "events"), Some(Resource::Event));
    assert_eq!(Resource::by_kind("v1", "Event"), Some(Resource::CoreEvent));
    let internal = Resource::NodePort.info();
    assert_eq!(Resource::by_path(internal.group, internal.version, internal.plural), None);
    assert_eq!(Resource::by_kind(internal.api_version, internal.kind), None);
    assert!(!Resource::served().any(|resource| resource == Resource::NodePort));
}

#[test]
fn only_stored_resources_are_written_and_deleted() {
    for resource in Resource::ALL.into_iter().filter(|resource| !resource.is_stored()) {
        let info = resource.info();
        assert!(info.served && info.subresources.is_empty(), "{resource:?}");
        assert!(!info.serves("update") && !info.serves("delete") && !info.serves("deletecollection"));
        assert!(Resource::kept().all(|kept| kept != resource));
    }
    assert!(Resource::Pod.info().serves("watch") && !Resource::Pod.info().serves("create"));
    assert_eq!(Resource::AccessReview.info().verbs(), ["create"]);
    assert!(Resource::kept().all(|kept| kept != Resource::CoreEvent && kept != Resource::NodePort));
}

#[test]
fn names_agree_with_each_other() {
    for resource in Resource::ALL {
        let info = resource.info();
        let api_version = match info.group {
            "" => info.version.to_owned(),
            group => format!("{group}/{}", info.version),
        };
        assert_eq!(info.api_version, api_version);
        assert_eq!(info.singular, info.kind.to_lowercase());
        assert_eq!(info.has_status, info.subresources.contains(&"status"), "{resource:?}");
        assert_eq!(resource.stored().stored(), resource.stored());
    }
}
