//! Tables (`meta.k8s.io` Table): the columns of each kind and the cells of an object, as in
//! `pkg/printers/internalversion/printers.go` of Kubernetes v1.36.
//!
//! Pure: cells depend on the object and on the time, which the caller passes in.

mod endpoints;
mod event;
mod node;
mod service;

use portolan_api::{ApiError, FieldError};
use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
};

use super::{accept::MetaVersion, age::age, query::Query};

/// Which part of each object its row includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

/// A column: its header and description, and whether it is shown with `-o wide` only.
#[derive(Debug)]
struct Column {
    name: &'static str,
    description: &'static str,
    wide: bool,
}

/// The columns of a kind, and the function that returns an object's cells.
struct Layout {
    columns: &'static [Column],
    cells: fn(&Object, i64) -> Vec<Value>,
}

impl IncludeObject {
    pub(super) fn parse(query: &Query) -> Result<Self, ApiError> {
        match query.get("includeObject") {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(ApiError::InvalidOptions {
                what: "TableOptions",
                error: FieldError::not_supported("includeObject", other, &["Metadata", "None", "Object"]),
            }),
        }
    }
}

/// Returns the column definitions of a resource's tables.
pub(super) fn column_definitions(resource: Resource) -> Value {
    let definition = |column: &Column| {
        let number = matches!(column.name, "Count");
        json!({
            "name": column.name,
            "type": if number { "integer" } else { "string" },
            "format": if column.name == "Name" { "name" } else { "" },
            "description": column.description,
            "priority": i32::from(column.wide),
        })
    };
    layout(resource).columns.iter().map(definition).collect()
}

/// Returns the row of an object. `now` is in seconds since 1970.
pub(super) fn row(
    resource: Resource,
    object: &Object,
    include: IncludeObject,
    version: MetaVersion,
    now: i64,
) -> Value {
    let cells = (layout(resource).cells)(object, now);
    match include {
        IncludeObject::None => json!({"cells": cells}),
        IncludeObject::Metadata => json!({"cells": cells, "object": partial(object, version)}),
        IncludeObject::Object => json!({"cells": cells, "object": object}),
    }
}

/// Returns the object's metadata as `PartialObjectMetadata`.
pub(super) fn partial(object: &Object, version: MetaVersion) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| json!({}));
    json!({"kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": metadata})
}

fn layout(resource: Resource) -> Layout {
    match resource.info().kind {
        "Service" => Layout { columns: service::COLUMNS, cells: service::cells },
        "EndpointSlice" => Layout { columns: endpoints::SLICE_COLUMNS, cells: endpoints::slice_cells },
        "Endpoints" => Layout { columns: endpoints::COLUMNS, cells: endpoints::cells },
        "Node" => Layout { columns: node::COLUMNS, cells: node::cells },
        "Event" => Layout { columns: event::COLUMNS, cells: event::cells },
        "Namespace" => Layout { columns: NAMESPACE, cells: namespace },
        "ServiceCIDR" => Layout { columns: SERVICE_CIDR, cells: service_cidr },
        "IPAddress" => Layout { columns: IP_ADDRESS, cells: ip_address },
        "Lease" => Layout { columns: LEASE, cells: lease },
        _ => Layout { columns: PLAIN, cells: |object, now| vec![name(object), created(object, now)] },
    }
}

const fn column(name: &'static str, description: &'static str) -> Column {
    Column { name, description, wide: false }
}

const fn wide(name: &'static str, description: &'static str) -> Column {
    Column { name, description, wide: true }
}

const NAME: Column = column("Name", "The object's name, unique within its kind and namespace.");
const AGE: Column = column("Age", "Time since the object was created.");

const PLAIN: &[Column] = &[NAME, AGE];
const NAMESPACE: &[Column] =
    &[NAME, column("Status", "Whether the namespace is in use or about to be deleted."), AGE];
const SERVICE_CIDR: &[Column] = &[NAME, column("CIDRs", "The ranges that cluster IPs are given from."), AGE];
const IP_ADDRESS: &[Column] = &[NAME, column("ParentRef", "The object that the address belongs to.")];
const LEASE: &[Column] = &[NAME, column("Holder", "The holder of the lease."), AGE];

fn namespace(object: &Object, now: i64) -> Vec<Value> {
    let phase = status(object).and_then(|status| json::text(status, "phase")).unwrap_or_default();
    vec![name(object), phase.into(), created(object, now)]
}

fn service_cidr(object: &Object, now: i64) -> Vec<Value> {
    let cidrs: Vec<&str> = spec(object).map(|spec| json::texts(spec, "cidrs").collect()).unwrap_or_default();
    vec![name(object), cidrs.join(",").into(), created(object, now)]
}

fn ip_address(object: &Object, _: i64) -> Vec<Value> {
    let parent = spec(object).and_then(|spec| json::object(spec, "parentRef")).map(|parent| {
        let text = |key| json::text(parent, key);
        let mut shown = text("resource").unwrap_or_default().to_lowercase();
        if let Some(group) = text("group") {
            shown.extend([".", &group.to_lowercase()]);
        }
        for part in [text("namespace"), Some(text("name").unwrap_or_default())].into_iter().flatten() {
            shown.extend(["/", part]);
        }
        shown
    });
    vec![name(object), or_none(parent.unwrap_or_default())]
}

fn lease(object: &Object, now: i64) -> Vec<Value> {
    let holder = spec(object).and_then(|spec| json::text(spec, "holderIdentity")).unwrap_or_default();
    vec![name(object), holder.into(), created(object, now)]
}

fn metadata_text<'a>(object: &'a Object, key: &str) -> Option<&'a str> {
    json::object(object, "metadata").and_then(|metadata| json::text(metadata, key))
}

fn name(object: &Object) -> Value {
    metadata_text(object, "name").unwrap_or_default().into()
}

fn created(object: &Object, now: i64) -> Value {
    age(metadata_text(object, "creationTimestamp"), now).into()
}

fn spec(object: &Object) -> Option<&Object> {
    json::object(object, "spec")
}

fn status(object: &Object) -> Option<&Object> {
    json::object(object, "status")
}

/// Returns the objects in the list at `key`.
fn objects<'a>(map: &'a Object, key: &str) -> impl Iterator<Item = &'a Object> {
    json::list(map, key).iter().filter_map(Value::as_object)
}

/// Returns the text, or `<none>` if it is empty.
fn or_none(text: String) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

/// Returns `host:port`, with an IPv6 host in brackets.
fn host_port(host: &str, port: i64) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the first three items of a list and the number of the remaining ones.
fn first_three(items: impl Iterator<Item = String>, empty: &str) -> String {
    const SHOWN: usize = 3;
    let mut items = items.peekable();
    let first: Vec<String> = items.by_ref().take(SHOWN).collect();
    match items.count() {
        0 if first.is_empty() => empty.to_owned(),
        0 => first.join(","),
        more => format!("{} + {more} more...", first.join(",")),
    }
}

#[cfg(test)]
mod tests;
