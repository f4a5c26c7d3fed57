//! The OpenAPI documents, generated from the tables of resources and fields.
//!
//! Version 3 has one document for each group and version; version 2 has one document for all. kubectl before 1.27
//! reads only version 2, as protobuf. Clients use the documents to validate objects before they send them
//! (`kubectl apply`), to choose the type of a patch, and to explain fields.

mod parameters;
mod paths;
mod protobuf;
mod schemas;

use crate::json::{Value, json};

use self::schemas::Schemas;
use crate::resource::Resource;

pub use protobuf::to_protobuf;

#[cfg(test)]
mod tests;

/// The versions of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

/// Returns the OpenAPI 3 document of a group and version.
pub fn v3(api_version: &str) -> Value {
    let resources = Resource::served().filter(|resource| resource.info().api_version == api_version);
    let (paths, schemas) = describe(Dialect::V3, resources);
    json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": {"schemas": schemas}})
}

/// Returns the OpenAPI 2 document of all groups and versions.
pub fn v2() -> Value {
    let (paths, schemas) = describe(Dialect::V2, Resource::served());
    json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": schemas})
}

/// Returns the path of a version's resources, which also names its document: `api/v1` or `apis/{group}/{version}`.
pub fn path(api_version: &str) -> String {
    let root = if api_version.contains('/') { "apis" } else { "api" };
    format!("{root}/{api_version}")
}

fn describe(dialect: Dialect, resources: impl Iterator<Item = Resource>) -> (Value, Value) {
    let mut schemas = Schemas::new(dialect);
    let mut all = crate::json::Map::new();
    for resource in resources {
        all.extend(paths::of(resource, &mut schemas));
    }
    (Value::Object(all), schemas.finish())
}

fn info() -> Value {
    json!({"title": "Portolan", "version": env!("CARGO_PKG_VERSION")})
}
