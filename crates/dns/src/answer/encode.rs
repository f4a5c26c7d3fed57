//! Encoding of an answer within a maximum size.

use std::iter::once;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Header, HeaderCounts, Metadata, Query};
use hickory_proto::rr::{DNSClass, Name, RData, Record};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

use super::PLAIN_UDP;

/// Bytes of an OPT record without options.
const OPT: u16 = 11;
/// Pointer to the name in the question, which begins after the header (RFC 1035, 4.1.4).
const QUESTION: u16 = 0xc00c;

/// A record with its owner.
#[derive(Debug)]
pub(super) struct Item {
    /// `None` if it is the name in the question. It is then written as a pointer: the encoder of the library stops to
    /// look for equal names after 120 of them, and large answers would be several times as long.
    pub(super) owner: Option<Name>,
    pub(super) ttl: u32,
    pub(super) data: RData,
}

impl From<Record> for Item {
    fn from(record: Record) -> Self {
        Self { owner: Some(record.name), ttl: record.ttl, data: record.data }
    }
}

impl BinEncodable for Item {
    fn emit(&self, encoder: &mut BinEncoder<'_>) -> Result<(), ProtoError> {
        match &self.owner {
            None => encoder.emit_u16(QUESTION)?,
            Some(owner) => owner.emit(encoder)?,
        }
        self.data.record_type().emit(encoder)?;
        DNSClass::IN.emit(encoder)?;
        encoder.emit_u32(self.ttl)?;
        let place = encoder.place::<u16>()?;
        self.data.emit(encoder)?;
        let length = u16::try_from(encoder.len_since_place(&place));
        place.replace(encoder, length.map_err(|_| "the record is too long")?)
    }
}

/// All of an answer but its records.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) metadata: Metadata,
    /// The question, which the answer repeats.
    pub(super) query: Option<Query>,
    /// Options, if the request has some. They have none of variable length.
    pub(super) edns: Option<Edns>,
    /// Maximum size in bytes.
    pub(super) limit: u16,
}

impl Frame {
    /// Makes the frame of the answer to a request whose question is not read.
    pub(super) fn new(request: &Metadata) -> Self {
        Self { metadata: Metadata::response_from_request(request), query: None, edns: None, limit: PLAIN_UDP }
    }
}

/// Writes an answer. Returns true if records of the first two sections were left out, because they do not fit;
/// the answer is then marked as truncated. Additional records that do not fit are left out without a mark
/// (RFC 2181, 9). The options always fit.
pub(super) fn encode(
    frame: &Frame,
    answers: impl IntoIterator<Item = Item>,
    authority: Option<Item>,
    additional: impl IntoIterator<Item = Item>,
    out: &mut Vec<u8>,
) -> Result<bool, ProtoError> {
    out.clear();
    let mut encoder = BinEncoder::new(out);
    let reserved = if frame.edns.is_some() { OPT } else { 0 };
    encoder.set_max_size(frame.limit.saturating_sub(reserved));
    let place = encoder.place::<Header>()?;
    let mut counts = HeaderCounts::default();
    if let Some(query) = &frame.query {
        encoder.emit_all(once(query))?;
        counts.queries = 1;
    }
    let fits = section(&mut encoder, answers, &mut counts.answers)?
        && section(&mut encoder, authority, &mut counts.authorities)?;
    if fits {
        section(&mut encoder, additional, &mut counts.additionals)?;
    }
    encoder.set_max_size(frame.limit);
    if let Some(edns) = &frame.edns {
        let mut edns = edns.clone();
        edns.set_rcode_high(frame.metadata.response_code.high());
        encoder.emit_all(once(&edns))?;
        counts.additionals = counts.additionals.saturating_add(1);
    }
    let mut metadata = frame.metadata;
    metadata.truncation |= !fits;
    place.replace(&mut encoder, Header { metadata, counts })?;
    Ok(!fits)
}

/// Writes the records that fit. Returns false if one does not.
fn section(
    encoder: &mut BinEncoder<'_>,
    items: impl IntoIterator<Item = Item>,
    count: &mut u16,
) -> Result<bool, ProtoError> {
    for item in items {
        match encoder.emit_all(once(&item)) {
            Ok(_) => *count = count.saturating_add(1),
            Err(ProtoError::NotAllRecordsWritten { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
