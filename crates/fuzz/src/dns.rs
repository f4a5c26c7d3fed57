//! DNS requests in both transports, and answers of other servers to them. There is no panic; every answer can be decoded
//! and fits into its transport. Services and EndpointSlices are decoded, too.
//!
//! Choices make questions about names of the zone, and answers of another server to them. Other inputs are a request and such an
//! answer.

use std::sync::LazyLock;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use portolan_dns::answer::{MAX_UDP, Transport, Verdict, answers_it, respond};
use portolan_dns::{Service, Settings, Slice, Zone};

use portolan_schema::Resource;

use crate::objects;
use crate::script::Script;

/// Labels before the names.
const LABELS: [&str; 16] = [
    "a",
    "A",
    "n",
    "h",
    "x",
    "svc",
    "pod",
    "_p",
    "_tcp",
    "_udp",
    "10-0-0-1",
    "10-1-0-2",
    "fd00--1",
    "1",
    "c",
    "dns-version",
];
/// Names in the zone and beside it.
const NAMES: [&str; 18] = [
    "a.n.svc.c.",
    "_p._tcp.a.n.svc.c.",
    "h.n.svc.c.",
    "x.h.n.svc.c.",
    "10-1-0-1.h.n.svc.c.",
    "e.n.svc.c.",
    "l.n.svc.c.",
    "n.svc.c.",
    "svc.c.",
    "10-0-0-7.n.pod.c.",
    "n.pod.c.",
    "dns-version.c.",
    "c.",
    "1.0.0.10.in-addr.arpa.",
    "1.0.1.10.in-addr.arpa.",
    "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.",
    "x.y.",
    "",
];
const TYPES: [RecordType; 10] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::PTR,
    RecordType::TXT,
    RecordType::SOA,
    RecordType::NS,
    RecordType::CNAME,
    RecordType::ANY,
    RecordType::HTTPS,
];
/// The most labels before a name. Most names have none.
const MOST_LABELS: usize = 3;
/// The most records of an answer of another server.
const MOST_RECORDS: usize = 4;

static ZONE: LazyLock<Zone> = LazyLock::new(|| {
    let settings = Settings::new("c").expect("it is a domain");
    let ranges =
        vec!["10.0.0.0/8".parse().expect("it is a range"), "fd00::/108".parse().expect("it is a range")];
    let mut zone = Zone::new(Settings { pod_names: true, ranges, ..settings }, 1);
    zone.set_in_sync(true);
    for service in [
        r#"{"metadata":{"name":"a","namespace":"n"},"spec":{"clusterIPs":["10.0.0.1","fd00::1"],"ports":[{"name":"p","port":1}]}}"#,
        r#"{"metadata":{"name":"h","namespace":"n"},"spec":{"clusterIP":"None"}}"#,
        r#"{"metadata":{"name":"e","namespace":"n"},"spec":{"type":"ExternalName","externalName":"x.y"}}"#,
        r#"{"metadata":{"name":"l","namespace":"n"},"spec":{"type":"ExternalName","externalName":"l.n.svc.c"}}"#,
    ] {
        zone.set_service(Service::decode(service.as_bytes()).expect("it is a Service"));
    }
    let slice = r#"{"metadata":{"name":"s","namespace":"n","labels":{"kubernetes.io/service-name":"h"}},
        "endpoints":[{"addresses":["10.1.0.1","10.1.0.2"],"hostname":"x"}],"ports":[{"name":"p","port":1}]}"#;
    zone.set_slice(Slice::decode(slice.as_bytes()).expect("it is an EndpointSlice"));
    zone
});

/// Answers the requests, and takes the answers of the other server.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(mut script) = Script::of(bytes) {
        let (request, other) = messages(&mut script);
        respond_to(&request, &other);
        let _ = Service::decode(objects::edited(Resource::Service, &mut script).to_string().as_bytes());
        let _ = Slice::decode(objects::edited(Resource::EndpointSlice, &mut script).to_string().as_bytes());
        return;
    }
    // The first two bytes are the length of the request; the rest is the answer of another server.
    let Some((length, bytes)) = bytes.split_first_chunk() else { return };
    let Some((request, other)) = bytes.split_at_checked(u16::from_be_bytes(*length).into()) else { return };
    respond_to(request, other);
    let _ = Service::decode(other);
    let _ = Slice::decode(other);
}

/// Returns a question, and an answer to it with other names.
fn messages(script: &mut Script<'_>) -> (Vec<u8>, Vec<u8>) {
    let mut request = Message::new(script.byte().into(), MessageType::Query, OpCode::Query);
    let mut query = Query::query(name(script), script.pick(&TYPES));
    if script.below(16) == 1 {
        query.set_query_class(script.pick(&[DNSClass::CH, DNSClass::ANY]));
    }
    request.add_query(query);
    request.metadata.recursion_desired = script.flag();
    if script.flag() {
        let mut edns = Edns::new();
        edns.set_max_payload(script.pick(&[0, 512, 1232, u16::MAX]));
        edns.set_version(script.below(2).try_into().unwrap());
        request.edns = Some(edns);
    }
    let mut answer = request.clone();
    answer.metadata.message_type = MessageType::Response;
    answer.metadata.truncation = script.below(8) == 1;
    for _ in 0..script.below(MOST_RECORDS + 1) {
        let data = match script.below(4) {
            0 => RData::A(A::new(192, 0, 2, script.byte())),
            1 => RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, script.byte().into())),
            2 => RData::SRV(SRV::new(0, 1, script.byte().into(), name(script))),
            _ => RData::CNAME(CNAME(name(script))),
        };
        answer.add_answer(Record::from_rdata(name(script), 5, data));
    }
    [request, answer].map(|message| message.to_vec().unwrap_or_default()).into()
}

fn name(script: &mut Script<'_>) -> Name {
    let count = script.below(4 * MOST_LABELS).saturating_sub(3 * MOST_LABELS - 1);
    let labels: String = (0..count).map(|_| script.pick(&LABELS).to_owned() + ".").collect();
    (labels + script.pick(&NAMES)).parse().unwrap_or_default()
}

fn respond_to(request: &[u8], other: &[u8]) {
    let _ = answers_it(request, other);
    for (transport, forwards, limit) in
        [(Transport::Udp, false, MAX_UDP), (Transport::Udp, true, MAX_UDP), (Transport::Tcp, true, u16::MAX)]
    {
        let mut out = Vec::new();
        match respond(&ZONE, request, transport, forwards, 1, &mut out) {
            Verdict::Ignored => assert!(out.is_empty()),
            Verdict::Answered(_) => {
                Message::from_vec(&out).expect("an answer can be decoded");
            }
            Verdict::Forward(forward) => {
                forward.finish(Some(other), &mut out);
            }
            Verdict::Chase(chase) => {
                let asked = chase.request().expect("a request");
                // The same message with the flag QR is an answer, and is none with another opcode.
                let mut answer = asked.clone();
                answer[2] |= 0x80;
                assert!(answers_it(&asked, &answer));
                answer[2] |= 0x28;
                assert!(!answers_it(&asked, &answer));
                chase.finish(Some(other), &mut out);
                Message::from_vec(&out).expect("an answer can be decoded");
            }
        }
        assert!(out.len() <= limit.into());
        assert!(out.is_empty() || out.get(..2) == request.get(..2));
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::ResponseCode;

    use super::*;

    #[test]
    fn questions_are_answered_with_records_and_with_errors() {
        let (mut with_records, mut without_name, mut others) = (0, 0, 0);
        for seed in 0..512 {
            let bytes = crate::script::random(seed, 64);
            let (request, other) = messages(&mut Script::new(&bytes[1..]));
            others += usize::from(answers_it(&request, &other));
            let mut out = Vec::new();
            if let Verdict::Answered(_) = respond(&ZONE, &request, Transport::Udp, false, 1, &mut out) {
                let answer = Message::from_vec(&out).expect("an answer");
                with_records += usize::from(!answer.answers.is_empty());
                without_name += usize::from(answer.metadata.response_code == ResponseCode::NXDomain);
            }
        }
        assert!(
            with_records > 8 && without_name > 8 && others > 256,
            "{with_records} {without_name} {others}"
        );
    }
}
