//! The SCTP packets that show the destination of an association: INIT, INIT ACK and ABORT (RFC 9260).
//!
//! Many kernels have no SCTP sockets, but track and translate SCTP packets. So responders and probes use raw
//! sockets for the first step of the handshake. The responder's answer is in the state cookie, which is opaque
//! to all but its sender.

/// A decoded packet: the fields that the first step of the handshake needs.
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
    Abort,
    Other,
}

/// Chunk types, RFC 9260 section 3.2.
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;
/// Parameter type, RFC 9260 section 3.3.3.
const STATE_COOKIE: u16 = 7;

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

    /// Returns the packet with which a host that listens on this port replies: INIT ACK with `cookie`.
    pub(crate) fn accept(&self, initiate_tag: u32, cookie: Vec<u8>) -> Option<Self> {
        self.reply(Chunk::InitAck { initiate_tag, cookie })
    }

    /// Returns the packet with which a host that does not listen on this port replies.
    pub(crate) fn refuse(&self) -> Option<Self> {
        self.reply(Chunk::Abort)
    }

    fn reply(&self, chunk: Chunk) -> Option<Self> {
        let Chunk::Init { initiate_tag } = self.chunk else { return None };
        Some(Self {
            source_port: self.destination_port,
            destination_port: self.source_port,
            verification_tag: initiate_tag,
            chunk,
        })
    }
}

impl Chunk {
    fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Init { initiate_tag } => encode_init(bytes, INIT, *initiate_tag, &[]),
            Self::InitAck { initiate_tag, cookie } => encode_init(bytes, INIT_ACK, *initiate_tag, cookie),
            Self::Abort => bytes.extend([ABORT, 0, 0, 4]),
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
                cookie: find_cookie(chunk.get(INIT_BYTES..)?).unwrap_or_default().to_vec(),
            },
            ABORT => Self::Abort,
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
        bytes.extend(STATE_COOKIE.to_be_bytes());
        bytes.extend(length_field(parameter));
        bytes.extend(cookie);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes()
}

fn find_cookie(mut parameters: &[u8]) -> Option<&[u8]> {
    loop {
        let (kind, length) = (u16_at(parameters, 0)?, usize::from(u16_at(parameters, 2)?));
        if kind == STATE_COOKIE {
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
        let accepted = init.accept(8, b"five!".to_vec()).unwrap();
        let refused = init.refuse().unwrap();
        assert_eq!((accepted.source_port, accepted.destination_port), (9, 40_000));
        assert_eq!((accepted.verification_tag, refused.verification_tag), (7, 7));
        for packet in [init, accepted, refused] {
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
