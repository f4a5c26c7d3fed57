use hickory_proto::rr::{RData, Record};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::object::{Service, Slice};
use crate::zone::Settings;

const WEB: &str = "web.shop.svc.cluster.local.";

/// A Service, a headless Service with `endpoints` endpoints, and an alias of another server's name.
fn zone(endpoints: u16) -> Zone {
    let mut zone = Zone::new(Settings::new("cluster.local").unwrap(), 1);
    zone.set_in_sync(true);
    let metadata = |name: &str| json!({"name": name, "namespace": "shop"});
    for (name, spec) in [
        ("web", json!({"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}]})),
        ("all", json!({"clusterIP": "None"})),
        ("site", json!({"type": "ExternalName", "externalName": "www.example.com"})),
    ] {
        zone.set_service(Service::try_from(&json!({"metadata": metadata(name), "spec": spec})).unwrap());
    }
    let endpoints: Vec<_> = (0..endpoints)
        .map(|index| json!({"addresses": [format!("10.1.{}.{}", index >> 8, index & 255)]}))
        .collect();
    zone.set_slice(
        Slice::try_from(&json!({
            "metadata": {"name": "all-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "all"}},
            "endpoints": endpoints, "ports": [{"name": "http", "port": 80}],
        }))
        .unwrap(),
    );
    zone
}

fn request(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn with_edns(mut message: Message, payload: u16, version: u8) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(payload).set_version(version).set_dnssec_ok(true);
    message.set_edns(edns);
    message
}

fn ask(zone: &Zone, request: &Message, transport: Transport) -> (Message, usize) {
    let mut out = vec![1, 2, 3];
    let verdict = respond(zone, &request.to_vec().unwrap(), transport, false, 0, &mut out);
    assert!(matches!(verdict, Verdict::Answered(_)), "{verdict:?}");
    (Message::from_vec(&out).unwrap(), out.len())
}

#[test]
fn an_answer_has_the_question_and_the_records() {
    let asked = "WEB.shop.svc.Cluster.local.";
    let (answer, _) = ask(&zone(0), &request(asked, RecordType::A), Transport::Udp);
    assert_eq!(answer.id, 4711);
    assert!(
        answer.authoritative && answer.recursion_desired && !answer.recursion_available && !answer.truncation
    );
    assert_eq!(answer.response_code, ResponseCode::NoError);
    assert_eq!(answer.queries[0].name.to_ascii(), asked);
    let [record] = &answer.answers[..] else { panic!("{answer}") };
    assert!(record.name.eq_case(&Name::from_ascii(asked).unwrap()));
    assert_eq!((record.ttl, record.data.to_string()), (5, "10.96.0.1".to_owned()));
    assert!(answer.authorities.is_empty() && answer.additionals.is_empty() && answer.edns.is_none());
}

#[test]
fn negative_answers_have_the_soa_record() {
    for (name, kind, code) in [
        ("none.shop.svc.cluster.local.", RecordType::A, ResponseCode::NXDomain),
        (WEB, RecordType::AAAA, ResponseCode::NoError),
    ] {
        let (answer, _) = ask(&zone(0), &request(name, kind), Transport::Udp);
        assert_eq!(answer.response_code, code);
        assert!(answer.authoritative && answer.answers.is_empty());
        let [soa] = &answer.authorities[..] else { panic!("{answer}") };
        let RData::SOA(data) = &soa.data else { panic!("{soa}") };
        assert_eq!((soa.name.to_ascii().as_str(), soa.ttl, data.minimum), ("cluster.local.", 5, 5));
    }
}

#[test]
fn requests_that_cannot_be_answered() {
    let zone = zone(0);
    let code = |message: &Message| ask(&zone, message, Transport::Udp).0.response_code;
    assert_eq!(code(&request("example.com.", RecordType::A)), ResponseCode::Refused);
    assert_eq!(code(&request("cluster.local.", RecordType::AXFR)), ResponseCode::Refused);
    let mut chaos = request("cluster.local.", RecordType::TXT);
    chaos.queries[0].query_class = DNSClass::CH;
    assert_eq!(code(&chaos), ResponseCode::Refused);
    let mut update = request(WEB, RecordType::A);
    update.metadata.op_code = OpCode::Notify;
    assert_eq!(code(&update), ResponseCode::NotImp);
    let mut two = request(WEB, RecordType::A);
    two.add_query(Query::query(Name::root(), RecordType::A));
    assert_eq!(code(&two), ResponseCode::FormErr);
    // BADVERS has the number of BADSIG, as which it is decoded.
    assert_eq!(u16::from(code(&with_edns(request(WEB, RecordType::A), 1232, 1))), 16);
    let mut cut = request(WEB, RecordType::A).to_vec().unwrap();
    cut.pop();
    let mut out = Vec::new();
    respond(&zone, &cut, Transport::Udp, false, 0, &mut out);
    assert_eq!(Message::from_vec(&out).unwrap().response_code, ResponseCode::FormErr);
}

#[test]
fn what_is_no_request_gets_no_answer() {
    let mut out = vec![1];
    let mut answer = request(WEB, RecordType::A);
    answer.metadata.message_type = MessageType::Response;
    for bytes in [vec![], vec![0; 11], answer.to_vec().unwrap()] {
        let verdict = respond(&zone(0), &bytes, Transport::Udp, true, 0, &mut out);
        assert!(matches!(verdict, Verdict::Ignored) && out.is_empty());
    }
}

#[test]
fn names_are_not_refused_before_all_objects_are_known() {
    let mut zone = zone(0);
    zone.set_in_sync(false);
    let (answer, _) = ask(&zone, &request("none.shop.svc.cluster.local.", RecordType::A), Transport::Udp);
    assert_eq!((answer.response_code, answer.authoritative), (ResponseCode::ServFail, false));
    assert!(answer.authorities.is_empty());
}

#[test]
fn large_answers_are_cut_at_the_size_that_the_client_takes() {
    let zone = zone(3000);
    let plain = request("all.shop.svc.cluster.local.", RecordType::A);
    let mut previous = 0;
    for (asked, limit) in [
        (plain.clone(), 512),
        (with_edns(plain.clone(), 0, 0), 512),
        (with_edns(plain.clone(), 800, 0), 800),
        (with_edns(plain.clone(), 4096, 0), usize::from(MAX_UDP)),
    ] {
        let (answer, size) = ask(&zone, &asked, Transport::Udp);
        assert!(answer.truncation && size <= limit && size + 16 > limit - 11, "{size} of {limit}");
        assert!(answer.answers.len() + 1 >= previous);
        previous = answer.answers.len();
        assert_eq!(answer.edns.is_some(), asked.edns.is_some());
        assert!(answer.edns.is_none_or(|edns| edns.flags().dnssec_ok && edns.max_payload() == MAX_UDP));
    }
    let (whole, _) = ask(&zone, &plain, Transport::Tcp);
    assert!(!whole.truncation);
    assert_eq!(whole.answers.len(), 3000);
}

#[test]
fn additional_records_that_do_not_fit_are_no_truncation() {
    let zone = zone(7);
    let (answer, size) =
        ask(&zone, &request("_http._tcp.all.shop.svc.cluster.local.", RecordType::SRV), Transport::Udp);
    assert!(!answer.truncation && size <= 512);
    assert_eq!(answer.answers.len(), 7);
    assert!((1..7).contains(&answer.additionals.len()), "{}", answer.additionals.len());
}

#[test]
fn other_names_are_for_other_servers_only_if_the_client_wants_recursion() {
    let mut out = Vec::new();
    let mut asked = request("example.com.", RecordType::A);
    let mut verdict =
        |asked: &Message| respond(&zone(0), &asked.to_vec().unwrap(), Transport::Udp, true, 0, &mut out);
    let Verdict::Forward(forward) = verdict(&asked) else { panic!("it is another server's") };
    assert_eq!(forward.kind(), RecordType::A);
    asked.metadata.recursion_desired = false;
    assert!(matches!(verdict(&asked), Verdict::Answered(Summary { code: ResponseCode::Refused, .. })));
}

#[test]
fn the_answer_of_another_server_gets_the_clients_id() {
    let forward = || {
        let bytes = request("example.com.", RecordType::A).to_vec().unwrap();
        match respond(&zone(0), &bytes, Transport::Udp, true, 0, &mut Vec::new()) {
            Verdict::Forward(forward) => forward,
            verdict => panic!("{verdict:?}"),
        }
    };
    let mut theirs = request("example.com.", RecordType::A);
    theirs.metadata.message_type = MessageType::Response;
    theirs.metadata.id = 1;
    theirs.metadata.response_code = ResponseCode::NXDomain;
    let mut out = Vec::new();
    let summary = forward().finish(Some(&theirs.to_vec().unwrap()), &mut out);
    assert_eq!((summary.code, summary.kind), (ResponseCode::NXDomain, RecordType::A));
    assert_eq!(Message::from_vec(&out).unwrap().id, 4711);

    let summary = forward().finish(None, &mut out);
    assert_eq!((summary.code, Message::from_vec(&out).unwrap().id), (ResponseCode::ServFail, 4711));

    let mut long = theirs.to_vec().unwrap();
    long.resize(600, 0);
    assert!(forward().finish(Some(&long), &mut out).truncated);
    let cut = Message::from_vec(&out).unwrap();
    assert!(cut.truncation && cut.id == 4711 && cut.queries.len() == 1);
}

#[test]
fn an_alias_gets_the_records_of_its_target() {
    let chase = || {
        let bytes = request("site.shop.svc.cluster.local.", RecordType::A).to_vec().unwrap();
        match respond(&zone(0), &bytes, Transport::Udp, true, 0, &mut Vec::new()) {
            Verdict::Chase(chase) => chase,
            verdict => panic!("{verdict:?}"),
        }
    };
    let mut theirs = Message::from_vec(&chase().request().unwrap()).unwrap();
    assert_eq!(theirs.queries[0].name.to_ascii(), "www.example.com.");
    theirs.metadata.message_type = MessageType::Response;
    let target = theirs.queries[0].name.clone();
    theirs.add_answer(Record::from_rdata(
        target,
        300,
        RData::A(std::net::Ipv4Addr::new(192, 0, 2, 1).into()),
    ));
    let mut out = Vec::new();
    chase().finish(Some(&theirs.to_vec().unwrap()), &mut out);
    let whole = Message::from_vec(&out).unwrap();
    let found: Vec<_> = whole.answers.iter().map(|record| (record.ttl, record.data.to_string())).collect();
    assert_eq!(found, [(5, "www.example.com.".to_owned()), (300, "192.0.2.1".to_owned())]);
    assert_eq!(whole.id, 4711);
    assert_eq!(chase().finish(None, &mut out).code, ResponseCode::ServFail);
    // An answer to an update has a record without data here, which is none in an answer to a query.
    let mut of_update = theirs.clone();
    of_update.metadata.op_code = OpCode::Update;
    of_update.add_answer(Record::update0("www.example.com.".parse().unwrap(), 0, RecordType::A));
    assert_eq!(chase().finish(Some(&of_update.to_vec().unwrap()), &mut out).code, ResponseCode::ServFail);
}

#[test]
fn without_forwarding_an_alias_is_answered_alone() {
    let (answer, _) = ask(&zone(0), &request("site.shop.svc.cluster.local.", RecordType::A), Transport::Udp);
    assert_eq!(answer.response_code, ResponseCode::NoError);
    assert_eq!(answer.answers.len(), 1);
}

#[test]
fn answers_are_matched_by_id_and_question() {
    let asked = request("Example.com.", RecordType::A).to_vec().unwrap();
    let mut right = request("eXample.com.", RecordType::A);
    right.metadata.message_type = MessageType::Response;
    assert!(answers_it(&asked, &right.to_vec().unwrap()));
    assert!(!answers_it(&asked, &asked));
    let mut other = right.clone();
    other.metadata.id = 1;
    assert!(!answers_it(&asked, &other.to_vec().unwrap()));
    let mut other = right.clone();
    other.metadata.op_code = OpCode::Update;
    assert!(!answers_it(&asked, &other.to_vec().unwrap()));
    for question in [request("example.org.", RecordType::A), request("example.com.", RecordType::AAAA)] {
        let mut other = question;
        other.metadata.message_type = MessageType::Response;
        assert!(!answers_it(&asked, &other.to_vec().unwrap()));
    }
    assert!(!answers_it(&asked, &[]));
}

proptest! {
    /// Whatever arrives, there is no panic, and an answer can be decoded and fits.
    #[test]
    fn any_bytes(flags in any::<[u8; 2]>(), rest in proptest::collection::vec(any::<u8>(), 0..80), tcp: bool) {
        let mut bytes = vec![1, 2, flags[0] & 0x7f, flags[1], 0, 1, 0, 0, 0, 0, 0, 0];
        bytes.extend(rest);
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        let mut out = Vec::new();
        match respond(&zone(1), &bytes, transport, tcp, 0, &mut out) {
            Verdict::Answered(_) => {
                prop_assert!(tcp || out.len() <= usize::from(MAX_UDP));
                prop_assert_eq!(Message::from_vec(&out).unwrap().id, 0x102);
            }
            _ => prop_assert!(out.is_empty()),
        }
    }

    /// The same with requests in which some bytes are changed and the end is missing.
    #[test]
    fn almost_requests(
        name in "(_http\\._tcp\\.)?(web|all|site|10-1-0-0\\.all)\\.shop\\.svc\\.cluster\\.local\\.|0\\.0\\.1\\.10\\.in-addr\\.arpa\\.",
        kind in proptest::sample::select(vec![RecordType::A, RecordType::SRV, RecordType::PTR, RecordType::ANY]),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        missing in 0_usize..3,
        forwards: bool,
    ) {
        let mut bytes = with_edns(request(&name, kind), 1232, 0).to_vec().unwrap();
        bytes.truncate(bytes.len() - missing);
        for (index, byte) in changes {
            *index.get_mut(&mut bytes) = byte;
        }
        let mut out = Vec::new();
        match respond(&zone(1), &bytes, Transport::Udp, forwards, 0, &mut out) {
            Verdict::Answered(_) => {
                prop_assert!(out.len() <= usize::from(MAX_UDP));
                prop_assert_eq!(&out[..2], &bytes[..2]);
                prop_assert!(Message::from_vec(&out).is_ok());
            }
            _ => prop_assert!(out.is_empty()),
        }
    }
}
