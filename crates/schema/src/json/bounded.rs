//! Decodes input of clients within a memory limit: a few bytes of text can stand for a value of hundreds.
//!
//! A [`Budget`] counts estimates, not allocations. Decoding stops at the first value that exceeds the limit.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use thin_vec::ThinVec;
use thiserror::Error;

use super::{Map, Number, Object, Text, Value};

/// Bytes of a value in the list or object that holds it.
pub const VALUE_COST: usize = size_of::<Value>();
/// Bytes of a member of an object: its name and its value.
pub const MEMBER_COST: usize = size_of::<(Text, Value)>();
/// Additional bytes of a non-empty object or list: the allocation's header with the length, and the allocator's
/// bookkeeping and rounding.
pub const OBJECT_COST: usize = 32;
/// Maximum bytes of a text that is stored inline, without an allocation.
const WITHIN: usize = size_of::<Text>();

/// Memory limit of decoded values, and the part of it that is spent.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    spent: Cell<usize>,
    repeats: Cell<bool>,
    /// Stacks of the members and elements of unfinished objects and lists, the innermost last. The final allocation is
    /// made when the length is known.
    members: RefCell<Vec<(Text, Value)>>,
    elements: RefCell<Vec<Value>>,
}

/// Maximum members or elements that are collected on the shared stack. Longer objects and lists get an allocation of
/// their own.
const FEW: usize = 64;

/// The decoded value would cost more than the limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the object would take more than {0} bytes of memory when decoded")]
pub struct Exceeded(pub usize);

/// Decodes one value from any self-describing format.
#[derive(Debug, Clone, Copy)]
pub struct Bounded<'b>(pub &'b Budget);

impl Budget {
    /// Creates a budget of `limit` estimated bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            spent: Cell::new(0),
            repeats: Cell::new(false),
            members: RefCell::default(),
            elements: RefCell::default(),
        }
    }

    /// Returns the estimated bytes that are spent.
    pub fn spent(&self) -> usize {
        self.spent.get()
    }

    /// Returns true if an object had a member more than once. The last one is kept.
    pub fn saw_repeats(&self) -> bool {
        self.repeats.get()
    }

    /// Returns the error if more than the limit is spent.
    pub fn exceeded(&self) -> Option<Exceeded> {
        (self.spent.get() > self.limit).then_some(Exceeded(self.limit))
    }

    fn spend<E: Error>(&self, cost: usize) -> Result<(), E> {
        self.spent.set(self.spent.get().saturating_add(cost));
        self.exceeded().map_or(Ok(()), |exceeded| Err(E::custom(exceeded)))
    }

    fn scalar<E: Error>(&self, value: Value) -> Result<Value, E> {
        self.spend(VALUE_COST)?;
        Ok(value)
    }
}

/// Returns the bytes of a text that is not stored inline; 0 if it is.
fn beside(text: &str) -> usize {
    if text.len() <= WITHIN { 0 } else { text.len().saturating_add(OBJECT_COST) }
}

/// Returns the estimated bytes of a decoded object.
pub fn cost(object: &Object) -> usize {
    fn of(value: &Value) -> usize {
        let within: usize = match value {
            Value::String(text) => beside(text),
            Value::Array(elements) => allocation(elements.len()) + elements.iter().map(of).sum::<usize>(),
            Value::Object(members) => cost(members),
            _ => 0,
        };
        VALUE_COST.saturating_add(within)
    }
    let name = MEMBER_COST - VALUE_COST;
    let members = object.iter().map(|(text, value)| name + beside(text) + of(value));
    allocation(object.len()).saturating_add(members.sum())
}

/// Returns the additional bytes of an object or list with `length` members or elements.
fn allocation(length: usize) -> usize {
    if length == 0 { 0 } else { OBJECT_COST }
}

/// The members of an object or the elements of a list that is being decoded.
struct Gathered<'b, T> {
    shared: &'b RefCell<Vec<T>>,
    start: usize,
    /// All members or elements if there are more than [`FEW`]; otherwise empty.
    many: ThinVec<T>,
}

impl<'b, T> Gathered<'b, T> {
    fn new(shared: &'b RefCell<Vec<T>>) -> Self {
        Self { shared, start: shared.borrow().len(), many: ThinVec::new() }
    }

    fn is_empty(&self) -> bool {
        self.many.is_empty() && self.shared.borrow().len() == self.start
    }

    fn push(&mut self, part: T) {
        if !self.many.is_empty() {
            return self.many.push(part);
        }
        let mut shared = self.shared.borrow_mut();
        shared.push(part);
        if shared.len().saturating_sub(self.start) > FEW {
            self.many.extend(shared.drain(self.start..));
        }
    }

    fn taken(mut self) -> ThinVec<T> {
        if self.many.is_empty() {
            let mut shared = self.shared.borrow_mut();
            let parts = shared.drain(self.start..);
            self.many.reserve_exact(parts.len());
            self.many.extend(parts);
        } else {
            self.many.shrink_to_fit();
        }
        self.many
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        self.0.scalar(Value::Bool(truth))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        self.0.scalar(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        self.0.scalar(number.into())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<Value, E> {
        let number =
            Number::from_i128(number).ok_or_else(|| E::custom("the number has more than 64 bits"))?;
        self.0.scalar(Value::Number(number))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<Value, E> {
        let number =
            Number::from_u128(number).ok_or_else(|| E::custom("the number has more than 64 bits"))?;
        self.0.scalar(Value::Number(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        self.0.scalar(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.0.spend(VALUE_COST.saturating_add(beside(text)))?;
        Ok(Value::String(Text::from(text)))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.0.scalar(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        self.deserialize(source)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        self.0.spend(VALUE_COST)?;
        let mut list = Gathered::new(&self.0.elements);
        while let Some(element) = elements.next_element_seed(self)? {
            self.0.spend(allocation(usize::from(list.is_empty())))?;
            list.push(element);
        }
        Ok(Value::Array(list.taken()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.0.spend(VALUE_COST)?;
        let mut list = Gathered::new(&self.0.members);
        while let Some(name) = members.next_key::<Text>()? {
            let allocation = allocation(usize::from(list.is_empty()));
            self.0.spend(allocation + (MEMBER_COST - VALUE_COST).saturating_add(beside(&name)))?;
            list.push((name, members.next_value_seed(self)?));
        }
        let list = list.taken();
        let count = list.len();
        let members = Map::of_members(list);
        if members.len() < count {
            self.0.repeats.set(true);
        }
        Ok(Value::Object(members))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        Bounded(&Budget::new(usize::MAX)).deserialize(source)
    }
}

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        match Value::deserialize(source)? {
            Value::Object(members) => Ok(members),
            _ => Err(D::Error::custom("not an object")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;
    use proptest::prelude::*;

    fn decode(text: &str, limit: usize) -> Result<Value, Option<Exceeded>> {
        let budget = Budget::new(limit);
        Bounded(&budget)
            .deserialize(&mut serde_json::Deserializer::from_str(text))
            .map_err(|_| budget.exceeded())
    }

    #[test]
    fn decoding_stops_above_the_memory_limit() {
        let limit = 1 << 20;
        let many = |text: &str| format!("[{}0]", text.repeat(limit / VALUE_COST));
        for text in [many("0,"), many("{},"), many("\"\","), many("{\"a\":[null]},"), many("[true],")] {
            assert_eq!(decode(&text, limit), Err(Some(Exceeded(limit))));
            assert!(decode(&text, limit * 20).is_ok());
        }
        let long = format!("\"{}\"", "x".repeat(limit));
        assert_eq!(decode(&long, limit), Err(Some(Exceeded(limit))));
        let name = format!("{{\"a\":0,\"{}\":0}}", "x".repeat(limit));
        assert_eq!(decode(&name, limit), Err(Some(Exceeded(limit))));
        assert_eq!(decode("[", limit), Err(None));
    }

    #[test]
    fn a_reserved_name_of_serde_json_is_an_ordinary_member() {
        let text = r#"{"$serde_json::private::RawValue":"[1]"}"#;
        assert_eq!(decode(text, 4096), Ok(json!({"$serde_json::private::RawValue": "[1]"})));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_within_the_budget_decode_unchanged(value in any_value()) {
            let text = value.to_string();
            let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
            let decoded = decode(&text, 1 << 20).unwrap();
            prop_assert_eq!(decoded.to_string(), expected.to_string());
            prop_assert_eq!(decoded, Value::from(expected));
            let budget = Budget::new(1 << 20);
            let decoded = Bounded(&budget).deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
            if let Value::Object(object) = decoded {
                let names = text.len();
                prop_assert!(cost(&object) + VALUE_COST <= budget.spent() + names);
                prop_assert!(budget.spent() <= cost(&object) + VALUE_COST + names);
            }
        }
    }
}
