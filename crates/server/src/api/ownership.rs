//! Who is to own the fields of the object that a write is making: the writer's name on its way to `managedFields`.

use crate::json::Value;
use portolan_schema::patch::{
    Fields, Writer,
    managed::{self, MAX_MANAGER_NAME},
};

use super::{Part, WriteOptions};
use crate::{
    error::ApiError,
    json::{self, Object},
    metadata,
    resource::Resource,
};

/// The name of a writer of fields, at most 128 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FieldManager {
    length: u8,
    bytes: [u8; MAX_MANAGER_NAME],
}

impl FieldManager {
    /// The server itself.
    pub const SERVER: Self = Self::named("portolan");

    /// A manager of this name, which must have printable characters only.
    pub fn new(name: &str) -> Result<Self, &'static str> {
        managed::check_manager(name)?;
        Ok(Self::named(name))
    }

    /// The manager that a `User-Agent` stands for: its printable characters up to the first `/`.
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

    /// The name.
    pub fn name(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(name).unwrap_or_default()
    }

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

/// Records the owners of an object's fields while a write makes it.
#[derive(Debug)]
pub(super) struct Owners {
    manager: FieldManager,
    subresource: &'static str,
    record: Record,
}

#[derive(Debug)]
enum Record {
    /// All fields are the writer's.
    Create,
    /// The writer's are those that it changes; `given` is the record that it sent along.
    Update { given: Option<Value>, asked: Fields },
    /// It is decided: this is the record.
    Apply(Option<Value>),
}

impl Owners {
    /// For a new object.
    pub(super) fn of_create(options: WriteOptions) -> Self {
        Self { manager: options.field_manager, subresource: "", record: Record::Create }
    }

    /// For the new content of an object; takes the record that it carries.
    pub(super) fn of_update(part: Part, new: &mut Object, options: WriteOptions) -> Self {
        let record = Record::Update { given: taken(new), asked: Fields::default() };
        Self { manager: options.field_manager, subresource: subresource(part), record }
    }

    /// For an object that server-side apply has made; takes the record that it carries.
    pub(super) fn of_apply(part: Part, new: &mut Object, options: WriteOptions) -> Self {
        let record = Record::Apply(taken(new));
        Self { manager: options.field_manager, subresource: subresource(part), record }
    }

    /// To be called when defaults are set and the server has not filled in anything else: that belongs to nobody.
    pub(super) fn note_defaulted(&mut self, resource: Resource, object: &mut Object) {
        match &mut self.record {
            Record::Create => {
                let now = metadata::now();
                managed::created(resource, object, writer(&self.manager, self.subresource, &now));
            }
            Record::Update { asked, .. } => *asked = managed::present(resource, self.subresource, object),
            Record::Apply(record) => put(object, record.take()),
        }
    }

    /// To be called when the new content is complete.
    pub(super) fn record_update(
        self,
        resource: Resource,
        old: &Object,
        new: &mut Object,
    ) -> Result<(), ApiError> {
        let Record::Update { given, asked } = self.record else { return Ok(()) };
        put(new, given);
        let now = metadata::now();
        let writer = writer(&self.manager, self.subresource, &now);
        managed::updated(resource, old, new, &asked, writer).map_err(ApiError::Patch)
    }
}

/// The writer that `options` name, at one endpoint of an object.
pub(super) fn writer<'a>(manager: &'a FieldManager, subresource: &'a str, now: &'a str) -> Writer<'a> {
    Writer { manager: manager.name(), subresource, now }
}

/// The path segment behind the name of the object.
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
