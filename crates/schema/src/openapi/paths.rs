//! Paths and operations of each resource.

use crate::json::{Map, Value, json};

use super::{
    Dialect, parameters,
    schemas::{Schemas, gvk},
};
use crate::resource::{Info, Resource};

const BODIES: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const WATCHES: &[&str] =
    &["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const PATCHES: &[&str] = &[
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// An operation on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Get,
    List,
    Post,
    Put,
    Patch,
    Delete,
    DeleteCollection,
}

/// Returns the paths of a resource, each with its operations.
pub(super) fn of(resource: Resource, schemas: &mut Schemas) -> Vec<(String, Value)> {
    let info = resource.info();
    let root = format!("/{}", super::path(info.api_version));
    let namespace = if info.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{root}{namespace}/{}", info.plural);
    let named = format!("{collection}/{{name}}");
    let served = |actions: &[(&str, Action)]| -> Vec<Action> {
        actions.iter().filter(|(verb, _)| info.serves(verb)).map(|(_, action)| *action).collect()
    };
    let on_collection = served(&[
        ("list", Action::List),
        ("create", Action::Post),
        ("deletecollection", Action::DeleteCollection),
    ]);
    let on_named = served(&[
        ("get", Action::Get),
        ("update", Action::Put),
        ("patch", Action::Patch),
        ("delete", Action::Delete),
    ]);
    let mut paths = vec![(collection.clone(), item(resource, &collection, "", &on_collection, schemas))];
    if !on_named.is_empty() {
        paths.push((named.clone(), item(resource, &named, "", &on_named, schemas)));
    }
    for subresource in info.subresources {
        let path = format!("{named}/{subresource}");
        let verbs = info.subresource_verbs(subresource);
        let actions: Vec<Action> = [("get", Action::Get), ("update", Action::Put), ("patch", Action::Patch)]
            .into_iter()
            .filter_map(|(verb, action)| verbs.contains(&verb).then_some(action))
            .collect();
        paths.push((path.clone(), item(resource, &path, subresource, &actions, schemas)));
    }
    if info.namespaced && info.serves("list") {
        let everywhere = format!("{root}/{}", info.plural);
        paths.push((everywhere.clone(), item(resource, &everywhere, "", &[Action::List], schemas)));
    }
    paths
}

fn item(
    resource: Resource,
    path: &str,
    subresource: &str,
    actions: &[Action],
    schemas: &mut Schemas,
) -> Value {
    let dialect = schemas.dialect();
    let parts = ["namespace", "name"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")));
    let in_path: Vec<Value> = parts.map(|name| parameters::path(dialect, name)).collect();
    let mut item = Map::new();
    for action in actions {
        let operation = operation(resource, path, subresource, *action, schemas);
        item.insert(action.method().to_owned(), operation);
    }
    if !in_path.is_empty() {
        item.insert("parameters".to_owned(), in_path.into());
    }
    Value::Object(item)
}

fn operation(
    resource: Resource,
    path: &str,
    subresource: &str,
    action: Action,
    schemas: &mut Schemas,
) -> Value {
    let (info, dialect) = (resource.info(), schemas.dialect());
    let mut parameters: Vec<Value> = parameters::query(dialect, action.parameters()).collect();
    let body = match action {
        Action::Post | Action::Put => Some((schemas.object(resource), BODIES)),
        Action::Patch => Some((schemas.patch(), PATCHES)),
        Action::Delete | Action::DeleteCollection => Some((schemas.delete_options(), BODIES)),
        Action::Get | Action::List => None,
    };
    let result = match action {
        Action::List | Action::DeleteCollection => schemas.list(resource),
        Action::Delete if !info.delete_returns_object => schemas.status(),
        _ => schemas.object(resource),
    };
    let mut operation = json!({
        "description": action.description(info, subresource),
        "operationId": operation_id(info, path, subresource, action),
        "tags": [tag(info)],
        "x-kubernetes-action": action.name(),
        "x-kubernetes-group-version-kind": gvk(info, ""),
    });
    let Some(fields) = operation.as_object_mut() else { return operation };
    let required = !matches!(action, Action::Delete | Action::DeleteCollection);
    let mut produced = BODIES.to_vec();
    if action == Action::List {
        produced.extend(WATCHES);
    }
    if dialect == Dialect::V2 {
        if let Some((schema, consumed)) = body {
            parameters.push(json!({"name": "body", "in": "body", "required": required, "schema": schema}));
            fields.insert("consumes".to_owned(), json!(consumed));
        }
        fields.insert("produces".to_owned(), json!(produced));
    } else if let Some((schema, consumed)) = body {
        let content = content(consumed, &schema);
        fields.insert("requestBody".to_owned(), json!({"required": required, "content": content}));
    }
    let mut responses = Map::new();
    for code in action.codes() {
        let response = match dialect {
            Dialect::V2 => json!({"description": "OK", "schema": result}),
            Dialect::V3 => json!({"description": "OK", "content": content(&produced, &result)}),
        };
        responses.insert((*code).to_owned(), response);
    }
    fields.insert("responses".to_owned(), responses.into());
    fields.insert("parameters".to_owned(), parameters.into());
    operation
}

fn content(media_types: &[&str], schema: &Value) -> Value {
    media_types.iter().map(|media_type| ((*media_type).to_owned(), json!({"schema": schema}))).collect()
}

/// `core_v1` or `discovery_v1`.
fn tag(info: &Info) -> String {
    format!("{}_{}", short_group(info), info.version)
}

fn short_group(info: &Info) -> &'static str {
    info.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core")
}

/// Returns an operation ID with upstream's naming: `readCoreV1NamespacedServiceStatus`.
fn operation_id(info: &Info, path: &str, subresource: &str, action: Action) -> String {
    let capital = |text: &str| {
        let mut letters = text.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    let namespaced = if path.contains("{namespace}") { "Namespaced" } else { "" };
    let everywhere = if info.namespaced && namespaced.is_empty() { "ForAllNamespaces" } else { "" };
    let group = capital(short_group(info));
    let (version, verb) = (capital(info.version), action.verb());
    format!("{verb}{group}{version}{namespaced}{}{}{everywhere}", info.kind, capital(subresource))
}

impl Action {
    const fn method(self) -> &'static str {
        match self {
            Self::Get | Self::List => "get",
            Self::Post => "post",
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete | Self::DeleteCollection => "delete",
        }
    }

    /// Returns the value of `x-kubernetes-action`.
    const fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::DeleteCollection => "deletecollection",
            other => other.method(),
        }
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::Get => "read",
            Self::List => "list",
            Self::Post => "create",
            Self::Put => "replace",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deleteCollection",
        }
    }

    fn description(self, info: &Info, subresource: &str) -> String {
        let of = if subresource.is_empty() { String::new() } else { format!("{subresource} of the ") };
        let kind = info.kind;
        match self {
            Self::Get => format!("Read the {of}{kind}."),
            Self::List => format!("List or watch objects of kind {kind}."),
            Self::Post => format!("Create a {kind}."),
            Self::Put => format!("Replace the {of}{kind}."),
            Self::Patch => format!("Change a part of the {of}{kind}."),
            Self::Delete => format!("Delete the {kind}."),
            Self::DeleteCollection => format!("Delete objects of kind {kind}."),
        }
    }

    fn parameters(self) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
        let (own, more): (&[_], [&[_]; 2]) = match self {
            Self::Get => (parameters::READ, [&[], &[]]),
            Self::List => (parameters::READ, [parameters::SELECT, parameters::LIST]),
            Self::Post | Self::Put => (parameters::WRITE, [&[], &[]]),
            Self::Patch => (parameters::PATCH, [&[], &[]]),
            Self::Delete => (parameters::DELETE, [&[], &[]]),
            Self::DeleteCollection => (parameters::DELETE, [parameters::SELECT, &[]]),
        };
        own.iter().chain(more.into_iter().flatten())
    }

    const fn codes(self) -> &'static [&'static str] {
        match self {
            Self::Post => &["200", "201", "202"],
            Self::Put | Self::Patch => &["200", "201"],
            Self::Delete => &["200", "202"],
            Self::Get | Self::List | Self::DeleteCollection => &["200"],
        }
    }
}
