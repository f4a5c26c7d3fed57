//! Decoding what others send within a bound of memory: a few bytes of text can stand for a value of hundreds.
//!
//! A [`Budget`] counts estimates, not allocations; decoding stops at the value that does not fit any more.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use thiserror::Error;

use super::Object;

/// Estimated memory of an object with a few members: one node of its tree.
pub const OBJECT_COST: usize = 640;
/// Estimated memory of any other value, beside its text.
pub const VALUE_COST: usize = 96;
/// Estimated memory of a further member of an object, beside its name and its value: nodes of a tree that grows in order
/// are half empty, and a name has an allocation of its own.
pub const MEMBER_COST: usize = 64;

/// Members of an object that one node of its tree holds.
const WITHIN: usize = 11;

/// What may be spent on decoded values.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    spent: Cell<usize>,
}

/// The decoded value would cost more than the limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the object would take more than {0} bytes of memory when decoded")]
pub struct Exceeded(pub usize);

/// Decodes one value from any format that describes itself, as `serde_json::Value` does.
#[derive(Debug, Clone, Copy)]
pub struct Bounded<'b>(pub &'b Budget);

impl Budget {
    /// A budget of estimated bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, spent: Cell::new(0) }
    }

    /// What was spent so far.
    pub fn spent(&self) -> usize {
        self.spent.get()
    }

    /// That more was wanted than there is, if so.
    pub fn exceeded(&self) -> Option<Exceeded> {
        (self.spent.get() > self.limit).then_some(Exceeded(self.limit))
    }

    fn spend<E: Error>(&self, cost: usize) -> Result<(), E> {
        self.spent.set(self.spent.get().saturating_add(cost));
        self.exceeded().map_or(Ok(()), |exceeded| Err(E::custom(exceeded)))
    }

    fn text<E: Error>(&self, text: String) -> Result<Value, E> {
        self.spend(VALUE_COST.saturating_add(text.len()))?;
        Ok(Value::String(text))
    }

    fn scalar<E: Error>(&self, value: Value) -> Result<Value, E> {
        self.spend(VALUE_COST)?;
        Ok(value)
    }
}

/// The estimate for an object that is there already.
pub fn cost(object: &Object) -> usize {
    fn of(value: &Value) -> usize {
        let within: usize = match value {
            Value::String(text) => text.len(),
            Value::Array(elements) => elements.iter().map(of).sum(),
            Value::Object(members) => cost(members),
            _ => 0,
        };
        VALUE_COST.saturating_add(within)
    }
    // The first member is within the cost of the object, and the next few.
    let names = object.keys().skip(1).map(String::len).sum::<usize>();
    let further = object.len().saturating_sub(WITHIN).saturating_mul(MEMBER_COST);
    let members: usize = object.values().map(of).sum();
    let node = if object.is_empty() { 0 } else { OBJECT_COST };
    node.saturating_add(names).saturating_add(further).saturating_add(members)
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
        self.0.text(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        self.0.text(text)
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
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(self)? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.0.spend(VALUE_COST)?;
        let mut object = Object::new();
        while let Some(name) = members.next_key::<String>()? {
            self.0.spend(match object.len() {
                0 => OBJECT_COST,
                length if length < WITHIN => name.len(),
                _ => MEMBER_COST.saturating_add(name.len()),
            })?;
            object.insert(name, members.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn decode(text: &str, limit: usize) -> Result<Value, Option<Exceeded>> {
        let budget = Budget::new(limit);
        Bounded(&budget)
            .deserialize(&mut serde_json::Deserializer::from_str(text))
            .map_err(|_| budget.exceeded())
    }

    #[test]
    fn what_costs_too_much_is_given_up() {
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
    fn a_name_with_a_meaning_to_the_decoder_is_a_name() {
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
        fn within_the_budget_nothing_changes(value in any_value()) {
            let text = value.to_string();
            prop_assert_eq!(decode(&text, 1 << 20), Ok(serde_json::from_str(&text).unwrap()));
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
