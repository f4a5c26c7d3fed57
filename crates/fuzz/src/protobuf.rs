//! Kubernetes protobuf of every kind: a decoded object can be encoded, and decodes to the same object again.
//!
//! Choices edit the message of an object. Other inputs are the kind and a message.

use portolan_schema::{Object, Resource, protobuf};

use crate::edits;
use crate::requests::{other, service};
use crate::script::Script;

/// The most odd values in an object.
const EDITS: usize = 4;
/// Bytes that choose these values.
const VALUES: usize = 32;

/// Decodes the object, and encodes it again.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(mut script) = Script::of(bytes) {
        let resource = script.pick(&other::RESOURCES);
        if let Some(mut message) = message(resource, &mut script) {
            edits::bytes(&mut message, &mut script);
            check(resource, &message);
        }
    } else if let Some((choice, body)) = bytes.split_first() {
        let resources: Vec<Resource> = Resource::served().collect();
        check(resources[usize::from(*choice) % resources.len()], body);
    }
}

/// Returns the message of an object with odd values; `None` if it has no form in protobuf.
fn message(resource: Resource, script: &mut Script<'_>) -> Option<Vec<u8>> {
    let mut object = match script.below(2) {
        0 => other::object(resource, script),
        _ => service::service(0, script),
    };
    edits::value(&mut object, &mut Script::new(script.bytes(VALUES)), EDITS);
    let object: Object = serde_json::from_str(&object.to_string()).ok()?;
    protobuf::encode(&object).ok()
}

fn check(resource: Resource, body: &[u8]) {
    let info = resource.info();
    let assumed = (info.api_version, info.kind);
    let limits = protobuf::Limits { memory: 4 << 20 };
    // Most inputs are not an envelope. These are decoded as the content of one.
    let Ok(first) = protobuf::decode(body, assumed, limits).or_else(|_| {
        let mut enveloped = protobuf::MAGIC.to_vec();
        enveloped.push(0x12);
        enveloped.extend(varint(body.len()));
        enveloped.extend_from_slice(body);
        protobuf::decode(&enveloped, assumed, limits)
    }) else {
        return;
    };
    let encoded = protobuf::encode(&first).expect("a decoded object fits its table");
    let limits = protobuf::Limits { memory: 1 << 30 };
    let second = protobuf::decode(&encoded, assumed, limits).expect("an encoded object can be decoded");
    assert_eq!(protobuf::encode(&second).expect("it could be encoded before"), encoded);
}

/// Returns a number as LEB128.
fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_messages() {
        let mut messages = 0;
        for seed in 0..64 {
            for resource in other::RESOURCES {
                let bytes = crate::script::random(seed, 64);
                if let Some(message) = message(resource, &mut Script::new(&bytes[1..])) {
                    let limits = protobuf::Limits { memory: 4 << 20 };
                    let info = resource.info();
                    protobuf::decode(&message, (info.api_version, info.kind), limits).expect("an object");
                    messages += 1;
                }
            }
        }
        assert!(messages > 128, "{messages}");
    }
}
