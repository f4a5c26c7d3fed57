//! The state of ServiceCIDRs. The one for the configured ranges exists, usable ones are Ready, and a deleted one is
//! removed when that leaves no address without a range. A controller calls [`sync`] when something may have changed. Rules: `pkg/controller/servicecidrs` and
//! `pkg/controlplane/controller/defaultservicecidr` of Kubernetes v1.36.
//!
//! Before the removal, upstream waits ten seconds so that its allocators notice the deletion. This server needs no
//! wait: a transaction that takes an address requires its ServiceCIDR to be unchanged, so no address is allocated
//! once the deletion has begun.

use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
};
use portolan_store::{Draft, Scope, Step, Transaction};

use crate::{
    allocate::{Cidr, ready_condition},
    api::{Api, Decision, Effect, Part, Target, Write, WriteOptions},
    error::ApiError,
    events::Notice,
    kinds::service_cidr::FINALIZER,
    metadata,
};

#[cfg(test)]
mod tests;

/// Name of the ServiceCIDR of the configured ranges.
const DEFAULT: &str = "kubernetes";

/// Creates the default ServiceCIDR and examines all of them once. Returns true if one is being deleted.
pub async fn sync(api: &Api) -> bool {
    if let Err(error) = ensure_default(api).await {
        tracing::error!(%error, "the ServiceCIDR of the configured ranges can not be written");
    }
    settle(api).await
}

/// Examines all existing ServiceCIDRs once. Returns true if one is being deleted.
pub(crate) async fn settle(api: &Api) -> bool {
    let Ok(snapshot) = api.store().snapshot(Resource::ServiceCidr, &Scope::default(), None) else {
        return false;
    };
    let mut is_any_going = false;
    for object in snapshot.objects {
        let is_being_deleted = Cidr::of(&object).is_being_deleted;
        is_any_going |= is_being_deleted;
        let decoded = object.decode();
        let result = if is_being_deleted {
            leave(api, object.key(), &decoded).await
        } else {
            stay(api, object.key(), &decoded).await
        };
        match result {
            // The change by another client triggers the next examination.
            Ok(())
            | Err(ApiError::Conflict { .. } | ApiError::NotFound { .. } | ApiError::Contended { .. }) => {}
            Err(error) => {
                tracing::warn!(service_cidr = object.key(), %error, "ServiceCIDR not updated");
                let notice = Notice {
                    regarding: (Resource::ServiceCidr, "", object.key()),
                    uid: None,
                    is_warning: true,
                    controller: "service-cidr-controller",
                    reason: "KubernetesServiceCIDRError",
                    action: "KubernetesServiceCIDR",
                    note: error.to_string(),
                };
                notice.send(api).await;
            }
        }
    }
    is_any_going
}

/// Creates the ServiceCIDR of the configured ranges, or adds its second family.
pub(crate) async fn ensure_default(api: &Api) -> Result<(), ApiError> {
    let wanted: Vec<String> = api.ranges().iter().map(|range| range.to_string()).collect();
    let Some(stored) = api.store().latest(Resource::ServiceCidr, DEFAULT) else {
        let object = json!({"metadata": {"name": DEFAULT}, "spec": {"cidrs": wanted}});
        let created = api.create(Resource::ServiceCidr, "", owned(object), WriteOptions::default()).await;
        return match created {
            Err(ApiError::AlreadyExists { .. }) => Ok(()),
            other => other.map(drop),
        };
    };
    let object = stored.decode();
    let spec = json::object(&object, "spec").cloned().unwrap_or_default();
    let cidrs: Vec<&str> = json::texts(&spec, "cidrs").collect();
    let is_being_deleted = Cidr::of(&stored).is_being_deleted;
    if is_being_deleted || cidrs == wanted {
        return Ok(());
    }
    if cidrs.len() == 1 && wanted.len() == 2 && wanted.first().is_some_and(|first| cidrs == [first]) {
        let patch = json!({"metadata": {"resourceVersion": stored.revision().to_string()}, "spec": {"cidrs": wanted}});
        let options = WriteOptions::default();
        return api.merge_patch(target(DEFAULT), Part::Main, owned(patch), options).await.map(drop);
    }
    let note = format!(
        "ServiceCIDR kubernetes has {}, but {} is configured; set --service-cluster-ip-range to what it has, or delete it when no Service uses it",
        cidrs.join(","),
        wanted.join(",")
    );
    tracing::warn!(note, "configured ranges are not those of the ServiceCIDR");
    let notice = Notice {
        regarding: (Resource::ServiceCidr, "", DEFAULT),
        uid: None,
        is_warning: true,
        controller: "kubernetes-service-cidr-controller",
        reason: "KubernetesDefaultServiceCIDRInconsistent",
        action: "KubernetesDefaultServiceCIDRReconciliation",
        note,
    };
    notice.send(api).await;
    Ok(())
}

/// Maintains a ServiceCIDR that is in use: sets its finalizer and the condition Ready.
async fn stay(api: &Api, name: &str, object: &Object) -> Result<(), ApiError> {
    let finalizers = finalizers(object);
    if !finalizers.iter().any(|it| it == FINALIZER) {
        let finalizers: Vec<String> = finalizers.into_iter().chain([FINALIZER.to_owned()]).collect();
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": revision(object)}});
        api.merge_patch(target(name), Part::Main, owned(patch), WriteOptions::default()).await?;
    }
    set_ready(api, name, object, ("True", "", "Kubernetes Service CIDR is ready")).await
}

/// Removes a ServiceCIDR that is being deleted, or reports in its condition which address prevents that.
async fn leave(api: &Api, name: &str, object: &Object) -> Result<(), ApiError> {
    if !finalizers(object).iter().any(|it| it == FINALIZER) {
        return Ok(());
    }
    let mut held = None;
    let gone = api.write(|ledger| {
        let Some(stored) = api.store().latest(Resource::ServiceCidr, name) else {
            return Err(target(name).not_found());
        };
        let mut steps = match ledger.free_service_cidr(&**api.store(), name) {
            Ok(steps) => steps,
            Err(address) => {
                held = Some(address);
                return Err(ApiError::Internal(format!("{address} is in use")));
            }
        };
        let mut object = stored.decode();
        let left: Vec<String> = finalizers(&object).into_iter().filter(|it| it != FINALIZER).collect();
        let expected = stored.revision();
        let is_gone = left.is_empty();
        if is_gone {
            steps.push(Step::Remove { resource: Resource::ServiceCidr, key: name.into(), expected });
        } else {
            if let Some(metadata) = json::object_mut(&mut object, "metadata") {
                metadata.insert("finalizers".to_owned(), left.into());
            }
            let draft = Draft::new(Resource::ServiceCidr, &object);
            steps.push(Step::Put { resource: Resource::ServiceCidr, draft, expected: Some(expected) });
        }
        Ok(Decision::Write(Write {
            transaction: Transaction { steps },
            effect: if is_gone { Effect::Deleted } else { Effect::Updated },
            removed: is_gone.then_some(stored),
            warnings: Vec::new(),
            exchange: <_>::default(),
        }))
    });
    let gone = gone.await;
    match (gone, held) {
        (Err(ApiError::Internal(_)), Some(address)) => {
            let message = format!(
                "There are still IPAddresses referencing the ServiceCIDR, {address} for one; delete their Services or add a ServiceCIDR that has them"
            );
            set_ready(api, name, object, ("False", "Terminating", &message)).await
        }
        (other, _) => other.map(drop),
    }
}

async fn set_ready(
    api: &Api,
    name: &str,
    object: &Object,
    (status, reason, message): (&str, &str, &str),
) -> Result<(), ApiError> {
    // The message names one address of many. A different one is no reason to write.
    if ready_condition(object) == Some(status) {
        return Ok(());
    }
    let none = Object::new();
    let old = json::list(json::object(object, "status").unwrap_or(&none), "conditions");
    let others = old.iter().filter(|it| it.get("type") != Some(&Value::from("Ready"))).cloned();
    let ready = json!({
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": metadata::now(),
    });
    let conditions: Vec<Value> = others.chain([ready]).collect();
    let patch = json!({"status": {"conditions": conditions}});
    api.merge_patch(target(name), Part::Status, owned(patch), WriteOptions::default()).await.map(drop)
}

fn finalizers(object: &Object) -> Vec<String> {
    let metadata = json::object(object, "metadata");
    metadata.into_iter().flat_map(|metadata| json::texts(metadata, "finalizers")).map(str::to_owned).collect()
}

fn revision(object: &Object) -> &str {
    json::object(object, "metadata").and_then(|it| json::text(it, "resourceVersion")).unwrap_or_default()
}

fn target(name: &str) -> Target<'_> {
    Target { resource: Resource::ServiceCidr, namespace: "", name }
}

fn owned(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}
