//! The kinds of the table: their paths, and a small valid object of each.

use serde_json::{Value, json};

/// The arguments of the servers.
pub(super) const ARGUMENTS: [&str; 2] = ["--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112"];

/// A kind of the API server.
#[derive(Debug)]
pub(super) struct Kind {
    /// The name in the table. The Event of `core/v1` is `CoreEvent`.
    pub(super) name: &'static str,
    type_name: &'static str,
    api_version: &'static str,
    plural: &'static str,
    namespaced: bool,
    objects: Objects,
    base: fn() -> Value,
}

/// What becomes of the objects of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objects {
    Stored,
    /// There are none.
    Absent,
    /// They are questions. Each is answered and not stored.
    Answered,
}

/// All kinds.
pub(super) static KINDS: [Kind; 14] = [
    kind("Service", "v1", "services", true, || json!({"spec": {"ports": [{"port": 80}]}})),
    kind(
        "EndpointSlice",
        "discovery.k8s.io/v1",
        "endpointslices",
        true,
        || json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}], "ports": [{"name": "http", "port": 80}]}),
    ),
    kind(
        "Endpoints",
        "v1",
        "endpoints",
        true,
        || json!({"subsets": [{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}]}),
    ),
    kind("Node", "v1", "nodes", false, || json!({})),
    kind("Namespace", "v1", "namespaces", false, || json!({})),
    kind(
        "ServiceCIDR",
        "networking.k8s.io/v1",
        "servicecidrs",
        false,
        || json!({"spec": {"cidrs": ["10.112.0.0/24"]}}),
    ),
    kind(
        "IPAddress",
        "networking.k8s.io/v1",
        "ipaddresses",
        false,
        || json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "x"}}}),
    ),
    kind("Event", "events.k8s.io/v1", "events", true, || {
        json!({
            "eventTime": "2030-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Test", "action": "Test", "note": "a",
            "reportingController": "example.com/table", "reportingInstance": "one",
            "regarding": {"kind": "Service", "namespace": "default", "name": "x"},
        })
    }),
    Kind {
        name: "CoreEvent",
        ..kind(
            "Event",
            "v1",
            "events",
            true,
            || json!({"involvedObject": {"kind": "Service", "namespace": "default", "name": "x"}, "reason": "Test"}),
        )
    },
    kind("Lease", "coordination.k8s.io/v1", "leases", true, || json!({"spec": {"holderIdentity": "a"}})),
    Kind {
        objects: Objects::Absent,
        ..kind("Pod", "v1", "pods", true, || json!({"spec": {"containers": [{"name": "a", "image": "a"}]}}))
    },
    question(
        "SelfSubjectAccessReview",
        "authorization.k8s.io/v1",
        "selfsubjectaccessreviews",
        || json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "services"}}}),
    ),
    question(
        "SelfSubjectRulesReview",
        "authorization.k8s.io/v1",
        "selfsubjectrulesreviews",
        || json!({"spec": {"namespace": "default"}}),
    ),
    question("SelfSubjectReview", "authentication.k8s.io/v1", "selfsubjectreviews", || json!({})),
];

const fn kind(
    name: &'static str,
    api_version: &'static str,
    plural: &'static str,
    namespaced: bool,
    base: fn() -> Value,
) -> Kind {
    Kind { name, type_name: name, api_version, plural, namespaced, objects: Objects::Stored, base }
}

const fn question(
    name: &'static str,
    api_version: &'static str,
    plural: &'static str,
    base: fn() -> Value,
) -> Kind {
    Kind { objects: Objects::Answered, ..kind(name, api_version, plural, false, base) }
}

impl Kind {
    /// Returns a name for the object of a row. That of an IPAddress is an address.
    pub(super) fn name_of(&self, row: usize) -> String {
        if self.type_name == "IPAddress" { format!("fd00:1::{:x}", row + 1) } else { format!("row-{row}") }
    }

    /// Returns true if the server stores the objects.
    pub(super) fn is_stored(&self) -> bool {
        self.objects == Objects::Stored
    }

    /// Returns the version and the plural name, as discovery lists them.
    pub(super) fn discovered(&self) -> (&'static str, &'static str) {
        (self.api_version, self.plural)
    }

    /// Returns what every object has: its kind and its name, which questions do not have.
    pub(super) fn identity(&self, name: &str) -> Value {
        if self.objects == Objects::Answered {
            return json!({"apiVersion": self.api_version, "kind": self.type_name});
        }
        json!({"apiVersion": self.api_version, "kind": self.type_name, "metadata": {"name": name}})
    }

    /// Returns a valid object.
    pub(super) fn base(&self, name: &str) -> Value {
        overlay(self.identity(name), &(self.base)())
    }

    /// Returns the object as a client sends it back. Controllers may have changed it meanwhile, so that it has no
    /// version, unless the kind asks for one.
    pub(super) fn to_replace(&self, mut object: Value) -> Value {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            if self.type_name != "Lease" {
                metadata.remove("resourceVersion");
            }
        }
        object
    }

    /// Returns the path of the collection.
    pub(super) fn collection_path(&self) -> String {
        let root = if self.api_version == "v1" { "/api" } else { "/apis" };
        let namespace = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{root}/{}{namespace}/{}", self.api_version, self.plural)
    }

    /// Returns the path of the collection with a field manager.
    pub(super) fn collection(&self, manager: &str) -> String {
        format!("{}?fieldManager={manager}", self.collection_path())
    }

    /// Returns the path of an object.
    pub(super) fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.collection_path())
    }
}

/// Lays `over` over an object: members of objects one by one, and everything else as a whole. A null at the place of an
/// existing member removes it; other nulls stay.
pub(super) fn overlay(mut object: Value, over: &Value) -> Value {
    match (&mut object, over) {
        (Value::Object(members), Value::Object(over)) => {
            for (name, over) in over {
                match members.remove(name) {
                    Some(_) if over.is_null() => {}
                    Some(member) => {
                        members.insert(name.clone(), overlay(member, over));
                    }
                    None => {
                        members.insert(name.clone(), over.clone());
                    }
                }
            }
        }
        (object, over) => *object = over.clone(),
    }
    object
}
