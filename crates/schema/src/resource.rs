//! The table of resources that this server has: names, scope, verbs and what may be selected on.

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
    /// `v1` Event: the stored objects are those of [`Resource::Event`], seen with other names of fields.
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
    /// One object for each node port that is given out, named by its number; for the server alone.
    NodePort,
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
    /// Groups of resources that tools ask for together (`kubectl get all`).
    pub categories: &'static [&'static str],
    /// Whether clients see it at all: in paths, in discovery and in documents.
    pub served: bool,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Paths below an object: `status`, and `finalize` for namespaces.
    pub subresources: &'static [&'static str],
    /// Whether `/status` exists.
    pub has_status: bool,
    /// Whether clients may write.
    pub writable: bool,
    /// Whether a whole collection may be deleted at once.
    pub collection_deletable: bool,
    /// Whether PUT to a missing name creates it.
    pub create_on_update: bool,
    /// Whether PUT without a resourceVersion overwrites whatever is there.
    pub unconditional_update: bool,
    /// Whether a completed DELETE answers with the object instead of a Status.
    pub delete_returns_object: bool,
    /// Whether a create through the main endpoint keeps the body's `status`.
    pub create_keeps_status: bool,
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub selectable: &'static [&'static str],
}

impl Resource {
    /// Every resource; those of one group stand together.
    pub const ALL: [Self; 11] = [
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
    ];

    /// The resources that clients see.
    pub fn served() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|resource| resource.info().served)
    }

    /// The fixed facts about this resource.
    pub const fn info(self) -> &'static Info {
        table::of(self)
    }

    /// The resource as which its objects are stored: itself, but for a second view of the same objects.
    #[must_use]
    pub const fn stored(self) -> Self {
        match self {
            Self::CoreEvent => Self::Event,
            other => other,
        }
    }

    /// Position in [`Resource::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The resource at `/api/v1/{plural}` or `/apis/{group}/{version}/{plural}`.
    pub fn by_path(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::served().find(|resource| {
            let info = resource.info();
            info.group == group && info.version == version && info.plural == plural
        })
    }

    /// The resource of a client's object with this `apiVersion` and `kind`.
    pub fn by_kind(api_version: &str, kind: &str) -> Option<Self> {
        Self::served().find(|resource| {
            let info = resource.info();
            info.api_version == api_version && info.kind == kind
        })
    }
}

impl Info {
    /// Verbs of the main endpoint, as discovery lists them.
    pub const fn verbs(&self) -> &'static [&'static str] {
        match (self.writable, self.collection_deletable) {
            (true, true) => {
                &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            (true, false) => &["create", "delete", "get", "list", "patch", "update", "watch"],
            (false, _) => &["get", "list", "watch"],
        }
    }

    /// Verbs of a subresource; a Namespace is finalized by PUT alone.
    pub fn subresource_verbs(&self, subresource: &str) -> &'static [&'static str] {
        match subresource {
            "finalize" => &["update"],
            _ => &["get", "patch", "update"],
        }
    }
}
