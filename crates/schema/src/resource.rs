//! The table of this server's resources: names, scope, verbs and selectable fields.

mod table;

#[cfg(test)]
mod tests;

/// A resource of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// `v1` Service.
    Service,
    /// `v1` Node.
    Node,
    /// `v1` Namespace.
    Namespace,
    /// `v1` Endpoints.
    Endpoints,
    /// `v1` Event: a view of the objects of [`Resource::Event`] with other field names.
    CoreEvent,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
    /// `networking.k8s.io/v1` IPAddress.
    IpAddress,
    /// `events.k8s.io/v1` Event.
    Event,
    /// `coordination.k8s.io/v1` Lease.
    Lease,
    /// One object for each allocated node port, named by its number. Clients do not see it.
    NodePort,
    /// `v1` Pod. There are none; clients such as `kubectl drain` list them.
    Pod,
    /// `authorization.k8s.io/v1` `SelfSubjectAccessReview`: whether the client may do something.
    AccessReview,
    /// `authorization.k8s.io/v1` `SelfSubjectRulesReview`: everything that the client may do.
    RulesReview,
    /// `authentication.k8s.io/v1` `SelfSubjectReview`: who the client is.
    SelfReview,
}

/// What becomes of the objects of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// They are stored.
    Stored,
    /// There are none and none can be created. Lists are empty.
    Empty,
    /// A created object is a question. The client gets it back with the answer, and it is not stored.
    Answered,
}

/// The properties of a [`Resource`].
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
    /// Plural name, used in paths.
    pub plural: &'static str,
    /// Singular name, which clients such as kubectl accept.
    pub singular: &'static str,
    /// Abbreviations that clients such as kubectl accept.
    pub short_names: &'static [&'static str],
    /// Categories that clients use to request several resources together (`kubectl get all`).
    pub categories: &'static [&'static str],
    /// True if clients see the resource: in paths, in discovery and in the OpenAPI documents.
    pub served: bool,
    /// What becomes of its objects.
    pub storage: Storage,
    /// The warning that clients get with each answer, if the resource is deprecated.
    pub deprecated: Option<&'static str>,
    /// True if objects live in a namespace.
    pub namespaced: bool,
    /// Paths below an object: `status`, and `finalize` for namespaces.
    pub subresources: &'static [&'static str],
    /// True if `/status` exists.
    pub has_status: bool,
    /// True if a write to `/status` also stores labels, annotations, owner references and finalizers.
    pub status_writes_metadata: bool,
    /// True if clients may write, besides creating an object that is only answered.
    pub writable: bool,
    /// True if clients may delete a whole collection in one request.
    pub collection_deletable: bool,
    /// True if a PUT to a name that does not exist creates the object.
    pub create_on_update: bool,
    /// True if a PUT without a resourceVersion overwrites any stored version.
    pub unconditional_update: bool,
    /// True if a completed DELETE returns the object instead of a Status.
    pub delete_returns_object: bool,
    /// True if a create through the main endpoint keeps the body's `status`.
    pub create_keeps_status: bool,
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 15] = [
        Self::Service,
        Self::Node,
        Self::Namespace,
        Self::Endpoints,
        Self::CoreEvent,
        Self::EndpointSlice,
        Self::ServiceCidr,
        Self::IpAddress,
        Self::Event,
        Self::Lease,
        Self::NodePort,
        Self::Pod,
        Self::AccessReview,
        Self::RulesReview,
        Self::SelfReview,
    ];

    /// Returns the resources that clients see.
    pub fn served() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|resource| resource.info().served)
    }

    /// Returns the resources that clients see and whose objects are stored, each under its own name.
    pub fn kept() -> impl Iterator<Item = Self> {
        Self::served().filter(|resource| resource.is_stored() && resource.stored() == *resource)
    }

    /// Returns true if objects of this resource are stored.
    pub fn is_stored(self) -> bool {
        self.info().storage == Storage::Stored
    }

    /// Returns the properties of this resource.
    pub const fn info(self) -> &'static Info {
        table::of(self)
    }

    /// Returns the resource under which its objects are stored: itself, unless it is a view of another resource.
    #[must_use]
    pub const fn stored(self) -> Self {
        match self {
            Self::CoreEvent => Self::Event,
            other => other,
        }
    }

    /// Returns the position in [`Resource::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the resource at `/api/v1/{plural}` or `/apis/{group}/{version}/{plural}`.
    pub fn by_path(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::served().find(|resource| {
            let info = resource.info();
            info.group == group && info.version == version && info.plural == plural
        })
    }

    /// Returns the resource of a client's object with this `apiVersion` and `kind`, stored or not.
    pub fn by_kind(api_version: &str, kind: &str) -> Option<Self> {
        Self::served().find(|resource| {
            let info = resource.info();
            info.api_version == api_version && info.kind == kind
        })
    }
}

impl Info {
    /// Returns the verbs of the main endpoint, as discovery lists them.
    pub const fn verbs(&self) -> &'static [&'static str] {
        match (self.storage, self.writable, self.collection_deletable) {
            (Storage::Answered, ..) => &["create"],
            (_, true, true) => {
                &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            (_, true, false) => &["create", "delete", "get", "list", "patch", "update", "watch"],
            (_, false, _) => &["get", "list", "watch"],
        }
    }

    /// Returns true if the main endpoint serves this verb.
    pub fn serves(&self, verb: &str) -> bool {
        self.verbs().contains(&verb)
    }

    /// Returns the verbs of a subresource. A Namespace is finalized by PUT only.
    pub fn subresource_verbs(&self, subresource: &str) -> &'static [&'static str] {
        match subresource {
            "finalize" => &["update"],
            _ => &["get", "patch", "update"],
        }
    }
}
