//! Packets of established flows.

use super::*;

fn judged(table: &[Entry], flow: FlowState) -> Verdict {
    let (settings, differences) = (&settings(), &ModeDifferences::default());
    let oracle = Oracle { settings, local_addresses: &[], table, differences, health_check_ports: &[] };
    oracle.verdict(&Packet { flow, ..packet(POD, "10.244.1.9", (CLUSTER_IP, 80)) })
}

#[test]
fn an_established_flow_keeps_its_endpoint() {
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..forwarding() };
    let gone = "10.244.2.77:8080".parse().expect("a socket");
    for masqueraded in [false, true] {
        let flow = FlowState::Established(Some(Translation { endpoint: gone, masqueraded }));
        for table in [vec![], vec![entry(&empty)], vec![entry(&forwarding())]] {
            let verdict = judged(&table, flow);
            let Fate::Backends { set, masqueraded: flags, affinity } = &verdict.fate else {
                panic!("{verdict:?}")
            };
            let sockets: Vec<_> = set.iter().map(Backend::socket).collect();
            assert_eq!((sockets, &flags[..], *affinity), (vec![gone], &[masqueraded][..], None));
            assert_eq!((verdict.decided_by.clone(), verdict.endpoints), (None, None));
            assert_eq!(verdict.codes().collect::<Vec<_>>(), ["established"]);
        }
    }
}

#[test]
fn an_established_flow_without_translation_is_left_alone() {
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..forwarding() };
    let verdict = judged(&[entry(&empty)], FlowState::Established(None));
    assert_eq!(verdict.fate, Fate::NotOurs);
    assert_eq!(verdict.codes().collect::<Vec<_>>(), ["established-not-translated"]);
    assert_eq!(judged(&[entry(&empty)], FlowState::New).fate, Fate::Reject);
}
