//! The table of resources that this server has: names, scope, verbs and what may be selected on.

/// A resource that the server stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// `v1` Service.
    Service,
    /// `v1` Node.
    Node,
    /// `v1` Namespace; made by the server, read-only for clients.
    Namespace,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
    /// `events.k8s.io/v1` Event.
    Event,
}

/// What clients see of a [`Resource`].
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "a table row, not a state machine")]
pub struct Info {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// `group/version`, or the version alone for the core group.
    pub api_version: &'static str,
    /// Kind of one object.
    pub kind: &'static str,
    /// Name in paths.
    pub plural: &'static str,
    /// Name for one object in tools.
    pub singular: &'static str,
    /// Abbreviations that tools accept.
    pub short_names: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Whether `/status` exists.
    pub has_status: bool,
    /// Whether clients may write.
    pub writable: bool,
    /// Whether PUT to a missing name creates it.
    pub create_on_update: bool,
    /// Whether a completed DELETE answers with the object instead of a Status.
    pub delete_returns_object: bool,
    /// Whether a create through the main endpoint keeps the body's `status`.
    pub create_keeps_status: bool,
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
}

impl Resource {
    /// Every resource, in the order of discovery.
    pub const ALL: [Self; 6] =
        [Self::Service, Self::Node, Self::Namespace, Self::EndpointSlice, Self::ServiceCidr, Self::Event];

    /// The fixed facts about this resource.
    pub const fn info(self) -> &'static Info {
        match self {
            Self::Service => &SERVICE,
            Self::Node => &NODE,
            Self::Namespace => &NAMESPACE,
            Self::EndpointSlice => &ENDPOINT_SLICE,
            Self::ServiceCidr => &SERVICE_CIDR,
            Self::Event => &EVENT,
        }
    }

    /// Position in [`Resource::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The resource at `/api/v1/{plural}` or `/apis/{group}/{version}/{plural}`.
    pub fn by_path(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| {
            let info = resource.info();
            info.group == group && info.version == version && info.plural == plural
        })
    }

    /// The resource of an object with this `apiVersion` and `kind`.
    pub fn by_kind(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| {
            let info = resource.info();
            info.api_version == api_version && info.kind == kind
        })
    }
}

impl Info {
    /// Verbs of the main endpoint, as discovery lists them.
    pub fn verbs(&self) -> &'static [&'static str] {
        if self.writable {
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        } else {
            &["get", "list", "watch"]
        }
    }
}

static SERVICE: Info = Info {
    group: "",
    version: "v1",
    api_version: "v1",
    kind: "Service",
    plural: "services",
    singular: "service",
    short_names: &["svc"],
    namespaced: true,
    has_status: true,
    writable: true,
    create_on_update: true,
    delete_returns_object: true,
    create_keeps_status: false,
    selectable: &["spec.clusterIP", "spec.type"],
};

static NODE: Info = Info {
    group: "",
    version: "v1",
    api_version: "v1",
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    namespaced: false,
    has_status: true,
    writable: true,
    create_on_update: false,
    delete_returns_object: false,
    create_keeps_status: true,
    selectable: &["spec.unschedulable"],
};

static NAMESPACE: Info = Info {
    group: "",
    version: "v1",
    api_version: "v1",
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    namespaced: false,
    has_status: false,
    writable: false,
    create_on_update: false,
    delete_returns_object: true,
    create_keeps_status: true,
    selectable: &["status.phase"],
};

static ENDPOINT_SLICE: Info = Info {
    group: "discovery.k8s.io",
    version: "v1",
    api_version: "discovery.k8s.io/v1",
    kind: "EndpointSlice",
    plural: "endpointslices",
    singular: "endpointslice",
    short_names: &[],
    namespaced: true,
    has_status: false,
    writable: true,
    create_on_update: false,
    delete_returns_object: false,
    create_keeps_status: true,
    selectable: &[],
};

static SERVICE_CIDR: Info = Info {
    group: "networking.k8s.io",
    version: "v1",
    api_version: "networking.k8s.io/v1",
    kind: "ServiceCIDR",
    plural: "servicecidrs",
    singular: "servicecidr",
    short_names: &[],
    namespaced: false,
    has_status: true,
    writable: true,
    create_on_update: false,
    delete_returns_object: false,
    create_keeps_status: false,
    selectable: &[],
};

static EVENT: Info = Info {
    group: "events.k8s.io",
    version: "v1",
    api_version: "events.k8s.io/v1",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    namespaced: true,
    has_status: false,
    writable: true,
    create_on_update: true,
    delete_returns_object: false,
    create_keeps_status: true,
    selectable: &["reason", "type"],
};
