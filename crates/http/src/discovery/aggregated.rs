//! Aggregated discovery (`apidiscovery.k8s.io`): all groups, versions and resources in one document.

use std::sync::LazyLock;

use http::HeaderMap;
use portolan_schema::{
    json::{Value, json},
    resource::Info,
};

use super::{Document, Tagged, group_names, infos, set, versions};
use crate::{Answer, accept::Clause};

/// A version of `apidiscovery.k8s.io`. The versions differ in their names only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aggregation {
    V2,
    V2Beta1,
}

impl Aggregation {
    /// Returns the version that a clause of `Accept` asks for.
    pub(super) fn asked_for(clause: &Clause<'_>) -> Option<Self> {
        let wanted = clause.takes("application/json")
            && clause.parameter("g") == Some("apidiscovery.k8s.io")
            && clause.parameter("as") == Some("APIGroupDiscoveryList");
        match clause.parameter("v").filter(|_| wanted)? {
            "v2" => Some(Self::V2),
            "v2beta1" => Some(Self::V2Beta1),
            _ => None,
        }
    }

    /// Returns the document of `/api` or `/apis`.
    pub(super) fn answer(self, document: Document, headers: &HeaderMap) -> Answer {
        static CORE: [LazyLock<Tagged>; 2] =
            [LazyLock::new(|| list("v2", &[""])), LazyLock::new(|| list("v2beta1", &[""]))];
        static GROUPS: [LazyLock<Tagged>; 2] =
            [LazyLock::new(|| list("v2", &group_names())), LazyLock::new(|| list("v2beta1", &group_names()))];
        let [v2, v2_beta1] = if document == Document::Core { &CORE } else { &GROUPS };
        // Clients compare the whole media type.
        match self {
            Self::V2 => {
                v2.answer("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", headers)
            }
            Self::V2Beta1 => v2_beta1
                .answer("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", headers),
        }
    }
}

fn list(version: &str, groups: &[&str]) -> Tagged {
    let items: Vec<Value> = groups.iter().map(|group| group_item(group)).collect();
    let api_version = format!("apidiscovery.k8s.io/{version}");
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items,
    });
    Tagged::new(list.to_string())
}

fn group_item(group: &str) -> Value {
    let version = |first: &Info| {
        let resources = infos().filter(|info| info.api_version == first.api_version).map(resource);
        json!({
            "version": first.version, "freshness": "Current", "resources": resources.collect::<Vec<_>>(),
        })
    };
    let versions: Vec<Value> = versions(group).into_iter().map(version).collect();
    let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
    json!({"metadata": metadata, "versions": versions})
}

fn resource(info: &Info) -> Value {
    let kind = json!({"group": info.group, "version": info.version, "kind": info.kind});
    let mut entry = json!({
        "resource": info.plural,
        "responseKind": kind,
        "scope": if info.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": info.singular,
        "verbs": info.verbs(),
    });
    for (key, values) in [("shortNames", info.short_names), ("categories", info.categories)] {
        if !values.is_empty() {
            set(&mut entry, key, json!(values));
        }
    }
    let subresources: Vec<Value> = info
        .subresources
        .iter()
        .map(|name| json!({"subresource": name, "responseKind": kind, "verbs": info.subresource_verbs(name)}))
        .collect();
    if !subresources.is_empty() {
        set(&mut entry, "subresources", subresources.into());
    }
    entry
}
