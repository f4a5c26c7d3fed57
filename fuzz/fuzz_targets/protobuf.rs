//! Kubernetes protobuf of every kind: a decoded object can be encoded, and decodes to the same object again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portolan_schema::{Resource, protobuf};

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, body)) = bytes.split_first() else { return };
    let resources: Vec<Resource> = Resource::served().collect();
    let info = resources[usize::from(*choice) % resources.len()].info();
    let assumed = (info.api_version, info.kind);
    let limits = protobuf::Limits { memory: 4 << 20 };
    // Most inputs are not an envelope. These are decoded as the content of one.
    let Ok(first) = protobuf::decode(body, assumed, limits).or_else(|_| {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut enveloped = protobuf::MAGIC.to_vec();
        enveloped.push(0x12);
        let mut rest = length;
        while rest >= 0x80 {
            enveloped.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        enveloped.push(rest as u8);
        enveloped.extend_from_slice(body);
        protobuf::decode(&enveloped, assumed, limits)
    }) else {
        return;
    };
    let encoded = protobuf::encode(&first).expect("a decoded object fits its table");
    let limits = protobuf::Limits { memory: 1 << 30 };
    let second = protobuf::decode(&encoded, assumed, limits).expect("an encoded object can be decoded");
    assert_eq!(protobuf::encode(&second).expect("it could be encoded before"), encoded);
});
