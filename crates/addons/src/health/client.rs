//! The prober's writes, through the API of the same process.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_api::{Api, ApiError, Change, FieldManager, Part, Target, WriteOptions, events, metadata};
use portolan_prober::lease::{Claim, Held, NAME, NAMESPACE};
use portolan_prober::object::MANAGER;
use portolan_prober::plan::SliceWrite;
use portolan_prober::{Events, LeaseClient, Report, WriteError, Writer};
use portolan_schema::Resource;
use portolan_schema::json::Value;
use portolan_schema::patch::{JsonPatch, Patch};
use tokio::sync::mpsc;

/// What the controller does, for Events.
const ACTION: &str = "Probe";
/// Events that wait to be written. More are dropped.
const WAITING: usize = 256;

/// Returns an identity that no other run of any server has.
pub(super) fn identity() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{}_{:x}", std::process::id(), since.as_nanos())
}

fn options() -> WriteOptions {
    WriteOptions { field_manager: FieldManager::new(MANAGER).unwrap_or_default(), ..WriteOptions::default() }
}

fn write_error(error: &ApiError) -> WriteError {
    match error {
        ApiError::Conflict { .. } | ApiError::Contended { .. } | ApiError::AlreadyExists { .. } => {
            WriteError::Conflict
        }
        ApiError::NotFound { .. } => WriteError::Gone,
        _ => WriteError::Failed(error.to_string()),
    }
}

/// Writes EndpointSlices. Their fields keep their owners. `endpoints` can only have an owner as a whole, so the prober
/// would own the endpoints, too, and a client that applies them would get a conflict.
#[derive(Debug)]
pub(super) struct Slices(pub(super) Arc<Api>);

impl Writer for Slices {
    async fn write(&self, write: &SliceWrite) -> Result<String, WriteError> {
        let (namespace, name) = write.key.split_once('/').unwrap_or(("", &write.key));
        let target = Target { resource: Resource::EndpointSlice, namespace, name };
        let patch = JsonPatch::decode(write.json_patch().into());
        let patch = patch.map_err(|error| WriteError::Failed(error.to_string()))?;
        let options = WriteOptions { keeps_owners: true, ..WriteOptions::default() };
        let result = self.0.change(target, Part::Main, Change::Patch(Patch::Json(patch)), options).await;
        match result {
            Ok(outcome) => Ok(outcome.revision.to_string()),
            // A patch of positions that another version does not have fails before the versions are compared.
            Err(ApiError::Patch(_)) if self.has_other_version(write) => Err(WriteError::Conflict),
            Err(error) => Err(write_error(&error)),
        }
    }
}

impl Slices {
    fn has_other_version(&self, write: &SliceWrite) -> bool {
        let stored = self.0.store().latest(Resource::EndpointSlice, &write.key);
        stored.is_none_or(|stored| stored.revision().to_string() != write.resource_version)
    }
}

/// Reads and writes the Lease.
#[derive(Debug)]
pub(super) struct Leases(pub(super) Arc<Api>);

const LEASE: Target<'static> = Target { resource: Resource::Lease, namespace: NAMESPACE, name: NAME };

impl LeaseClient for Leases {
    async fn read(&self) -> Result<Option<Held>, WriteError> {
        // Other servers write to the same store.
        self.0.store().refresh().await.map_err(|error| write_error(&error.into()))?;
        let Some(stored) = self.0.store().get(Resource::Lease, &LEASE.key()) else { return Ok(None) };
        let lease = serde_json::from_slice(stored.body());
        lease.map(|lease| Some(Held::of(&lease))).map_err(|error| WriteError::Failed(error.to_string()))
    }

    async fn write(&self, claim: &Claim) -> Result<String, WriteError> {
        let now = metadata::now_micro();
        let is_new = claim.resource_version.is_none();
        let object = if is_new { claim.lease(&now) } else { claim.merge_patch(&now) };
        let Value::Object(object) = object.into() else {
            return Err(WriteError::Failed("the Lease is no object".to_owned()));
        };
        let result = if is_new {
            self.0.create(LEASE.resource, LEASE.namespace, object, options()).await
        } else {
            self.0.merge_patch(LEASE, Part::Main, object, options()).await
        };
        result.map(|outcome| outcome.revision.to_string()).map_err(|error| write_error(&error))
    }
}

/// Passes Events to [`record`] without waiting.
#[derive(Debug)]
pub(super) struct EventSender(mpsc::Sender<Report>);

impl EventSender {
    pub(super) fn new() -> (Self, mpsc::Receiver<Report>) {
        let (send, receive) = mpsc::channel(WAITING);
        (Self(send), receive)
    }
}

impl Events for EventSender {
    fn event(&self, report: Report) {
        if let Err(error) = self.0.try_send(report) {
            tracing::warn!(%error, "an Event of the health checks was dropped");
        }
    }
}

/// Writes Events until the sender is dropped.
pub(super) async fn record(api: &Api, mut reports: mpsc::Receiver<Report>) {
    while let Some(Report { regarding, is_warning, reason, note }) = reports.recv().await {
        let resource = if regarding.kind == "Service" { Resource::Service } else { Resource::EndpointSlice };
        let (namespace, name) = regarding.key.split_once('/').unwrap_or(("", &regarding.key));
        let event = events::Notice {
            regarding: (resource, namespace, name),
            uid: Some(&regarding.uid),
            is_warning,
            controller: MANAGER,
            reason,
            action: ACTION,
            note,
        };
        event.send(api).await;
    }
}
