//! DNS requests in both transports, and answers of other servers to them. There is no panic; every answer can be decoded
//! and fits into its transport.

use std::sync::LazyLock;

use hickory_proto::op::Message;
use portolan_dns::answer::{MAX_UDP, Transport, Verdict, respond};
use portolan_dns::{Service, Settings, Slice, Zone};

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
    // The first two bytes are the length of the request; the rest is the answer of another server.
    let Some((length, bytes)) = bytes.split_first_chunk() else { return };
    let Some((request, other)) = bytes.split_at_checked(u16::from_be_bytes(*length).into()) else { return };
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
                assert!(chase.request().is_some());
                chase.finish(Some(other), &mut out);
            }
        }
        assert!(out.len() <= limit.into());
        assert!(out.is_empty() || out.get(..2) == request.get(..2));
    }
    let _ = Service::decode(other);
    let _ = Slice::decode(other);
}
