//! The names under which resources are stored. They are part of the formats on disk and in etcd and must never
//! change.

use portolan_schema::Resource;

/// Returns `plural`, or `group/plural` outside of the core group.
pub(crate) fn stored_name(resource: Resource) -> String {
    let info = resource.info();
    if info.group.is_empty() { info.plural.to_owned() } else { format!("{}/{}", info.group, info.plural) }
}

/// Returns the stored resource with this name.
pub(crate) fn by_stored_name(name: &str) -> Option<Resource> {
    let (group, plural) = name.rsplit_once('/').unwrap_or(("", name));
    Resource::ALL.into_iter().filter(|resource| resource.is_stored()).find(|resource| {
        let info = resource.info();
        info.group == group && info.plural == plural
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_by_its_name() {
        for resource in Resource::ALL {
            let found = by_stored_name(&stored_name(resource));
            assert_eq!(found, Some(resource).filter(|resource| resource.is_stored()));
        }
        assert_eq!(by_stored_name("discovery.k8s.io/services"), None);
        assert_eq!(stored_name(Resource::EndpointSlice), "discovery.k8s.io/endpointslices");
    }
}
