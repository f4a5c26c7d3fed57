//! What this server has, in the plain (not aggregated) form of discovery.

use serde_json::{Value, json};

use crate::resource::{Info, Resource};

/// The Kubernetes version whose API is followed.
const VERSION: (&str, &str) = ("1", "36");

pub(super) fn version() -> Value {
    let (major, minor) = VERSION;
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("v{major}.{minor}.0+portolan-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

pub(super) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

pub(super) fn groups() -> Value {
    let mut names: Vec<&str> = infos().map(|info| info.group).filter(|group| !group.is_empty()).collect();
    names.dedup();
    let groups: Vec<Value> = names.into_iter().filter_map(group_entry).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

pub(super) fn group(name: &str) -> Option<Value> {
    let mut entry = group_entry(name)?;
    let object = entry.as_object_mut()?;
    object.insert("kind".to_owned(), "APIGroup".into());
    object.insert("apiVersion".to_owned(), "v1".into());
    Some(entry)
}

pub(super) fn resources(group: &str, version: &str) -> Option<Value> {
    let infos: Vec<&Info> = infos().filter(|info| info.group == group && info.version == version).collect();
    let api_version = infos.first()?.api_version;
    let resources: Vec<Value> = infos.into_iter().flat_map(resource_entries).collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources,
    }))
}

fn infos() -> impl Iterator<Item = &'static Info> {
    Resource::served().map(Resource::info)
}

fn group_entry(name: &str) -> Option<Value> {
    let info = infos().find(|info| info.group == name && !name.is_empty())?;
    let version = json!({"groupVersion": info.api_version, "version": info.version});
    Some(json!({"name": name, "versions": [version], "preferredVersion": version}))
}

fn resource_entries(info: &Info) -> Vec<Value> {
    let mut main = json!({
        "name": info.plural, "singularName": info.singular, "namespaced": info.namespaced,
        "kind": info.kind, "verbs": info.verbs(),
    });
    if let Some(object) = main.as_object_mut().filter(|_| !info.short_names.is_empty()) {
        object.insert("shortNames".to_owned(), json!(info.short_names));
    }
    if let Some(object) = main.as_object_mut().filter(|_| !info.categories.is_empty()) {
        object.insert("categories".to_owned(), json!(info.categories));
    }
    let below = info.subresources.iter().map(|part| {
        json!({
            "name": format!("{}/{part}", info.plural), "singularName": "", "namespaced": info.namespaced,
            "kind": info.kind, "verbs": info.subresource_verbs(part),
        })
    });
    std::iter::once(main).chain(below).collect()
}
