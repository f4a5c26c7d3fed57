//! Server-side apply: a configuration holds the fields that its manager wants to set. All other fields belong to other
//! managers.
//!
//! An apply sets the fields that the configuration names and makes the manager their owner. It removes a field that only
//! the manager's previous configuration names, unless another manager owns it too. A field is a conflict if another
//! manager owns it and the apply would change its value. A null, `false` or empty value in the configuration claims its
//! field and removes the value. Source of the rules: upstream's `managedfields` and `structured-merge-diff`.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::json::{List, Value};

use super::{
    Conflict, PatchError,
    fields::Fields,
    managed::{Key, Managers, Operation, Owned, Writer, recorded},
    node::{Form, Node},
    ownership::{Difference, Scope, tracks_metadata},
    replace,
};
use crate::{
    json::{self, Object},
    resource::Resource,
    shape,
};

#[cfg(test)]
mod tests;

/// The manager that owns the existing fields of an object without owners when it is applied to for the first time.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The manager for which the annotation of client-side apply is read and updated.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A configuration to apply to an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Apply {
    resource: Resource,
    configuration: Object,
    force: bool,
}

impl Apply {
    /// Reads a configuration. With `force`, the apply takes over fields of other managers instead of reporting conflicts.
    pub fn decode(resource: Resource, mut configuration: Object, force: bool) -> Result<Self, PatchError> {
        let info = resource.info();
        for (name, expected) in [("apiVersion", info.api_version), ("kind", info.kind)] {
            if json::text(&configuration, name) != Some(expected) {
                return Err(PatchError::malformed(format!(
                    "{name} must be {expected} in a configuration to apply"
                )));
            }
        }
        let metadata = json::object(&configuration, "metadata");
        if metadata.and_then(|it| it.get("managedFields")).is_some_and(|entries| !entries.is_null()) {
            return Err(PatchError::malformed(
                "metadata.managedFields must not be in a configuration to apply".to_owned(),
            ));
        }
        let unknown = shape::conform_configuration(resource, &mut configuration)?;
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            return Err(PatchError::malformed(format!(
                "unknown fields in a configuration to apply: {unknown}"
            )));
        }
        if let Some(reason) = bad_list(Node::root(resource), &configuration, "") {
            return Err(PatchError::malformed(reason));
        }
        drop_unclaimed_nulls(&mut configuration);
        Ok(Self { resource, configuration, force })
    }

    /// Returns the object after the apply, with its `managedFields`. `live` is the stored object; `None` creates a new
    /// one.
    pub fn onto(&self, live: Option<&Object>, writer: Writer<'_>) -> Result<Object, PatchError> {
        self.onto_keeping(live, writer, |_, _| {})
    }

    /// Returns the object after the apply like [`Apply::onto`]. `keep` puts values of the live object, its second
    /// argument, back into the new one: those that the server itself has written into fields of the managers. They are
    /// kept before the two objects are compared, so they are no change, and cause no conflict.
    pub fn onto_keeping(
        &self,
        live: Option<&Object>,
        writer: Writer<'_>,
        keep: impl FnOnce(&mut Object, &Object),
    ) -> Result<Object, PatchError> {
        let scope = Scope { resource: self.resource, subresource: writer.subresource };
        scope.check(&self.configuration)?;
        live.map_or(Ok(()), |live| scope.check(live))?;
        let configuration = self.within(scope);
        let nothing = Object::new();
        let before = live.unwrap_or(&nothing);
        let mut managers = Managers::decode_stored(recorded(before));
        if managers.0.is_empty() && live.is_some() {
            let everything = scope.compare(&nothing, before);
            let writer = Writer { manager: BEFORE_FIRST_APPLY, ..writer };
            managers.record(self.resource, &everything, &everything.changed, writer);
        }
        let own = Key::new(Operation::Apply, self.resource, writer);
        let previous = managers.0.remove(&own);
        let named = scope.named(&configuration);

        let mut object = before.clone();
        merge_members(Node::root(self.resource), &mut object, &configuration);
        if let Some(previous) = &previous {
            let mut kept = named.clone();
            managers.0.values().for_each(|owned| kept.add(&owned.fields));
            prune_members(Node::root(self.resource), &mut object, &previous.fields, &kept);
        }
        if let Some(live) = live {
            keep(&mut object, live);
        }
        shape::drop_absent(self.resource, &mut object);
        let difference = scope.compare(before, &object);
        if !self.force {
            // As upstream, the members of an object that is set to null are removed without a conflict.
            let mut touched = difference.removed.common_leaves(&named);
            touched.add(&difference.changed);
            let conflicts = conflicts(&managers, &touched, &tolerated(self.resource, before, writer));
            if !conflicts.is_empty() {
                return Err(PatchError::Conflicts(conflicts));
            }
        }
        managers.take(&difference, &own);
        if !named.is_empty() {
            managers.0.insert(own, owned(named, previous, &difference, writer));
        }
        if writer.manager == KUBECTL {
            self.keep_last_applied(&mut object);
        }
        managers.store(&mut object);
        Ok(object)
    }

    /// Returns the configuration without the fields that its manager cannot own. It is copied only if it has any, because it may be
    /// large.
    fn within(&self, scope: Scope<'_>) -> Cow<'_, Object> {
        let is_within = |name: &str| scope.tracks(name) || matches!(name, "apiVersion" | "kind" | "metadata");
        if self.configuration.keys().all(|name| is_within(name)) {
            return Cow::Borrowed(&self.configuration);
        }
        let within = self.configuration.iter().filter(|(name, _)| is_within(name));
        Cow::Owned(within.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// Updates the annotation of client-side apply to this configuration, if the object has that annotation.
    fn keep_last_applied(&self, object: &mut Object) {
        let annotations = json::object_mut(object, "metadata")
            .and_then(|metadata| metadata.get_mut("annotations"))
            .and_then(Value::as_object_mut);
        let Some(annotation) = annotations.and_then(|annotations| annotations.get_mut(LAST_APPLIED)) else {
            return;
        };
        let mut configuration = self.configuration.clone();
        if let Some(metadata) = configuration.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove(LAST_APPLIED);
            }
        }
        *annotation = format!("{}\n", Value::Object(configuration)).into();
    }
}

/// Returns the fields that the manager owns after the apply. If the apply changes nothing, their time stays the same.
fn owned(fields: Fields, previous: Option<Owned>, difference: &Difference, writer: Writer<'_>) -> Owned {
    let time = previous.filter(|previous| difference.is_empty() && previous.fields == fields);
    let time = time.map_or_else(|| Some(writer.now.to_owned()), |previous| previous.time);
    Owned { fields, time }
}

/// Returns the text of [`PatchError::Conflicts`], worded as upstream.
pub(super) fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.owner, only.field);
    }
    let mut message = format!("Apply failed with {} conflicts:", conflicts.len());
    let mut owner = "";
    for conflict in conflicts {
        if conflict.owner != owner {
            owner = &conflict.owner;
            message.extend([" conflicts with ", owner, ":"]);
        }
        message.extend(["\n- ", &conflict.field]);
    }
    message
}

/// Returns the `touched` fields that other managers own, except those in `tolerated`.
fn conflicts(managers: &Managers, touched: &Fields, tolerated: &Fields) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    for (key, owned) in &managers.0 {
        let mut fields = owned.fields.common(touched);
        fields.subtract(tolerated);
        let mut owner = format!("\"{}\"", key.manager);
        if !key.subresource.is_empty() {
            owner.extend([" with subresource \"", &key.subresource, "\""]);
        }
        if key.operation == Operation::Update {
            owner.extend([" using ", &key.api_version]);
            if let Some(time) = &owned.time {
                owner.extend([" at ", time]);
            }
        }
        conflicts.extend(fields.paths().into_iter().map(|field| Conflict { owner: owner.clone(), field }));
    }
    conflicts
}

/// Returns the fields that kubectl's client-side apply has set: kubectl's server-side apply may take them over.
fn tolerated(resource: Resource, live: &Object, writer: Writer<'_>) -> Fields {
    let annotation = json::object(live, "metadata")
        .and_then(|metadata| json::object(metadata, "annotations"))
        .and_then(|annotations| json::text(annotations, LAST_APPLIED))
        .filter(|_| writer.manager == KUBECTL);
    let configuration = annotation.and_then(|text| serde_json::from_str::<Object>(text).ok());
    let Some(mut configuration) = configuration else { return Fields::default() };
    match shape::conform_configuration(resource, &mut configuration) {
        Ok(_) => Scope { resource, subresource: writer.subresource }.named(&configuration),
        Err(_) => Fields::default(),
    }
}

/// Removes nulls of fields that no manager owns: clients send `creationTimestamp: null`, for example.
fn drop_unclaimed_nulls(configuration: &mut Object) {
    configuration.retain(|_, value| !value.is_null());
    if let Some(metadata) = configuration.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, value| !value.is_null() || tracks_metadata(name));
    }
}

fn merge_members(node: Node, live: &mut Object, applied: &Object) {
    for (name, applied) in applied {
        match live.get_mut(name) {
            Some(live) => merge(node.member(name), live, applied),
            None => {
                live.insert(name.clone(), applied.clone());
            }
        }
    }
}

fn merge(node: Node, live: &mut Value, applied: &Value) {
    match (live, node.form(applied)) {
        (Value::Object(live), Form::Members(applied)) => merge_members(node, live, applied),
        (Value::Array(live), Form::Elements(applied)) => merge_elements(node, live, &applied),
        (live, _) => replace(live, applied),
    }
}

/// Merges applied elements into a list. They get the order of the configuration; other elements keep their places
/// between them.
fn merge_elements(node: Node, live: &mut List, applied: &[(String, &Value)]) {
    let named: HashSet<&str> = applied.iter().map(|(step, _)| step.as_str()).collect();
    let mut counterparts: HashMap<String, Value> = HashMap::new();
    // The resulting list; an applied element is represented by its step.
    let mut order: Vec<Result<Value, String>> = Vec::new();
    for element in live.drain(..) {
        match node.step(&element).filter(|step| named.contains(step.as_str())) {
            // If several live elements have the same keys, the first is the counterpart.
            Some(step) if counterparts.contains_key(&step) => order.push(Ok(element)),
            Some(step) => {
                counterparts.insert(step.clone(), element);
                order.push(Err(step));
            }
            None => order.push(Ok(element)),
        }
    }
    let shared: Vec<&str> = applied
        .iter()
        .map(|(step, _)| step.as_str())
        .filter(|step| counterparts.contains_key(*step))
        .collect();
    let mut shared = shared.into_iter().peekable();
    let mut rest = applied.iter();
    for element in order {
        match element {
            Ok(element) => live.push(element),
            // The configuration has this element later.
            Err(step) if shared.peek() != Some(&step.as_str()) => {}
            Err(step) => {
                shared.next();
                for (applied_step, value) in rest.by_ref() {
                    live.push(merged_element(node, counterparts.remove(applied_step), value));
                    if *applied_step == step {
                        break;
                    }
                }
            }
        }
    }
    live.extend(rest.map(|(step, value)| merged_element(node, counterparts.remove(step), value)));
}

fn merged_element(node: Node, live: Option<Value>, applied: &Value) -> Value {
    match live {
        Some(mut live) => {
            merge(node.element(), &mut live, applied);
            live
        }
        None => applied.clone(),
    }
}

fn prune_members(node: Node, members: &mut Object, previous: &Fields, kept: &Fields) {
    let unowned = Fields::default();
    for (step, previous) in &previous.inner {
        let Some(name) = step.strip_prefix("f:") else { continue };
        let Some(value) = members.get_mut(name) else { continue };
        let gone = match kept.inner.get(step) {
            Some(kept) => {
                prune(node.member(name), value, previous, kept);
                false
            }
            None if previous.itself => true,
            // An object or list that no manager owned is removed with its last member.
            None => {
                prune(node.member(name), value, previous, &unowned);
                is_empty(value)
            }
        };
        if gone {
            members.remove(name);
        }
    }
}

/// Removes from `value` the fields that are in `previous` and not in `kept`.
fn prune(node: Node, value: &mut Value, previous: &Fields, kept: &Fields) {
    if matches!(node.form(value), Form::Whole) {
        return;
    }
    match value {
        Value::Object(members) => prune_members(node, members, previous, kept),
        Value::Array(elements) => elements.retain_mut(|element| {
            let Some(step) = node.step(element) else { return true };
            match (previous.inner.get(&step), kept.inner.get(&step)) {
                (Some(previous), Some(kept)) => {
                    prune(node.element(), element, previous, kept);
                    true
                }
                (Some(_), None) => false,
                (None, _) => true,
            }
        }),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        _ => false,
    }
}

/// Returns the error of the first list with an element that has no key or the key of another element.
fn bad_list(node: Node, members: &Object, path: &str) -> Option<String> {
    members.iter().find_map(|(name, value)| {
        let path = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
        let node = node.member(name);
        match node.form(value) {
            Form::Whole => node
                .keys()
                .filter(|_| value.is_array())
                .map(|keys| format!("{path}: an element has none of its keys: {}", keys.join(", "))),
            Form::Members(members) => bad_list(node, members, &path),
            Form::Elements(elements) => {
                let mut known = HashSet::new();
                elements.into_iter().find_map(|(step, element)| match element {
                    _ if !known.insert(step) => Some(format!("{path}: two elements have the same keys")),
                    Value::Object(members) => bad_list(node.element(), members, &path),
                    _ => None,
                })
            }
        }
    })
}
