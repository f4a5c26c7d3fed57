//! Objects that are generated from the tables: every kind stays the same when encoded as protobuf and decoded again.

use crate::json::{Value, json};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::shape::{Field, Presence, Type, conform, of, timestamp};

fn word() -> impl Strategy<Value = String> {
    vec(proptest::char::any(), 1..6).prop_map(|characters| characters.into_iter().collect())
}

/// Generates a value of the type that is not its zero value.
fn value(kind: &'static Type) -> BoxedStrategy<Value> {
    let seconds = -62_135_596_799_i64..253_402_300_800;
    match kind {
        Type::Text => word().prop_map(Value::from).boxed(),
        Type::Bool => Just(Value::Bool(true)).boxed(),
        Type::Int32 => prop_oneof![any::<i32>(), Just(i32::MIN), Just(80)]
            .prop_map(|number| Value::from(number.checked_add(i32::from(number == 0)).unwrap()))
            .boxed(),
        Type::Int64 => any::<i64>().prop_map(|number| Value::from(number | 1)).boxed(),
        Type::IntOrText => {
            prop_oneof![(1..=i32::MAX).prop_map(Value::from), word().prop_map(Value::from)].boxed()
        }
        Type::Time => seconds.prop_map(|at| Value::from(timestamp::whole(at))).boxed(),
        Type::MicroTime => (seconds, 0_u32..1_000_000)
            .prop_map(|(at, micros)| Value::from(timestamp::micro(at, micros * 1_000)))
            .boxed(),
        // An odd number has no shorter form: 1024Gi would become 1Ti, and 1000m would become 1.
        Type::Quantity => (1_u32.., prop_oneof![Just("m"), Just("Gi"), Just("")])
            .prop_map(|(number, suffix)| Value::from(format!("{}{suffix}", number | 1)))
            .boxed(),
        Type::Json | Type::FieldsV1 => word().prop_map(|name| json!({"f:metadata": {name: {}}})).boxed(),
        Type::List(element) => vec(value(element), 1..3).prop_map(Value::from).boxed(),
        Type::Map(element) => vec((word(), value(element)), 1..3)
            .prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
            .boxed(),
        Type::Object(table) => message(table).prop_map(Value::Object).boxed(),
    }
}

/// Returns the zero value, if it differs from absence.
fn zero(field: &'static Field) -> Option<Value> {
    match (field.presence, &field.kind) {
        (Presence::Value, _) => None,
        (_, Type::Text) => Some(Value::from("")),
        (_, Type::Bool) => Some(Value::from(false)),
        (_, Type::Int32 | Type::Int64) => Some(Value::from(0)),
        (Presence::Always, Type::List(_)) => Some(json!([])),
        _ => None,
    }
}

fn field(field: &'static Field) -> BoxedStrategy<(&'static str, Option<Value>)> {
    let name = field.name;
    let set = value(&field.kind).prop_map(move |value| (name, Some(value)));
    let is_moment = matches!(field.kind, Type::Time | Type::MicroTime);
    let zero = Just((name, zero(field)));
    match field.presence {
        // What JSON always holds; no more than one field of each object is left to chance there.
        Presence::Always if matches!(field.kind, Type::Object(_)) => set.boxed(),
        Presence::Always if !is_moment => prop_oneof![4 => set, 1 => zero].boxed(),
        _ => prop_oneof![4 => set, 1 => zero, 2 => Just((name, None))].boxed(),
    }
}

/// Generates an object as a typed client sends it, with at least one value that is not zero.
fn message(table: &'static Struct) -> BoxedStrategy<Object> {
    let fields: Vec<&'static Field> = table.fields.iter().filter(|field| field.tag != 0).collect();
    let all: Vec<_> = fields.iter().map(|it| field(it)).collect();
    let certain = (0..fields.len()).prop_flat_map(move |index| {
        let field = fields[index];
        value(&field.kind).prop_map(move |value| (field.name, value))
    });
    (all, certain)
        .prop_map(|(all, (name, certain))| {
            let set = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            let mut object: Object = set.collect();
            object.insert(name.to_owned(), certain);
            object
        })
        .boxed()
}

fn any_object() -> impl Strategy<Value = (Resource, Object)> {
    let resources: Vec<Resource> = Resource::served().collect();
    proptest::sample::select(resources).prop_flat_map(|resource| {
        message(of(resource)).prop_map(move |mut object| {
            let info = resource.info();
            object.insert("apiVersion".to_owned(), info.api_version.into());
            object.insert("kind".to_owned(), info.kind.into());
            (resource, object)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn objects_of_every_kind_survive((resource, object) in any_object()) {
        let bytes = encode(&object).unwrap();
        let back = decode(&bytes, ("", ""), Limits::default()).unwrap();
        prop_assert_eq!(&back, &object);
        let mut conformed = back;
        prop_assert_eq!(conform(resource, &mut conformed), Ok(Vec::new()));
        prop_assert_eq!(&conformed, &object);
        let (mut raw, text) = (Vec::new(), Value::Object(object.clone()).to_string());
        prop_assert!(transcode::message(&mut raw, of(resource), text.as_bytes()).is_ok());
        let info = resource.info();
        let back = decode(&nameless(&raw), (info.api_version, info.kind), Limits::default()).unwrap();
        prop_assert_eq!(&back, &object);
    }

    #[test]
    fn bytes_that_are_cut_or_changed_do_no_harm(
        (_, object) in any_object(), cut: prop::sample::Index, place: prop::sample::Index, byte: u8,
    ) {
        let mut bytes = encode(&object).unwrap();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        let limits = Limits { memory: 1 << 20 };
        let _ = decode(&bytes, ("", ""), limits);
        let _ = decode(&bytes[..cut.index(bytes.len())], ("", ""), limits);
    }

    #[test]
    fn any_bytes_do_no_harm(raw in vec(any::<u8>(), 0..200)) {
        let _ = decode(&nameless(&raw), ASSUMED, Limits { memory: 1 << 20 });
    }
}
