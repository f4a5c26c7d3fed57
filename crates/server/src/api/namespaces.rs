//! What a Namespace means to the objects in it: a new one needs it to be there and not to be going.

use super::{Api, WriteOptions, write::name_of};
use crate::{
    error::ApiError,
    json::Object,
    kinds, metadata, names,
    resource::Resource,
    store::{Draft, Step, StoredObject},
};

/// The Namespaces that every cluster has.
pub(crate) const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Of these, the ones that may not be deleted; the other one is made again (upstream's admission plug-in
/// `NamespaceLifecycle`).
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Api {
    /// The steps that make sure of the Namespace of a new object: that it stays as it is, or that it is made. So nothing
    /// can come into a Namespace after it was found to be going and empty.
    pub(super) fn enter_namespace(
        &self,
        resource: Resource,
        namespace: &str,
        object: &Object,
        options: WriteOptions,
    ) -> Result<Vec<Step>, ApiError> {
        if !resource.info().namespaced {
            return Ok(Vec::new());
        }
        let stored = self.store.latest(Resource::Namespace, namespace);
        match stored {
            Some(stored) if is_terminating(&stored) => Err(ApiError::Terminating {
                resource,
                name: name_of(object).to_owned(),
                namespace: namespace.to_owned(),
            }),
            Some(stored) => Ok(vec![Step::Require {
                resource: Resource::Namespace,
                key: stored.key().into(),
                expected: Some(stored.revision()),
            }]),
            None if options.namespace_must_exist && self.validate => {
                Err(ApiError::NotFound { resource: Resource::Namespace, name: namespace.to_owned() })
            }
            // The name is refused with the object's metadata.
            None if !names::is_dns_label(namespace) => Ok(Vec::new()),
            None => {
                let draft = new_namespace(namespace);
                Ok(vec![Step::Put { resource: Resource::Namespace, draft, expected: None }])
            }
        }
    }
}

/// Whether this Namespace may be deleted at all.
pub(super) fn check_mortal(resource: Resource, name: &str) -> Result<(), ApiError> {
    if resource == Resource::Namespace && IMMORTAL.contains(&name) {
        return Err(ApiError::Protected { resource, name: name.to_owned() });
    }
    Ok(())
}

fn is_terminating(namespace: &StoredObject) -> bool {
    namespace.field("status.phase") == "Terminating"
}

fn new_namespace(name: &str) -> Draft {
    let mut meta = Object::new();
    meta.insert("name".to_owned(), name.into());
    metadata::prepare_create(Resource::Namespace, &mut meta);
    let mut object = Object::new();
    object.insert("metadata".to_owned(), meta.into());
    kinds::namespace::prepare(&mut object, true);
    Draft::new(Resource::Namespace, &object)
}
