//! Generates schemas from the tables of fields.

use crate::json::{Map, Value, json};

use super::Dialect;
use crate::{
    resource::{Info, Resource},
    shape::{self, Field, Merge, Struct, Type, meta},
};

/// Schemas by name: those that operations refer to, and those that these refer to.
#[derive(Debug)]
pub(super) struct Schemas {
    dialect: Dialect,
    schemas: Map,
}

/// A type with the same definition in all documents.
struct Common {
    name: &'static str,
    doc: &'static str,
    v2: fn() -> Value,
    v3: fn() -> Value,
}

const TIME: Common = Common {
    name: "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    doc: "A time in whole seconds, in RFC 3339.",
    v2: || json!({"type": "string", "format": "date-time"}),
    v3: || json!({"type": "string", "format": "date-time"}),
};
const MICRO_TIME: Common = Common {
    name: "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    doc: "A time in microseconds, in RFC 3339.",
    ..TIME
};
const INT_OR_STRING: Common = Common {
    name: "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
    doc: "A 32-bit integer or a text.",
    v2: || json!({"type": "string", "format": "int-or-string"}),
    v3: || json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
};
const QUANTITY: Common = Common {
    name: "io.k8s.apimachinery.pkg.api.resource.Quantity",
    doc: "An amount with an optional unit, such as 100m or 4Gi.",
    v2: || json!({"type": "string"}),
    v3: || json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
};
const FIELDS: Common = Common {
    name: "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    doc: "A set of fields, as nested objects with a key for each.",
    v2: || json!({"type": "object"}),
    v3: || json!({"type": "object"}),
};
const RAW: Common =
    Common { name: "io.k8s.apimachinery.pkg.runtime.RawExtension", doc: "Any object.", ..FIELDS };
const PATCH: Common = Common {
    name: "io.k8s.apimachinery.pkg.apis.meta.v1.Patch",
    doc: "A change of an object; its form depends on the media type.",
    ..FIELDS
};

impl Schemas {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { dialect, schemas: Map::new() }
    }

    pub(super) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns a reference to the schema of a resource's objects.
    pub(super) fn object(&mut self, resource: Resource) -> Value {
        let reference = self.structure(shape::of(resource));
        self.name_kind(shape::of(resource), &gvk(resource.info(), ""));
        reference
    }

    /// Returns a reference to the schema of lists of a resource's objects.
    pub(super) fn list(&mut self, resource: Resource) -> Value {
        self.object(resource);
        let reference = self.structure(shape::list_of(resource));
        self.name_kind(shape::list_of(resource), &gvk(resource.info(), "List"));
        reference
    }

    /// Returns a reference to the schema of Status.
    pub(super) fn status(&mut self) -> Value {
        let reference = self.structure(&meta::STATUS);
        self.name_kind(&meta::STATUS, &json!({"group": "", "version": "v1", "kind": "Status"}));
        reference
    }

    /// Returns a reference to the schema of `DeleteOptions`.
    pub(super) fn delete_options(&mut self) -> Value {
        let reference = self.structure(&meta::DELETE_OPTIONS);
        self.name_kind(
            &meta::DELETE_OPTIONS,
            &json!({"group": "", "version": "v1", "kind": "DeleteOptions"}),
        );
        reference
    }

    /// Returns a reference to the schema of patches.
    pub(super) fn patch(&mut self) -> Value {
        self.common(&PATCH)
    }

    pub(super) fn finish(self) -> Value {
        Value::Object(self.schemas)
    }

    /// Marks the schema as that of a kind (`x-kubernetes-group-version-kind`), so that clients find it.
    fn name_kind(&mut self, structure: &Struct, kind: &Value) {
        if let Some(schema) = self.schemas.get_mut(structure.name).and_then(Value::as_object_mut) {
            schema.insert("x-kubernetes-group-version-kind".to_owned(), json!([kind]));
        }
    }

    fn structure(&mut self, structure: &'static Struct) -> Value {
        if !self.schemas.contains_key(structure.name) {
            // The name is inserted first: tables may refer to each other.
            self.schemas.insert(structure.name.to_owned(), Value::Null);
            let schema = self.object_schema(structure);
            self.schemas.insert(structure.name.to_owned(), schema);
        }
        self.reference(structure.name)
    }

    fn object_schema(&mut self, structure: &'static Struct) -> Value {
        let mut properties = Map::new();
        for field in structure.fields {
            properties.insert(field.name.to_owned(), self.field(field));
        }
        let required: Vec<&str> =
            structure.fields.iter().filter(|field| field.required).map(|field| field.name).collect();
        let mut schema = json!({
            "description": structure.doc, "type": "object", "properties": properties,
        });
        if let Some(schema) = schema.as_object_mut() {
            if !required.is_empty() {
                schema.insert("required".to_owned(), json!(required));
            }
            if structure.atomic {
                schema.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
            }
        }
        schema
    }

    fn field(&mut self, field: &Field) -> Value {
        let schema = self.value(&field.kind);
        let mut schema = match schema {
            // In version 3 a reference has no sibling members.
            Value::Object(schema) if self.dialect == Dialect::V3 && schema.contains_key("$ref") => {
                Map::from_iter([("allOf".to_owned(), json!([schema]))])
            }
            Value::Object(schema) => schema,
            _ => Map::new(),
        };
        schema.insert("description".to_owned(), field.doc.into());
        if let Some(default) = field.default {
            let parsed = serde_json::from_str(default).ok().filter(|_| !matches!(field.kind, Type::Text));
            schema.insert("default".to_owned(), parsed.unwrap_or_else(|| default.into()));
        }
        if !field.values.is_empty() {
            let values = json!(field.values);
            match schema.get_mut("items").and_then(Value::as_object_mut) {
                Some(element) => element.insert("enum".to_owned(), values),
                None => schema.insert("enum".to_owned(), values),
            };
        }
        schema.extend(markers(field));
        Value::Object(schema)
    }

    fn value(&mut self, kind: &Type) -> Value {
        match kind {
            Type::Text => json!({"type": "string"}),
            Type::Bool => json!({"type": "boolean"}),
            Type::Int32 => json!({"type": "integer", "format": "int32"}),
            Type::Int64 => json!({"type": "integer", "format": "int64"}),
            Type::IntOrText => self.common(&INT_OR_STRING),
            Type::Time => self.common(&TIME),
            Type::MicroTime => self.common(&MICRO_TIME),
            Type::Quantity => self.common(&QUANTITY),
            Type::Json => self.common(&RAW),
            Type::FieldsV1 => self.common(&FIELDS),
            Type::List(element) => json!({"type": "array", "items": self.value(element)}),
            Type::Map(element) => json!({"type": "object", "additionalProperties": self.value(element)}),
            Type::Object(structure) => self.structure(structure),
        }
    }

    fn common(&mut self, common: &Common) -> Value {
        let make = if self.dialect == Dialect::V2 { common.v2 } else { common.v3 };
        self.schemas.entry(common.name).or_insert_with(|| {
            let mut schema = make();
            if let Some(schema) = schema.as_object_mut() {
                schema.insert("description".to_owned(), common.doc.into());
            }
            schema
        });
        self.reference(common.name)
    }

    fn reference(&self, name: &str) -> Value {
        let place = match self.dialect {
            Dialect::V2 => "definitions",
            Dialect::V3 => "components/schemas",
        };
        json!({"$ref": format!("#/{place}/{name}")})
    }
}

/// Returns group, version and kind as the documents write them. `suffix` is `List` for lists.
pub(super) fn gvk(info: &Info, suffix: &str) -> Value {
    json!({"group": info.group, "version": info.version, "kind": format!("{}{suffix}", info.kind)})
}

/// Returns the markers that describe how the field merges (`x-kubernetes-...`).
fn markers(field: &Field) -> Vec<(String, Value)> {
    let marker = |name: &str, value: Value| (format!("x-kubernetes-{name}"), value);
    let merges = || marker("patch-strategy", "merge".into());
    match field.merge {
        Merge::Default => Vec::new(),
        Merge::Atomic => {
            let of = if matches!(field.kind, Type::List(_)) { "list-type" } else { "map-type" };
            vec![marker(of, "atomic".into())]
        }
        Merge::Set { patch_merges } => {
            let mut markers = vec![marker("list-type", "set".into())];
            markers.extend(patch_merges.then(merges));
            markers
        }
        Merge::Keyed { keys, patch_key } => {
            let mut markers = vec![marker("list-type", "map".into()), marker("list-map-keys", json!(keys))];
            if let Some(key) = patch_key {
                markers.extend([marker("patch-merge-key", key.into()), merges()]);
            }
            markers
        }
    }
}
