use insta::assert_snapshot;
use serde_json::{Value, json};

use super::*;
use crate::object::{Object, decode_service};

#[expect(clippy::needless_pass_by_value, reason = "`json!` makes values")]
fn service(spec: Value, status: Value) -> Object<Service> {
    let metadata = json!({ "namespace": "ns", "name": "web", "resourceVersion": "7" });
    let object = json!({ "metadata": metadata, "spec": spec, "status": status });
    decode_service(object.to_string().as_bytes()).expect("decodes")
}

fn faults(object: &Object<Service>) -> String {
    object.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_fields_are_decoded() {
    let object = service(
        json!({
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "2001:db8::1"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [
                { "name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053, "targetPort": "x" },
                { "port": 80 },
            ],
            "externalIPs": ["192.0.2.1", " ", "192.0.2.1", "2001:db8::2"],
            "loadBalancerSourceRanges": [" 10.1.2.3/8 ", "10.0.0.0/9", ""],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
            "internalTrafficPolicy": "Local",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000,
        }),
        json!({ "loadBalancer": { "ingress": [
            { "ip": "192.0.2.9", "ipMode": "VIP" },
            { "ip": "192.0.2.8" },
            { "ip": "192.0.2.7", "ipMode": "Proxy" },
            { "hostname": "lb.example.net" },
            { "ip": "" },
        ] } }),
    );
    assert_eq!(faults(&object), "");
    assert_eq!(&*object.resource_version, "7");
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let expected = Service {
        created: UNKNOWN_AGE,
        foreign_proxy: false,
        cluster_ipv4: Some([10, 96, 0, 1].into()),
        cluster_ipv6: Some("2001:db8::1".parse().expect("an address")),
        ports: Arc::new([
            ServicePort { name: "dns".into(), port: 53, node_port: Some(30053), protocol: Protocol::Udp },
            ServicePort { name: "".into(), port: 80, node_port: None, protocol: Protocol::Tcp },
        ]),
        external: Some(Box::new(External {
            ips: Box::new([ip("192.0.2.1"), ip("2001:db8::2")]),
            load_balancer_ips: Box::new([ip("192.0.2.9"), ip("192.0.2.8")]),
            source_ranges: Box::new(["10.0.0.0/8".parse().expect("a CIDR")]),
            health_check_port: Some(31000),
        })),
        affinity: Some(60),
        ipvs_scheduler: None,
        keep_client_address: false,
        internal_policy: InternalPolicy::Local,
        external_policy: ExternalPolicy::Local,
    };
    assert_eq!(object.payload, expected);
}

#[test]
fn bad_fields_are_left_out_and_named() {
    let object = service(
        json!({
            "type": "NodePort",
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1", "10.96.0.2", 7],
            "ipFamilies": ["IPv4", "IPv6", "IPv8"],
            "ports": [
                { "port": 0 }, { "port": 70000 }, { "port": "80" }, {}, 5,
                { "name": 3, "port": 1 }, { "protocol": "ICMP", "port": 1 },
                { "name": "good", "port": 80, "nodePort": -1 },
            ],
            "externalIPs": ["bogus", null, "fe80::1%eth0"],
            "loadBalancerSourceRanges": "10.0.0.0/8",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 86401 } },
            "internalTrafficPolicy": "Nearby",
        }),
        json!([]),
    );
    assert_eq!(object.payload.ports.len(), 1);
    assert_eq!(&*object.payload.ports[0].name, "good");
    assert_eq!(object.payload.ports[0].node_port, None);
    assert_eq!(object.payload.cluster_ipv6, None);
    assert_eq!(object.payload.affinity, Some(DEFAULT_AFFINITY_SECONDS));
    assert_snapshot!(faults(&object), @r#"
    status: is a list; write an object
    spec.clusterIPs[1]: 10.96.0.2 is not IPv6; make it agree with spec.ipFamilies
    spec.ipFamilies[2]: "IPv8" is not a family; write IPv4 or IPv6
    spec.externalIPs[0]: "bogus" is not an IP address; write one such as 10.0.0.1
    spec.externalIPs[2]: "fe80::1%eth0" is not an IP address; write one such as 10.0.0.1
    spec.ports[0].port: 0 is not a port; write 1 to 65535
    spec.ports[1].port: 70000 is not a port; write 1 to 65535
    spec.ports[2].port: is text; write a number from 1 to 65535
    spec.ports[3].port: is missing; write 1 to 65535
    spec.ports[4]: is a number; write an object
    spec.ports[5].name: is a number; write text
    spec.ports[6].protocol: "ICMP" is not a protocol; write TCP, UDP or SCTP
    spec.ports[7].nodePort: -1 is not a port; write 1 to 65535
    spec.loadBalancerSourceRanges: is text; write a list of CIDRs
    spec.loadBalancerSourceRanges: no entry can be read for IPv4: its load-balancer IPs are closed to all; mend the entries
    spec.sessionAffinityConfig.clientIP.timeoutSeconds: 86401 is out of range; write 1 to 86400
    spec.internalTrafficPolicy: "Nearby" is not known; write Cluster or Local
    "#);
}

#[expect(clippy::needless_pass_by_value, reason = "`json!` makes values")]
fn annotated(annotations: Value) -> Object<Service> {
    let spec = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] });
    let metadata = json!({ "name": "web", "namespace": "demo", "annotations": annotations });
    let bytes = json!({ "metadata": metadata, "spec": spec }).to_string();
    decode_service(bytes.as_bytes()).expect("a Service")
}

#[test]
fn the_ipvs_scheduler_annotation() {
    let with = |name: Value| annotated(json!({ "portolan.dev/ipvs-scheduler": name }));
    assert_eq!(with(json!("lc")).payload.ipvs_scheduler, Some(IpvsScheduler::Lc));
    let object = with(json!("fastest"));
    assert_eq!(object.payload.ipvs_scheduler, None);
    assert_snapshot!(faults(&object), @r#"metadata.annotations[portolan.dev/ipvs-scheduler]: "fastest" is not known; write one of rr, wrr, lc, wlc, fo, ovf, lblc, lblcr, sh, dh, sed, nq, mh, twos"#);
}

#[test]
fn the_keep_client_address_annotation() {
    let with = |text: Value| annotated(json!({ "portolan.dev/userspace-keep-client-address": text }));
    assert!(with(json!("true")).payload.keep_client_address);
    assert!(!with(json!("false")).payload.keep_client_address);
    assert!(!annotated(json!({})).payload.keep_client_address);
    let object = with(json!("yes"));
    assert!(!object.payload.keep_client_address);
    assert_snapshot!(faults(&object), @r#"metadata.annotations[portolan.dev/userspace-keep-client-address]: "yes" is not known; write true or false"#);
}

#[test]
fn services_that_are_not_proxied() {
    let ports = json!([{ "port": 80 }]);
    for spec in [
        json!({ "clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "ports": ports }),
        json!({ "clusterIP": "", "ports": ports }),
        json!({ "ports": ports }),
        json!({ "type": "ExternalName", "clusterIP": "10.96.0.1", "ports": ports }),
    ] {
        let object = service(spec.clone(), Value::Null);
        assert!(!object.payload.is_proxied(), "{spec}");
        assert_eq!(object.faults, [], "{spec}");
    }
    let labels = json!({ "service.kubernetes.io/service-proxy-name": "" });
    let metadata = json!({ "namespace": "ns", "name": "web", "labels": labels });
    let object = json!({ "metadata": metadata, "spec": { "clusterIP": "10.96.0.1", "ports": ports } });
    let object = decode_service(object.to_string().as_bytes()).expect("decodes");
    assert!(object.payload.foreign_proxy && !object.payload.is_proxied());
}

#[test]
fn without_families_the_scalar_decides() {
    let spec = json!({ "clusterIP": "2001:db8::1", "clusterIPs": ["10.0.0.1"], "ports": [] });
    let object = service(spec, Value::Null);
    assert_eq!((object.payload.cluster_ipv4, object.payload.cluster_ipv6.is_some()), (None, true));
}

#[test]
fn the_later_of_two_equal_port_keys_counts() {
    let ports = json!([
        { "name": "a", "port": 1 }, { "name": "b", "port": 2 }, { "name": "a", "port": 3 },
        { "name": "a", "port": 4, "protocol": "UDP" },
    ]);
    let object = service(json!({ "clusterIP": "10.0.0.1", "ports": ports }), Value::Null);
    assert_eq!(object.payload.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn a_range_of_length_zero_opens_its_family_only() {
    for open in [json!(["0.0.0.0/0"]), json!(["0.0.0.0/1", "128.0.0.0/1"])] {
        let mut ranges = open.as_array().expect("a list").clone();
        ranges.extend([json!("10.0.0.0/8"), json!("2001:db8::/32"), json!("nonsense")]);
        let spec = json!({ "clusterIP": "10.0.0.1", "ports": [], "loadBalancerSourceRanges": ranges });
        let object = service(spec, Value::Null);
        assert_eq!(*object.payload.source_ranges(), ["2001:db8::/32".parse::<IpNet>().expect("a CIDR")]);
        assert_eq!(object.faults.len(), 1);
    }
}

#[test]
fn external_ips_can_be_ignored() {
    let ignored = |spec: Value| {
        let mut service = service(spec, Value::Null).payload;
        service.ignore_external_ips();
        service
    };
    let spec = |ips: Value| json!({ "clusterIP": "10.0.0.1", "ports": [], "externalIPs": ips });
    assert_eq!(ignored(spec(json!(["192.0.2.1"]))), service(spec(json!([])), Value::Null).payload);
    let mut ranged = spec(json!(["192.0.2.1"]));
    ranged["loadBalancerSourceRanges"] = json!(["10.0.0.0/8"]);
    let service = ignored(ranged);
    assert_eq!((service.external_ips().len(), service.source_ranges().len()), (0, 1));
}

#[test]
fn external_policy_needs_a_type_that_is_reachable() {
    let policy = |spec: Value| {
        let mut spec = spec;
        spec["clusterIP"] = json!("10.0.0.1");
        spec["externalTrafficPolicy"] = json!("Local");
        service(spec, Value::Null).payload.external_policy
    };
    assert_eq!(policy(json!({})), ExternalPolicy::Cluster);
    assert_eq!(policy(json!({ "type": "NodePort" })), ExternalPolicy::Local);
    assert_eq!(policy(json!({ "externalIPs": ["2001:db8::1"] })), ExternalPolicy::Local);
}

#[test]
fn affinity_without_a_timeout_lasts_three_hours() {
    let spec = json!({ "clusterIP": "10.0.0.1", "sessionAffinity": "ClientIP" });
    assert_eq!(service(spec, Value::Null).payload.affinity, Some(10_800));
}

#[test]
fn unreadable_source_ranges_alone_close_their_family() {
    let (v4, v6) = ("0.0.0.0/32", "::/128");
    let cases: &[(Value, &[&str], usize)] = &[
        (json!(["10.0.0.0/33"]), &[v4, v6], 2),
        (json!([7, "", "nonsense"]), &[v4, v6], 2),
        (json!("10.0.0.0/8"), &[v4, v6], 2),
        // A valid range restricts its family. An invalid entry may have been meant for the other family.
        (json!(["nonsense", "10.0.0.0/8"]), &["10.0.0.0/8", v6], 1),
        (json!(["nonsense", "10.0.0.0/8", "2001:db8::/32"]), &["10.0.0.0/8", "2001:db8::/32"], 0),
        (json!(["nonsense", "0.0.0.0/0"]), &[v6], 1),
        (json!(["10.0.0.0/8"]), &["10.0.0.0/8"], 0),
        // Kubernetes refuses blank entries. With nothing else in the list, they do not say who may connect.
        (json!(["", " "]), &[v4, v6], 2),
        (json!(["", "10.0.0.0/8"]), &["10.0.0.0/8"], 0),
        (json!([]), &[], 0),
        (json!(null), &[], 0),
    ];
    for (ranges, wanted, closed) in cases {
        let families = json!(["IPv4", "IPv6"]);
        let mut spec = json!({ "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "2001:db8::1"], "ipFamilies": families });
        spec["loadBalancerSourceRanges"] = ranges.clone();
        let object = service(spec, json!({}));
        let found: Vec<String> = object.payload.source_ranges().iter().map(ToString::to_string).collect();
        assert_eq!(found, *wanted, "{ranges}");
        let reported = object.faults.iter().filter(|fault| fault.notice == Some(Notice::ClosedSourceRanges));
        assert_eq!(reported.count(), *closed, "{ranges}: {}", faults(&object));
    }
    let many = json!({ "clusterIP": "10.0.0.1", "loadBalancerSourceRanges": vec!["nonsense"; 100] });
    let object = service(many, json!({}));
    assert!(object.faults.iter().any(|fault| fault.notice.is_some()), "{}", faults(&object));
}

#[test]
fn the_age_of_a_service_is_read() {
    let created = |time: Value| {
        let metadata = json!({ "namespace": "ns", "name": "web", "creationTimestamp": time });
        let object = json!({ "metadata": metadata, "spec": { "clusterIP": "10.0.0.1" } });
        let object = decode_service(object.to_string().as_bytes()).expect("decodes");
        (object.payload.created, faults(&object))
    };
    assert_eq!(created(json!("1970-01-01T00:01:00Z")), (60, String::new()));
    assert_eq!(created(Value::Null), (UNKNOWN_AGE, String::new()));
    for bad in [json!("yesterday"), json!(7), json!("1969-12-31T23:59:59Z"), json!("2106-02-08T00:00:00Z")] {
        let (age, reported) = created(bad.clone());
        assert_eq!(age, UNKNOWN_AGE, "{bad}");
        assert!(reported.starts_with("metadata.creationTimestamp: "), "{bad}: {reported}");
    }
}
