//! Kubernetes protobuf of every kind: a decoded object can be encoded, and decodes to the same object again.

use portolan_schema::{Resource, protobuf};

/// Decodes the object, and encodes it again.
pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let resources: Vec<Resource> = Resource::served().collect();
    let info = resources[usize::from(*choice) % resources.len()].info();
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
