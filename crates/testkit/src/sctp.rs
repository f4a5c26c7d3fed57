//! The SCTP packets that show the destination of an association: those of its handshake, heartbeats and ABORT (RFC 9260).
//!
//! Many kernels have no SCTP sockets, but track and translate SCTP packets. So responders and probes use raw
//! sockets. The responder's answer is in the state cookie, which is opaque to all but its sender, and in the
//! acknowledgements of heartbeats. The responder keeps no state: its tag is computed from the initiator's.

/// A decoded packet: the common header, without its checksum, and the first chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) verification_tag: u32,
    pub(crate) chunk: Chunk,
}

/// The first chunk of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    Init { initiate_tag: u32 },
    InitAck { initiate_tag: u32, cookie: Vec<u8> },
    Heartbeat { info: Vec<u8> },
    HeartbeatAck { info: Vec<u8> },
    Abort,
    CookieEcho { cookie: Vec<u8> },
    CookieAck,
    Other,
}

/// Chunk types, RFC 9260 section 3.2.
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const ABORT: u8 = 6;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
/// Parameter types, RFC 9260 sections 3.3.3 and 3.3.5.
const STATE_COOKIE: u16 = 7;
const HEARTBEAT_INFO: u16 = 1;

const COMMON_HEADER_BYTES: usize = 12;
const CHECKSUM_AT: usize = 8;
const CHUNK_HEADER_BYTES: usize = 4;
/// Chunk header, initiate tag, receiver window, two stream counts, first sequence number.
const INIT_BYTES: usize = CHUNK_HEADER_BYTES + 16;
const RECEIVER_WINDOW: u32 = 65_536;
const STREAMS: u16 = 1;

impl Packet {
    /// Encodes the packet, with its checksum.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(self.destination_port.to_be_bytes());
        bytes.extend(self.verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        self.chunk.encode(&mut bytes);
        let checksum = crc32c(&bytes).to_le_bytes();
        if let Some(field) = bytes.get_mut(CHECKSUM_AT..COMMON_HEADER_BYTES) {
            field.copy_from_slice(&checksum);
        }
        bytes
    }

    /// Decodes a packet; `None` if it is cut short or its checksum is wrong.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut unsummed = bytes.to_vec();
        unsummed.get_mut(CHECKSUM_AT..COMMON_HEADER_BYTES)?.fill(0);
        if crc32c(&unsummed).to_le_bytes() != *bytes.get(CHECKSUM_AT..COMMON_HEADER_BYTES)? {
            return None;
        }
        Some(Self {
            source_port: u16_at(bytes, 0)?,
            destination_port: u16_at(bytes, 2)?,
            verification_tag: u32_at(bytes, 4)?,
            chunk: Chunk::decode(bytes.get(COMMON_HEADER_BYTES..)?)?,
        })
    }

    /// Returns the packet with which a host that listens on this port replies. `answer` tells the initiator which
    /// responder it reached. Returns `None` for packets of other kinds than an initiator sends.
    pub(crate) fn accept(&self, answer: &str) -> Option<Self> {
        Some(match &self.chunk {
            Chunk::Init { initiate_tag } => {
                let cookie = answer.as_bytes().to_vec();
                self.reply(
                    *initiate_tag,
                    Chunk::InitAck { initiate_tag: responders_tag(*initiate_tag), cookie },
                )
            }
            Chunk::CookieEcho { .. } => self.reply(initiators_tag(self.verification_tag), Chunk::CookieAck),
            Chunk::Heartbeat { info } => {
                let info = [answer.as_bytes(), b" ", info].concat();
                self.reply(initiators_tag(self.verification_tag), Chunk::HeartbeatAck { info })
            }
            _ => return None,
        })
    }

    /// Returns the packet with which a host that does not listen on this port replies to INIT.
    pub(crate) fn refuse(&self) -> Option<Self> {
        let Chunk::Init { initiate_tag } = self.chunk else { return None };
        Some(self.reply(initiate_tag, Chunk::Abort))
    }

    const fn reply(&self, verification_tag: u32, chunk: Chunk) -> Self {
        Self {
            source_port: self.destination_port,
            destination_port: self.source_port,
            verification_tag,
            chunk,
        }
    }
}

/// Returns the initiator's tag for the association with this number. Tags are never zero.
pub(crate) const fn initiate_tag(number: u32) -> u32 {
    number.wrapping_mul(0x9e37_79b1) | 1
}

/// Returns the tag that the responder chooses for an association.
const fn responders_tag(initiators: u32) -> u32 {
    initiators.rotate_left(1)
}

/// Returns the tag that the initiator chose for an association.
const fn initiators_tag(responders: u32) -> u32 {
    responders.rotate_right(1)
}

impl Chunk {
    fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Init { initiate_tag } => encode_init(bytes, INIT, *initiate_tag, &[]),
            Self::InitAck { initiate_tag, cookie } => encode_init(bytes, INIT_ACK, *initiate_tag, cookie),
            Self::Heartbeat { info } => encode_heartbeat(bytes, HEARTBEAT, info),
            Self::HeartbeatAck { info } => encode_heartbeat(bytes, HEARTBEAT_ACK, info),
            Self::Abort => bytes.extend([ABORT, 0, 0, 4]),
            Self::CookieEcho { cookie } => {
                bytes.extend([COOKIE_ECHO, 0]);
                bytes.extend(length_field(CHUNK_HEADER_BYTES + cookie.len()));
                bytes.extend(cookie);
                pad(bytes);
            }
            Self::CookieAck => bytes.extend([COOKIE_ACK, 0, 0, 4]),
            Self::Other => {}
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let length = usize::from(u16_at(bytes, 2)?);
        let chunk = bytes.get(..length)?;
        Some(match *chunk.first()? {
            INIT => Self::Init { initiate_tag: u32_at(chunk, 4)? },
            INIT_ACK => Self::InitAck {
                initiate_tag: u32_at(chunk, 4)?,
                cookie: find(STATE_COOKIE, chunk.get(INIT_BYTES..)?).unwrap_or_default().to_vec(),
            },
            HEARTBEAT => Self::Heartbeat { info: heartbeat_info(chunk) },
            HEARTBEAT_ACK => Self::HeartbeatAck { info: heartbeat_info(chunk) },
            ABORT => Self::Abort,
            COOKIE_ECHO => Self::CookieEcho { cookie: chunk.get(CHUNK_HEADER_BYTES..)?.to_vec() },
            COOKIE_ACK => Self::CookieAck,
            _ => Self::Other,
        })
    }
}

/// Returns the payload of an IPv4 packet. Raw sockets deliver the packet with its header.
pub(crate) fn strip_ipv4_header(packet: &[u8]) -> Option<&[u8]> {
    let words = usize::from(packet.first()? & 0x0f);
    packet.get(words * 4..)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn encode_init(bytes: &mut Vec<u8>, kind: u8, initiate_tag: u32, cookie: &[u8]) {
    let parameter = if cookie.is_empty() { 0 } else { CHUNK_HEADER_BYTES + cookie.len() };
    bytes.extend([kind, 0]);
    bytes.extend(length_field(INIT_BYTES + parameter));
    bytes.extend(initiate_tag.to_be_bytes());
    bytes.extend(RECEIVER_WINDOW.to_be_bytes());
    bytes.extend(STREAMS.to_be_bytes());
    bytes.extend(STREAMS.to_be_bytes());
    bytes.extend(initiate_tag.to_be_bytes());
    if parameter > 0 {
        encode_parameter(bytes, STATE_COOKIE, cookie);
    }
}

fn encode_heartbeat(bytes: &mut Vec<u8>, kind: u8, info: &[u8]) {
    bytes.extend([kind, 0]);
    bytes.extend(length_field(CHUNK_HEADER_BYTES + CHUNK_HEADER_BYTES + info.len()));
    encode_parameter(bytes, HEARTBEAT_INFO, info);
}

/// A parameter has a header like that of a chunk: type and length.
fn encode_parameter(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend(kind.to_be_bytes());
    bytes.extend(length_field(CHUNK_HEADER_BYTES + value.len()));
    bytes.extend(value);
    pad(bytes);
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

fn heartbeat_info(chunk: &[u8]) -> Vec<u8> {
    let parameters = chunk.get(CHUNK_HEADER_BYTES..).unwrap_or_default();
    find(HEARTBEAT_INFO, parameters).unwrap_or_default().to_vec()
}

/// Returns the value of the first parameter of this type.
fn find(wanted: u16, mut parameters: &[u8]) -> Option<&[u8]> {
    loop {
        let (kind, length) = (u16_at(parameters, 0)?, usize::from(u16_at(parameters, 2)?));
        if kind == wanted {
            return parameters.get(CHUNK_HEADER_BYTES..length);
        }
        parameters = parameters.get(length.max(CHUNK_HEADER_BYTES).next_multiple_of(4)..)?;
    }
}

/// Returns the CRC-32C checksum (Castagnoli, reflected), RFC 9260 appendix A.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn packets_survive_encoding() {
        let init = Packet {
            source_port: 40_000,
            destination_port: 9,
            verification_tag: 0,
            chunk: Chunk::Init { initiate_tag: 7 },
        };
        let accepted = init.accept("five!").unwrap();
        let refused = init.refuse().unwrap();
        assert_eq!((accepted.source_port, accepted.destination_port), (9, 40_000));
        let Chunk::InitAck { initiate_tag, cookie } = accepted.chunk.clone() else { panic!("{accepted:?}") };
        let echo =
            Packet { verification_tag: initiate_tag, chunk: Chunk::CookieEcho { cookie }, ..init.clone() };
        let heartbeat = Packet { chunk: Chunk::Heartbeat { info: b"12345".to_vec() }, ..echo.clone() };
        let (opened, alive) = (echo.accept("").unwrap(), heartbeat.accept("five!").unwrap());
        assert_eq!(
            (&echo.chunk, &opened.chunk),
            (&Chunk::CookieEcho { cookie: b"five!".to_vec() }, &Chunk::CookieAck)
        );
        assert_eq!(alive.chunk, Chunk::HeartbeatAck { info: b"five! 12345".to_vec() });
        for reply in [&accepted, &refused, &opened, &alive] {
            assert_eq!((reply.verification_tag, reply.accept("")), (7, None), "{reply:?}");
        }
        for packet in [init, accepted, refused, echo, opened, heartbeat, alive] {
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
    }

    #[test]
    fn damaged_packets_are_not_read() {
        let init = Packet {
            source_port: 1,
            destination_port: 2,
            verification_tag: 0,
            chunk: Chunk::Init { initiate_tag: 3 },
        };
        let mut bytes = init.encode();
        bytes[1] ^= 1;
        assert_eq!(Packet::decode(&bytes), None);
        assert_eq!(Packet::decode(&init.encode()[..10]), None);
    }
}
