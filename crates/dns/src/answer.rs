//! From the bytes of a request to the bytes of its answer. Pure: the zone is read, nothing is sent.
//!
//! A request outside of the zone is not answered here if other servers may be asked; [`respond`] then returns what to
//! ask them. An alias that leads out of the zone is the same: [`Chase`] has the first half of the answer.

use hickory_proto::op::{Edns, Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable as _, BinDecoder};

use crate::zone::{Lookup, LookupResult, Rr, Zone};

mod encode;
#[cfg(test)]
mod tests;

use encode::{Frame, Item, encode};

/// Largest UDP message that is sent: fits into one packet on all paths in use, as resolvers recommend (DNS flag day 2020).
pub const MAX_UDP: u16 = 1232;
/// Largest UDP message for a client that does not say what it can take (RFC 1035, 2.3.4).
const PLAIN_UDP: u16 = 512;
/// Bytes of a message's header.
const HEADER: usize = 12;

/// How a request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In a UDP datagram.
    Udp,
    /// Over a TCP connection.
    Tcp,
}

/// What was answered, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Type in the question. `ZERO` if there was no question that could be read.
    pub kind: RecordType,
    /// Response code.
    pub code: ResponseCode,
    /// True if records were left out.
    pub truncated: bool,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Verdict {
    /// It gets no answer: it is too short, or itself an answer.
    Ignored,
    /// The answer is in the buffer.
    Answered(Summary),
    /// The name is another server's.
    Forward(Box<Forward>),
    /// The name is an alias of another server's name.
    Chase(Box<Chase>),
}

/// A request for another server.
#[derive(Debug)]
pub struct Forward {
    frame: Frame,
}

/// An answer that lacks the records of an alias's target.
#[derive(Debug)]
pub struct Chase {
    frame: Frame,
    answers: Vec<Item>,
    target: Name,
}

/// Answers a request. `forwards` is true if other servers may be asked. `turn` is the position at which sets begin. The
/// answer replaces the content of `out`.
pub fn respond(
    zone: &Zone,
    request: &[u8],
    transport: Transport,
    forwards: bool,
    turn: usize,
    out: &mut Vec<u8>,
) -> Verdict {
    out.clear();
    let Ok(header) = Header::read(&mut BinDecoder::new(request)) else { return Verdict::Ignored };
    if header.message_type != MessageType::Query {
        return Verdict::Ignored;
    }
    let mut frame = Frame::new(&header.metadata);
    frame.metadata.recursion_available = forwards;
    if header.op_code != OpCode::Query {
        return frame.error(ResponseCode::NotImp, out);
    }
    // More questions than one have no meaning, and room would be reserved for all of them.
    if header.counts.queries != 1 {
        return frame.error(ResponseCode::FormErr, out);
    }
    let Ok(message) = Message::from_vec(request) else { return frame.error(ResponseCode::FormErr, out) };
    frame.limit = limit(message.edns.as_ref(), transport);
    frame.edns = message.edns.as_ref().map(answering);
    frame.query = message.queries.into_iter().next();
    let Some(query) = &frame.query else { return frame.error(ResponseCode::FormErr, out) };
    if message.edns.is_some_and(|edns| edns.version() > 0) {
        return frame.error(ResponseCode::BADVERS, out);
    }
    let transfer = matches!(query.query_type, RecordType::AXFR | RecordType::IXFR);
    if transfer || !matches!(query.query_class, DNSClass::IN | DNSClass::ANY) {
        return frame.error(ResponseCode::Refused, out);
    }
    let may_forward = forwards && header.recursion_desired;
    match zone.lookup(&query.name, query.query_type, turn) {
        None if may_forward => Verdict::Forward(Box::new(Forward { frame })),
        None => frame.error(ResponseCode::Refused, out),
        Some(mut found) => match found.beyond.take().filter(|_| may_forward) {
            Some(target) => {
                frame.metadata.authoritative = true;
                let ttl = zone.settings().ttl;
                let answers = found.answers.map(|rr| item(rr, ttl)).collect();
                Verdict::Chase(Box::new(Chase { frame, answers, target }))
            }
            None => frame.found(found, zone.settings().ttl, out),
        },
    }
}

impl Frame {
    fn error(mut self, code: ResponseCode, out: &mut Vec<u8>) -> Verdict {
        self.metadata.response_code = code;
        Verdict::Answered(self.send([], None, [], out))
    }

    fn found(mut self, found: Lookup<'_>, ttl: u32, out: &mut Vec<u8>) -> Verdict {
        self.metadata.authoritative = found.outcome != LookupResult::NotInSync;
        self.metadata.response_code = match found.outcome {
            LookupResult::Found | LookupResult::NoData => ResponseCode::NoError,
            LookupResult::NoName => ResponseCode::NXDomain,
            LookupResult::NotInSync => return self.error(ResponseCode::ServFail, out),
        };
        let item = |rr| item(rr, ttl);
        let authority = found.authority.map(item);
        Verdict::Answered(self.send(found.answers.map(item), authority, found.additional.map(item), out))
    }

    /// Writes the answer. If it cannot be written, which no record of the zone causes, the answer is an error.
    fn send(
        &self,
        answers: impl IntoIterator<Item = Item>,
        authority: Option<Item>,
        additional: impl IntoIterator<Item = Item>,
        out: &mut Vec<u8>,
    ) -> Summary {
        let kind = self.query.as_ref().map_or(RecordType::ZERO, |query| query.query_type);
        match encode(self, answers, authority, additional, out) {
            Ok(truncated) => Summary { kind, code: self.metadata.response_code, truncated },
            Err(error) => {
                tracing::warn!(%error, "an answer cannot be encoded");
                let mut frame = Self::new(&self.metadata);
                frame.metadata.response_code = ResponseCode::ServFail;
                if encode(&frame, [], None, [], out).is_err() {
                    out.clear();
                }
                Summary { kind, code: ResponseCode::ServFail, truncated: false }
            }
        }
    }
}

impl Forward {
    /// Returns the type in the question.
    pub fn kind(&self) -> RecordType {
        self.frame.query.as_ref().map_or(RecordType::ZERO, |query| query.query_type)
    }

    /// Writes another server's answer to this request. `answer` is that server's message, or `None` if there is none.
    /// An answer that is too long for the client becomes an empty one that is marked as truncated.
    pub fn finish(self, answer: Option<&[u8]>, out: &mut Vec<u8>) -> Summary {
        let mut frame = self.frame;
        let header = answer.and_then(|answer| Header::read(&mut BinDecoder::new(answer)).ok());
        let (Some(answer), Some(header)) = (answer, header) else {
            frame.metadata.response_code = ResponseCode::ServFail;
            return frame.send([], None, [], out);
        };
        if answer.len() > usize::from(frame.limit) {
            frame.metadata.response_code = header.response_code;
            frame.metadata.truncation = true;
            return Summary { truncated: true, ..frame.send([], None, [], out) };
        }
        out.clear();
        out.extend_from_slice(&frame.metadata.id.to_be_bytes());
        out.extend_from_slice(answer.get(2..).unwrap_or_default());
        let kind = frame.query.map_or(RecordType::ZERO, |query| query.query_type);
        Summary { kind, code: header.response_code, truncated: header.truncation }
    }
}

impl Chase {
    /// Returns the request for the target's records. Its id is for the caller to choose.
    pub fn request(&self) -> Option<Vec<u8>> {
        let query = self.frame.query.as_ref()?;
        let mut message = Message::new(0, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.metadata.checking_disabled = self.frame.metadata.checking_disabled;
        message.add_query(Query::query(self.target.clone(), query.query_type));
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP);
        message.set_edns(edns);
        message.to_vec().ok()
    }

    /// Writes the whole answer. `answer` is the other server's message about the target, or `None` if there is none.
    pub fn finish(mut self, answer: Option<&[u8]>, out: &mut Vec<u8>) -> Summary {
        // Only a response to a query is used. In a response to an update, records may have no data (RFC 2136, 2.4), and a client
        // could not decode these in our answer.
        let is_answer = |message: &Message| {
            (message.message_type, message.op_code) == (MessageType::Response, OpCode::Query)
        };
        let answer = answer.and_then(|answer| Message::from_vec(answer).ok()).filter(is_answer);
        let Some(answer) = answer else {
            self.frame.metadata.response_code = ResponseCode::ServFail;
            return self.frame.send([], None, [], out);
        };
        self.frame.metadata.response_code = answer.response_code;
        self.frame.metadata.truncation = answer.truncation;
        // RFC 1035, 4.1.1: the authority is that of the first name, which is the cluster's.
        let summary = self.frame.send(
            self.answers.into_iter().chain(answer.answers.into_iter().map(Item::from)),
            None,
            [],
            out,
        );
        Summary { truncated: summary.truncated || answer.metadata.truncation, ..summary }
    }
}

fn item(rr: Rr, ttl: u32) -> Item {
    Item { owner: rr.owner, ttl, data: rr.data }
}

/// Returns the maximum size of the answer.
fn limit(edns: Option<&Edns>, transport: Transport) -> u16 {
    match transport {
        Transport::Tcp => u16::MAX,
        Transport::Udp => edns.map_or(PLAIN_UDP, |edns| edns.max_payload().clamp(PLAIN_UDP, MAX_UDP)),
    }
}

/// Returns the options of the answer to a request that has some.
fn answering(request: &Edns) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP);
    edns.set_dnssec_ok(request.flags().dnssec_ok);
    edns
}

/// Returns the end of the question in a message with one question, whose name is not compressed.
pub(crate) fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        if length > 63 {
            return None;
        }
        at = at.checked_add(length)?.checked_add(1)?;
        if length == 0 {
            let end = at.checked_add(4)?;
            return (end <= message.len()).then_some(end);
        }
    }
}

/// Returns true if `answer` is a response with the id, opcode and question of `request`. Case does not matter.
pub fn answers_it(request: &[u8], answer: &[u8]) -> bool {
    let question = |message| question_end(message).and_then(|end| <[u8]>::get(message, HEADER..end));
    // The flag QR and the opcode (RFC 1035, 4.1.1).
    let kind = |message: &[u8]| message.get(2).map(|flags| flags & 0xf8);
    let is_answer = kind(answer) == kind(request).map(|kind| kind | 0x80);
    match (question(request), question(answer)) {
        (Some(asked), Some(answered)) => {
            let same_type = asked.last_chunk::<4>() == answered.last_chunk::<4>();
            is_answer
                && same_type
                && request.get(..2) == answer.get(..2)
                && asked.eq_ignore_ascii_case(answered)
        }
        _ => false,
    }
}
