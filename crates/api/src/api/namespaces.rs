//! The rules of Namespaces for the objects in them. A new object needs a Namespace that exists and is not being
//! deleted.

use portolan_schema::{Resource, json::Object};
use portolan_store::{Draft, Step, StoredObject};

use super::{Api, WriteOptions, write::name_of};
use crate::{error::ApiError, kinds, metadata, names};

/// The Namespaces of every cluster.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// The system Namespaces that may not be deleted (upstream's admission plug-in `NamespaceLifecycle`). The remaining
/// one, `kube-node-lease`, is created again after a deletion.
const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Api {
    /// Returns the steps that ensure the Namespace of a new object: one that requires it to be unchanged, or one that
    /// creates it. So no object can be created in a Namespace after that was found to be terminating and empty.
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
            // The validation of the object's metadata refuses this name.
            None if !names::is_dns_label(namespace) => Ok(Vec::new()),
            None => {
                let draft = new_namespace(namespace);
                Ok(vec![Step::Put { resource: Resource::Namespace, draft, expected: None }])
            }
        }
    }
}

/// Returns an error if this is a Namespace that may not be deleted.
pub(super) fn check_deletable(resource: Resource, name: &str) -> Result<(), ApiError> {
    if resource == Resource::Namespace && PROTECTED.contains(&name) {
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
