//! `metadata.managedFields`: which manager wrote each field last, or applies it.
//!
//! There is one entry for each manager, operation, API version and subresource. A write that is not an apply takes the
//! fields that it adds or changes from all other managers; the fields that it removes lose their owners. Source of the
//! rules: upstream's `managedfields`.

use std::collections::BTreeMap;

use crate::json::Value;

use super::{
    Fields, PatchError,
    ownership::{Difference, Scope},
};
use crate::{
    json::{self, Object},
    resource::Resource,
};

#[cfg(test)]
mod tests;

/// Maximum bytes of a manager's name (apimachinery `FieldManagerMaxLength`).
pub const MAX_MANAGER_NAME: usize = 128;
/// Maximum entries of operation Update (apiserver `DefaultMaxUpdateManagers`).
const MAX_UPDATE_ENTRIES: usize = 10;
/// The manager that owns the fields of the oldest entries after they are merged because there are too many.
const ANCIENT: &str = "ancient-changes";
/// The name in entries of a manager without a name.
const UNKNOWN: &str = "unknown";
/// Maximum bytes of a subresource's name (apimachinery `MaxSubresourceNameLength`).
const MAX_SUBRESOURCE_NAME: usize = 256;

/// The manager, the endpoint and the time of a write.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// The manager's name (query parameter `fieldManager`). May be empty, except for server-side apply.
    pub manager: &'a str,
    /// The subresource that is written; empty for the main endpoint.
    pub subresource: &'a str,
    /// The current time, as RFC 3339 in whole seconds.
    pub now: &'a str,
}

/// Records the writer of a new object as the owner of all its fields. An object with too many fields gets no record.
pub fn created(resource: Resource, object: &mut Object, writer: Writer<'_>) {
    let scope = Scope { resource, subresource: writer.subresource };
    let mut managers = Managers::default();
    if scope.records(object) {
        let fields = scope.compare(&Object::new(), object).changed;
        if !fields.is_empty() {
            let owned = Owned { fields, time: Some(writer.now.to_owned()) };
            managers.0.insert(Key::new(Operation::Update, resource, writer), owned);
        }
    }
    managers.store(object);
}

/// Returns all fields of an object that a write to `subresource` may own; none if the object has too many fields.
pub fn present(resource: Resource, subresource: &str, object: &Object) -> Fields {
    let scope = Scope { resource, subresource };
    if scope.records(object) { scope.compare(&Object::new(), object).changed } else { Fields::default() }
}

/// Updates the owners of fields after a write that changed `old` to `new`. Of the new or changed fields, the writer owns
/// those in `asked`. The server set the others, and they have no owner.
///
/// `new` holds the `managedFields` that the client sent, if any: a client may edit them, or reset them with an empty
/// list. If `old` has no record of owners, `new` gets none until the first apply. If `new` has too many fields, its
/// record is removed.
pub fn updated(
    resource: Resource,
    old: &Object,
    new: &mut Object,
    asked: &Fields,
    writer: Writer<'_>,
) -> Result<(), PatchError> {
    let given = json::object_mut(new, "metadata").and_then(|metadata| metadata.remove("managedFields"));
    // The record can be edited through the main endpoint only.
    let given = given.filter(|given| writer.subresource.is_empty() && !given.is_null());
    let live = recorded(old);
    let scope = Scope { resource, subresource: writer.subresource };
    if !(scope.records(old) && scope.records(new)) {
        return Ok(());
    }
    let difference = scope.compare(old, new);
    let mut managers = match &given {
        Some(given) if is_reset(given) => Managers::default(),
        Some(Value::Array(entries)) if live != Some(entries) => Managers::decode(entries)?.timed_as(live),
        _ if difference.is_empty() => {
            put_back(new, live);
            return Ok(());
        }
        _ => Managers::decode_stored(live),
    };
    if !managers.0.is_empty() {
        managers.record(resource, &difference, asked, writer);
    }
    managers.store(new);
    Ok(())
}

/// Checks a manager's name in a query parameter or an entry.
pub fn check_manager(name: &str) -> Result<(), &'static str> {
    if name.len() > MAX_MANAGER_NAME {
        Err("must be at most 128 bytes long")
    } else if name.chars().any(char::is_control) {
        Err("must have printable characters only")
    } else {
        Ok(())
    }
}

/// Restores the times of `old` in the owners of `new`, the complete result of a server-side apply, if no field differs: an
/// object with new times only is not stored again (apiserver `IgnoreManagedFieldsTimestampsTransformer`).
pub fn applied(resource: Resource, subresource: &str, old: &Object, new: &mut Object) {
    // The apply itself may have seen a difference: the configuration lacks values that the server fills in afterwards.
    if (Scope { resource, subresource }).compare(old, new).is_empty() {
        Managers::decode_stored(recorded(new)).timed_as(recorded(old)).store(new);
    }
}

fn put_back(object: &mut Object, entries: Option<&[Value]>) {
    if let (Some(metadata), Some(entries)) = (json::object_mut(object, "metadata"), entries) {
        metadata.insert("managedFields".to_owned(), entries.into());
    }
}

/// Returns true if the client asks to remove all owners: the list is empty, or has one empty entry.
fn is_reset(given: &Value) -> bool {
    match given {
        Value::Array(entries) => match entries.as_slice() {
            [] => true,
            [Value::Object(entry)] => entry.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

/// Returns the entries of an object; `None` if there are none.
pub(super) fn recorded(object: &Object) -> Option<&[Value]> {
    let entries = json::object(object, "metadata")?.get("managedFields")?.as_array()?;
    Some(entries.as_slice()).filter(|entries| !entries.is_empty())
}

/// The identity of an entry. Entries are listed in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) operation: Operation,
    pub(super) manager: String,
    pub(super) api_version: String,
    pub(super) subresource: String,
}

/// The operation by which a manager owns fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

/// The fields that a manager owns, and the time of its last change to them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Owned {
    pub(super) fields: Fields,
    pub(super) time: Option<String>,
}

/// The decoded `managedFields`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Managers(pub(super) BTreeMap<Key, Owned>);

impl Key {
    pub(super) fn new(operation: Operation, resource: Resource, writer: Writer<'_>) -> Self {
        let manager = if writer.manager.is_empty() { UNKNOWN } else { writer.manager };
        Self {
            operation,
            manager: manager.to_owned(),
            api_version: resource.info().api_version.to_owned(),
            subresource: writer.subresource.to_owned(),
        }
    }
}

impl Managers {
    /// Decodes entries that a client sent.
    pub(super) fn decode(entries: &[Value]) -> Result<Self, PatchError> {
        let mut managers = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let (key, owned) = decode_entry(entry)
                .map_err(|reason| PatchError::failed(format!("metadata.managedFields[{index}]: {reason}")))?;
            managers.0.entry(key).or_default().merge(owned);
        }
        Ok(managers)
    }

    /// Decodes entries that this server wrote. Entries that cannot be decoded count as none.
    pub(super) fn decode_stored(entries: Option<&[Value]>) -> Self {
        Self::decode(entries.unwrap_or_default()).unwrap_or_default()
    }

    /// Makes the writer the owner of the changed fields that are in `asked`. Removes changed and removed fields from all
    /// other managers.
    pub(super) fn record(
        &mut self,
        resource: Resource,
        difference: &Difference,
        asked: &Fields,
        writer: Writer<'_>,
    ) {
        if difference.is_empty() {
            return;
        }
        let own = Key::new(Operation::Update, resource, writer);
        self.take(difference, &own);
        let gained = difference.changed.common(asked);
        if !gained.is_empty() {
            let owned = self.0.entry(own).or_default();
            owned.fields.add(&gained);
            owned.time = Some(writer.now.to_owned());
            self.cap();
        }
    }

    /// Removes changed fields from all managers except `writer`, and removed fields from all managers.
    pub(super) fn take(&mut self, difference: &Difference, writer: &Key) {
        self.0.retain(|key, owned| {
            owned.fields.subtract(&difference.removed);
            if key != writer {
                owned.fields.subtract(&difference.changed);
            }
            !owned.fields.is_empty()
        });
    }

    /// Merges the oldest Update entries into one if there are too many.
    fn cap(&mut self) {
        let mut updates: Vec<(Option<String>, Key)> = self
            .0
            .iter()
            .filter(|(key, _)| key.operation == Operation::Update)
            .map(|(key, owned)| (owned.time.clone(), key.clone()))
            .collect();
        if updates.len() <= MAX_UPDATE_ENTRIES {
            return;
        }
        updates.sort();
        let excess = updates.len() - MAX_UPDATE_ENTRIES + 1;
        for (_, key) in updates.into_iter().take(excess) {
            let Some(owned) = self.0.remove(&key) else { continue };
            let ancient = Key { manager: ANCIENT.to_owned(), ..key };
            self.0.entry(ancient).or_default().merge(owned);
        }
    }

    /// Restores the time of each entry that owns the same fields as in `live`: a new time alone is not a change.
    fn timed_as(mut self, live: Option<&[Value]>) -> Self {
        for (key, before) in Self::decode_stored(live).0 {
            if let Some(owned) = self.0.get_mut(&key).filter(|owned| owned.fields == before.fields) {
                owned.time = before.time;
            }
        }
        self
    }

    /// Writes the entries into `object`.
    pub(super) fn store(self, object: &mut Object) {
        let Some(metadata) = json::object_mut(object, "metadata") else { return };
        if self.0.is_empty() {
            metadata.remove("managedFields");
            return;
        }
        let entries = self.0.into_iter().map(|(key, owned)| encode_entry(key, owned)).collect();
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

impl Owned {
    fn merge(&mut self, other: Self) {
        if self.fields.is_empty() {
            self.fields = other.fields;
        } else {
            self.fields.add(&other.fields);
        }
        self.time = self.time.take().max(other.time);
    }
}

fn decode_entry(entry: &Value) -> Result<(Key, Owned), String> {
    let Value::Object(entry) = entry else { return Err("an entry is an object".to_owned()) };
    let text = |name: &str| match entry.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(format!("{name} is not a string")),
    };
    let operation = match text("operation")? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        other => return Err(format!("operation is \"{other}\", it must be Apply or Update")),
    };
    if !matches!(text("fieldsType")?, "" | "FieldsV1") {
        return Err("fieldsType must be FieldsV1".to_owned());
    }
    let manager = text("manager")?;
    check_manager(manager).map_err(|reason| format!("manager {reason}"))?;
    let subresource = text("subresource")?;
    if subresource.len() > MAX_SUBRESOURCE_NAME {
        return Err(format!("subresource must be at most {MAX_SUBRESOURCE_NAME} bytes long"));
    }
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => Fields::default(),
        Some(fields) => Fields::decode(fields).map_err(|reason| format!("fieldsV1: {reason}"))?,
    };
    let key = Key {
        operation,
        manager: manager.to_owned(),
        api_version: text("apiVersion")?.to_owned(),
        subresource: subresource.to_owned(),
    };
    let time = Some(text("time")?).filter(|time| !time.is_empty()).map(str::to_owned);
    Ok((key, Owned { fields, time }))
}

fn encode_entry(key: Key, owned: Owned) -> Value {
    let operation = match key.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    let mut entry = Object::new();
    entry.insert("apiVersion".to_owned(), key.api_version.into());
    entry.insert("fieldsType".to_owned(), "FieldsV1".into());
    entry.insert("fieldsV1".to_owned(), owned.fields.encode());
    entry.insert("manager".to_owned(), key.manager.into());
    entry.insert("operation".to_owned(), operation.into());
    if !key.subresource.is_empty() {
        entry.insert("subresource".to_owned(), key.subresource.into());
    }
    if let Some(time) = owned.time {
        entry.insert("time".to_owned(), time.into());
    }
    Value::Object(entry)
}
