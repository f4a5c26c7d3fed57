//! Encoding and decoding: a round trip keeps every message, nft's messages decode, and arbitrary bytes do not
//! panic.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[cfg(target_endian = "little")]
#[path = "messages/golden.rs"]
mod golden;
#[path = "messages/hostile.rs"]
mod hostile;
#[path = "messages/ipvs.rs"]
mod ipvs;
#[path = "messages/roundtrip.rs"]
mod roundtrip;
#[path = "messages/worlds.rs"]
mod worlds;
