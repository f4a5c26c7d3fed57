//! Ownership of fields: carries the field manager of a write to the object's `managedFields`. For objects with more
//! than 16,384 fields no owners are recorded.

use portolan_schema::{
    Resource,
    json::{self, Object, Value},
    patch::{
        Fields, Writer,
        managed::{self, MAX_MANAGER_NAME},
    },
};

use super::{Part, WriteOptions};
use crate::{error::ApiError, metadata};

/// The name of a field manager, at most 128 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FieldManager {
    length: u8,
    bytes: [u8; MAX_MANAGER_NAME],
}

impl FieldManager {
    /// The server's own manager.
    pub const SERVER: Self = Self::named("portolan");

    /// Returns a manager with this name. The name must consist of printable characters.
    pub fn new(name: &str) -> Result<Self, &'static str> {
        managed::check_manager(name)?;
        Ok(Self::named(name))
    }

    /// Returns the manager for a `User-Agent` header: its printable characters up to the first `/`, at most 128
    /// bytes.
    pub fn of_user_agent(agent: &str) -> Self {
        let name = agent.split('/').next().unwrap_or_default();
        let mut printable = String::new();
        for character in name.chars().filter(|character| !character.is_control()) {
            if printable.len() + character.len_utf8() > MAX_MANAGER_NAME {
                break;
            }
            printable.push(character);
        }
        Self::named(&printable)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(name).unwrap_or_default()
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_MANAGER_NAME, which is below 256")]
    const fn named(name: &str) -> Self {
        let mut bytes = [0; MAX_MANAGER_NAME];
        let length = if name.len() < MAX_MANAGER_NAME { name.len() } else { MAX_MANAGER_NAME };
        let (head, _) = bytes.split_at_mut(length);
        head.copy_from_slice(name.as_bytes().split_at(length).0);
        Self { length: length as u8, bytes }
    }
}

impl Default for FieldManager {
    fn default() -> Self {
        Self::SERVER
    }
}

impl std::fmt::Debug for FieldManager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name().fmt(formatter)
    }
}

/// Records the owners of an object's fields while a write builds it.
#[derive(Debug)]
pub(super) struct Owners {
    manager: FieldManager,
    subresource: &'static str,
    record: Record,
}

#[derive(Debug)]
enum Record {
    /// The writer owns all fields.
    Create,
    /// The writer owns the fields that it changes. `given` is the `managedFields` in the request; `asked` are the
    /// fields that the new object has once defaults are set.
    Update { given: Option<Value>, asked: Fields },
    /// The `managedFields` are known before the object is complete.
    Known(Option<Value>),
}

impl Owners {
    /// Returns the owners of a new object's fields.
    pub(super) fn of_create(options: WriteOptions) -> Self {
        Self { manager: options.field_manager, subresource: "", record: Record::Create }
    }

    /// Returns the owners for a replaced or patched object. Removes `managedFields` from `new`.
    pub(super) fn of_update(part: Part, new: &mut Object, options: WriteOptions) -> Self {
        let record = Record::Update { given: taken(new), asked: Fields::default() };
        Self { manager: options.field_manager, subresource: subresource(part), record }
    }

    /// Returns the owners for the result of a server-side apply. Removes `managedFields` from `new`.
    pub(super) fn of_apply(part: Part, new: &mut Object, options: WriteOptions) -> Self {
        let record = Record::Known(taken(new));
        Self { manager: options.field_manager, subresource: subresource(part), record }
    }

    /// Returns the owners of `old`, for an update that leaves them as they are. Removes `managedFields` from `new`.
    pub(super) fn kept(old: &Object, new: &mut Object) -> Self {
        taken(new);
        let record =
            json::object(old, "metadata").and_then(|metadata| metadata.get("managedFields")).cloned();
        Self { manager: FieldManager::SERVER, subresource: "", record: Record::Known(record) }
    }

    /// Notes which fields are set. Must be called after defaulting and before the server fills in allocated values,
    /// which no manager owns.
    pub(super) fn note_defaulted(&mut self, resource: Resource, object: &mut Object) {
        match &mut self.record {
            Record::Create => {
                let now = metadata::now();
                managed::created(resource, object, writer(&self.manager, self.subresource, &now));
            }
            Record::Update { asked, .. } => *asked = managed::present(resource, self.subresource, object),
            Record::Known(record) => put(object, record.take()),
        }
    }

    /// Writes the `managedFields` of an update. Must be called when the new object is complete.
    pub(super) fn record_update(
        self,
        resource: Resource,
        old: &Object,
        new: &mut Object,
    ) -> Result<(), ApiError> {
        match self.record {
            Record::Create => {}
            Record::Update { given, asked } => {
                put(new, given);
                let now = metadata::now();
                let writer = writer(&self.manager, self.subresource, &now);
                managed::updated(resource, old, new, &asked, writer).map_err(ApiError::Patch)?;
            }
            Record::Known(_) => managed::applied(resource, self.subresource, old, new),
        }
        Ok(())
    }
}

/// Returns the writer of fields at one endpoint of an object.
pub(super) fn writer<'a>(manager: &'a FieldManager, subresource: &'a str, now: &'a str) -> Writer<'a> {
    Writer { manager: manager.name(), subresource, now }
}

/// Returns the path segment of the subresource; empty for the object itself.
pub(super) fn subresource(part: Part) -> &'static str {
    match part {
        Part::Main => "",
        Part::Status => "status",
        Part::Finalize => "finalize",
    }
}

fn taken(object: &mut Object) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn put(object: &mut Object, record: Option<Value>) {
    if let (Some(metadata), Some(record)) = (json::object_mut(object, "metadata"), record) {
        metadata.insert("managedFields".to_owned(), record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_names_a_manager() {
        let long = "x".repeat(127) + "\u{e9}y";
        for (agent, name) in [
            ("kubectl/v1.36.2 (linux/amd64)", "kubectl"),
            ("curl", "curl"),
            ("", ""),
            ("a\u{7f}b\n/1", "ab"),
            (long.as_str(), &long[..127]),
        ] {
            assert_eq!(FieldManager::of_user_agent(agent).name(), name);
        }
        assert_eq!(FieldManager::new(&"x".repeat(128)).unwrap().name().len(), 128);
        assert!(FieldManager::new(&"x".repeat(129)).is_err() && FieldManager::new("a\tb").is_err());
        assert_eq!(FieldManager::default().name(), "portolan");
    }
}
