//! Strategic merge patch: a merge patch with directives, in which some lists merge by element.
//!
//! Source of the rules: upstream's `strategicpatch` package. A list whose field has a merge key merges by this key. A list
//! of scalars that merges gets the elements that it does not have. Directives: `$patch` (`replace`, `delete`, `merge`) in
//! an object or element, `$retainKeys` in an object, `$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD` beside
//! a field.

use std::collections::{HashMap, HashSet};

use crate::json::{List, Value};

use super::{PatchError, node::Node, replace};
use crate::{
    json::{Object, type_name},
    resource::Resource,
    shape::Merge,
};

#[cfg(test)]
mod tests;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies `patch` to `object`.
pub fn merge(resource: Resource, object: &mut Object, patch: &Object) -> Result<(), PatchError> {
    members(Node::root(resource), object, patch, &mut FieldPath::default())
}

/// The current position in the patch, for messages.
#[derive(Default)]
struct FieldPath(Vec<String>);

impl FieldPath {
    fn at<T>(&mut self, part: String, inner: impl FnOnce(&mut Self) -> T) -> T {
        self.0.push(part);
        let result = inner(self);
        self.0.pop();
        result
    }

    fn malformed(&self, what: &str) -> PatchError {
        PatchError::malformed(format!("strategic merge patch, at {}: {what}", self.text()))
    }

    fn failed(&self, what: &str) -> PatchError {
        PatchError::failed(format!("strategic merge patch, at {}: {what}", self.text()))
    }

    fn text(&self) -> String {
        if self.0.is_empty() { "the top".to_owned() } else { self.0.join(".") }
    }
}

fn members(node: Node, target: &mut Object, patch: &Object, place: &mut FieldPath) -> Result<(), PatchError> {
    match directive(patch, place)? {
        Some(Directive::Delete) => {
            target.clear();
            return Ok(());
        }
        Some(Directive::Replace) => target.clear(),
        Some(Directive::Merge) | None => {}
    }
    retain_keys(target, patch, place)?;
    for (name, value) in patch {
        if !name.starts_with('$') {
            place.at(name.to_string(), |place| {
                let lists =
                    (patch.get(&format!("{DELETE_FROM}{name}")), patch.get(&format!("{SET_ORDER}{name}")));
                member(node.member(name), target, name, Some(value), lists, place)
            })?;
        } else if let Some(name) = name.strip_prefix(DELETE_FROM).or_else(|| name.strip_prefix(SET_ORDER)) {
            if !patch.contains_key(name) && target.contains_key(name) {
                let lists =
                    (patch.get(&format!("{DELETE_FROM}{name}")), patch.get(&format!("{SET_ORDER}{name}")));
                place.at(name.to_owned(), |place| {
                    member(node.member(name), target, name, None, lists, place)
                })?;
            }
        } else if name != PATCH && name != RETAIN_KEYS {
            return Err(place.malformed(&format!("unknown directive \"{name}\"")));
        }
    }
    Ok(())
}

/// Applies the patch of one member. `deleted` and `order` are the values of the directives beside it: elements to remove,
/// and the order of the result.
fn member(
    node: Node,
    target: &mut Object,
    name: &str,
    value: Option<&Value>,
    (deleted, order): (Option<&Value>, Option<&Value>),
    place: &mut FieldPath,
) -> Result<(), PatchError> {
    let key = match node.merge {
        Merge::Keyed { patch_key: Some(key), .. } => Some(Some(key)),
        Merge::Set { patch_merges: true } => Some(None),
        _ => None,
    };
    match (value, key) {
        (Some(Value::Null), _) => {
            target.remove(name);
        }
        (Some(Value::Object(patch)), _) => {
            if !target.get(name).is_some_and(Value::is_object) {
                target.insert(name, Value::Object(Object::new()));
            }
            if let Some(Value::Object(target)) = target.get_mut(name) {
                members(node, target, patch, place)?;
            }
        }
        (Some(Value::Array(_)) | None, Some(key)) => {
            let patch = list(value, place)?;
            let edit = ListEdit { patch, deleted: list(deleted, place)?, order: list(order, place)?, key };
            if !target.get(name).is_some_and(Value::is_array) {
                target.insert(name, Value::Array(List::new()));
            }
            if let Some(Value::Array(elements)) = target.get_mut(name) {
                edit.apply(node, elements, place)?;
            }
        }
        (Some(value), _) => replace(target.entry(name).or_insert_with(|| Value::Null), value),
        // A directive for a list that is replaced as a whole, without a new list.
        (None, None) => {}
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(patch: &Object, place: &FieldPath) -> Result<Option<Directive>, PatchError> {
    match patch.get(PATCH).map(|value| value.as_str().unwrap_or_default()) {
        None => Ok(None),
        Some("merge") => Ok(Some(Directive::Merge)),
        Some("replace") => Ok(Some(Directive::Replace)),
        Some("delete") => Ok(Some(Directive::Delete)),
        Some(_) => Err(place.malformed("$patch is not one of merge, replace, delete")),
    }
}

fn retain_keys(target: &mut Object, patch: &Object, place: &FieldPath) -> Result<(), PatchError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let keys: HashSet<&str> = list(Some(keys), place)?.iter().filter_map(Value::as_str).collect();
    let stray = patch
        .iter()
        .find(|(name, value)| !name.starts_with('$') && !value.is_null() && !keys.contains(name.as_str()));
    if let Some((name, _)) = stray {
        return Err(place.malformed(&format!("$retainKeys does not name \"{name}\", which the patch sets")));
    }
    target.retain(|name, _| keys.contains(name.as_str()));
    Ok(())
}

/// A patch of a list whose elements merge.
struct ListEdit<'a> {
    patch: &'a [Value],
    deleted: &'a [Value],
    order: &'a [Value],
    /// The merge key; `None` for scalars, which are compared by value.
    key: Option<&'static str>,
}

impl ListEdit<'_> {
    fn apply(&self, node: Node, elements: &mut List, place: &mut FieldPath) -> Result<(), PatchError> {
        self.check_order(place)?;
        let live: HashMap<String, usize> = self.positions(elements);
        match self.key {
            Some(key) => self.merge_objects(node, key, elements, place)?,
            None => self.merge_scalars(elements),
        }
        let order = if self.order.is_empty() { self.patch } else { self.order };
        let wanted = self.positions(order);
        if !wanted.is_empty() {
            *elements = self.ordered(std::mem::take(elements), &live, &wanted);
        }
        Ok(())
    }

    /// Checks that the order directive names the patch's elements in the order of the patch (`validatePatchWithSetOrderList`).
    /// If the two contradict each other, the client's intent is unclear.
    fn check_order(&self, place: &FieldPath) -> Result<(), PatchError> {
        if self.order.is_empty() {
            return Ok(());
        }
        let mut order = self.order.iter().map(|element| self.id(element));
        let set = self.patch.iter().filter(|element| element.get(PATCH).is_none());
        for id in set.filter_map(|element| self.id(element)) {
            if !order.any(|named| named.as_ref() == Some(&id)) {
                let what =
                    format!("$setElementOrder does not name {id} in the place that it has in the patch");
                return Err(place.malformed(&what));
            }
        }
        Ok(())
    }

    fn merge_scalars(&self, elements: &mut List) {
        let deleted: HashSet<String> = self.deleted.iter().map(Value::to_string).collect();
        let mut known = HashSet::new();
        elements.retain(|value| !deleted.contains(&value.to_string()));
        elements.extend(self.patch.iter().cloned());
        elements.retain(|value| known.insert(value.to_string()));
    }

    fn merge_objects(
        &self,
        node: Node,
        key: &str,
        elements: &mut List,
        place: &mut FieldPath,
    ) -> Result<(), PatchError> {
        let mut deleted = HashSet::new();
        let mut ordinary = Vec::new();
        for (index, element) in self.patch.iter().enumerate() {
            place.at(format!("[{index}]"), |place| {
                let Value::Object(element) = element else {
                    let got = type_name(element);
                    return Err(
                        place.failed(&format!("an element of this list is an object, this is of type {got}"))
                    );
                };
                let directive = directive(element, place)?;
                match (directive, element.get(key)) {
                    (Some(Directive::Replace), _) => elements.clear(),
                    (_, None | Some(Value::Null)) => {
                        return Err(place
                            .failed(&format!("the element has no \"{key}\", the merge key of this list")));
                    }
                    (Some(Directive::Delete), Some(value)) => {
                        deleted.insert(value.to_string());
                    }
                    (_, Some(value)) => ordinary.push((index, value.to_string(), element)),
                }
                Ok(())
            })?;
        }
        if !deleted.is_empty() {
            elements.retain(|element| self.id(element).is_none_or(|id| !deleted.contains(&id)));
        }
        let mut positions = self.positions(elements);
        for (index, id, patch) in ordinary {
            let position = *positions.entry(id).or_insert(elements.len());
            if position == elements.len() {
                elements.push(Value::Object(Object::new()));
            }
            if let Some(Value::Object(target)) = elements.get_mut(position) {
                place.at(format!("[{index}]"), |place| members(node.element(), target, patch, place))?;
            }
        }
        Ok(())
    }

    /// Orders the elements. Those that the patch names get the order of the patch; the rest keep their order. The previous
    /// positions decide how the two are interleaved.
    fn ordered(
        &self,
        elements: List,
        live: &HashMap<String, usize>,
        wanted: &HashMap<String, usize>,
    ) -> List {
        let mut named = Vec::new();
        let mut others = Vec::new();
        for element in elements {
            let id = self.id(&element);
            let position = id.as_ref().and_then(|id| live.get(id)).copied();
            match id.as_ref().and_then(|id| wanted.get(id)) {
                Some(rank) => named.push((*rank, position, element)),
                None => others.push((position, element)),
            }
        }
        named.sort_by_key(|(rank, ..)| *rank);
        let mut others = others.into_iter().peekable();
        let mut result = List::new();
        for (_, position, element) in named {
            // A new element comes before those that the patch does not name.
            while let Some((other, _)) = others.peek()
                && position.is_some_and(|position| other.is_some_and(|other| other < position))
            {
                result.extend(others.next().map(|(_, element)| element));
            }
            result.push(element);
        }
        result.extend(others.map(|(_, element)| element));
        result
    }

    /// Returns the first position of each element.
    fn positions(&self, elements: &[Value]) -> HashMap<String, usize> {
        let mut positions = HashMap::new();
        for (index, element) in elements.iter().enumerate() {
            if let Some(id) = self.id(element) {
                positions.entry(id).or_insert(index);
            }
        }
        positions
    }

    fn id(&self, element: &Value) -> Option<String> {
        self.key.map_or(Some(element), |key| element.get(key)).map(Value::to_string)
    }
}

/// Returns the list in a directive or a field; empty if it is absent.
fn list<'a>(value: Option<&'a Value>, place: &FieldPath) -> Result<&'a [Value], PatchError> {
    match value {
        None => Ok(&[]),
        Some(Value::Array(elements)) => Ok(elements),
        Some(other) => {
            let got = type_name(other);
            Err(place.malformed(&format!("a list belongs here, this is of type {got}")))
        }
    }
}
