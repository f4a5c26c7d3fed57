use super::*;

/// Three minutes after [`CREATED`].
const NOW: i64 = 1_772_323_380;
const CREATED: &str = "2026-03-01T00:00:00Z";

fn cells(resource: Resource, mut object: Value) -> Vec<String> {
    object["metadata"]["name"] = "x".into();
    object["metadata"]["creationTimestamp"] = CREATED.into();
    let Value::Object(object) = object else { panic!() };
    let row = row(resource, &object, IncludeObject::None, MetaVersion::V1, NOW);
    let cells = row["cells"].as_array().unwrap();
    assert_eq!(cells.len(), column_definitions(resource).as_array().unwrap().len());
    cells.iter().map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned)).collect()
}

#[test]
fn services() {
    let ports = json!([{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP", "nodePort": 30053}]);
    for (spec, ingress, expected) in [
        (
            json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
                "ports": ports, "selector": {"b": "2", "a": "1"}}),
            json!([]),
            "x ClusterIP 10.0.0.1 <none> 80/TCP,53:30053/UDP 3m a=1,b=2",
        ),
        (
            json!({"type": "NodePort", "clusterIPs": ["10.0.0.1"], "externalIPs": ["192.0.2.2", "192.0.2.1"]}),
            json!([]),
            "x NodePort 10.0.0.1 192.0.2.2,192.0.2.1 <none> 3m <none>",
        ),
        (json!({"clusterIPs": ["None"]}), json!([]), "x ClusterIP None <none> <none> 3m <none>"),
        (
            json!({"type": "ExternalName", "externalName": "a.example"}),
            json!([]),
            "x ExternalName <none> a.example <none> 3m <none>",
        ),
        (json!({"type": "LoadBalancer"}), json!([]), "x LoadBalancer <none> <pending> <none> 3m <none>"),
        (
            json!({"type": "LoadBalancer", "externalIPs": ["192.0.2.9"]}),
            json!([{"hostname": "lb.example"}, {"ip": "192.0.2.1"}]),
            "x LoadBalancer <none> 192.0.2.1,lb.example,192.0.2.9 <none> 3m <none>",
        ),
    ] {
        let object = json!({"metadata": {}, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}});
        assert_eq!(cells(Resource::Service, object).join(" "), expected);
    }
}

#[test]
fn endpoint_slices() {
    let endpoint = |address: &str| json!({"addresses": [address]});
    let some = json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "any"}, {}],
        "endpoints": [endpoint("10.0.0.1"), endpoint("10.0.0.2")]});
    assert_eq!(cells(Resource::EndpointSlice, some)[1..4], ["IPv4", "80,any,*", "10.0.0.1,10.0.0.2"]);
    let many = json!({"addressType": "IPv6", "endpoints": (0..5).map(|it| endpoint(&format!("fd00::{it}"))).collect::<Vec<_>>()});
    assert_eq!(
        cells(Resource::EndpointSlice, many)[1..4],
        ["IPv6", "<unset>", "fd00::0,fd00::1,fd00::2 + 2 more..."]
    );
}

/// The plain table is that of Kubernetes.
#[test]
fn ready_endpoints_are_counted_with_wide_output() {
    let endpoint = |conditions: Value| json!({"addresses": ["10.0.0.1"], "conditions": conditions});
    let all = [json!({"ready": true}), json!({"ready": false, "serving": true}), json!({})].map(endpoint);
    let mixed = json!({"addressType": "IPv4", "endpoints": all.to_vec()});
    for (slice, expected) in [(mixed, "2/3"), (json!({"addressType": "IPv4"}), "0/0")] {
        assert_eq!(cells(Resource::EndpointSlice, slice)[5], expected);
    }
    let columns = column_definitions(Resource::EndpointSlice);
    let columns = columns.as_array().unwrap().iter();
    let shown = columns.map(|column| format!("{} {}", column["name"].as_str().unwrap(), column["priority"]));
    let shown: Vec<String> = shown.collect();
    assert_eq!(shown, ["Name 0", "AddressType 0", "Ports 0", "Endpoints 0", "Age 0", "Ready 1"]);
}

#[test]
fn endpoints() {
    let addresses =
        |count: u8| (1..=count).map(|it| json!({"ip": format!("10.0.0.{it}")})).collect::<Vec<_>>();
    for (subsets, expected) in [
        (json!([]), "<none>"),
        (json!([{"addresses": addresses(2)}]), "10.0.0.1,10.0.0.2"),
        (
            json!([{"addresses": addresses(2), "ports": [{"port": 80}, {"port": 81}]}]),
            "10.0.0.1:80,10.0.0.2:80,10.0.0.1:81 + 1 more...",
        ),
        (json!([{"addresses": [{"ip": "fd00::1"}], "ports": [{"port": 80}]}]), "[fd00::1]:80"),
    ] {
        let object = json!({"subsets": subsets});
        let cells = super::endpoints::cells(object.as_object().unwrap(), NOW);
        assert_eq!(cells[1], expected);
    }
}

#[test]
fn nodes() {
    let node = json!({
        "metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge"}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian", "kernelVersion": "6.1"},
        },
    });
    assert_eq!(
        cells(Resource::Node, node).join(" "),
        "x Ready,SchedulingDisabled edge,worker 3m v1.36.0 10.0.0.1 192.0.2.1 Debian 6.1 <unknown>"
    );
    let status =
        |status| cells(Resource::Node, json!({"metadata": {}, "status": {"conditions": status}}))[1].clone();
    assert_eq!(status(json!([])), "Unknown");
    assert_eq!(status(json!([{"type": "Ready", "status": "Unknown"}])), "NotReady");
}

#[test]
fn small_kinds() {
    let namespace = json!({"metadata": {}, "status": {"phase": "Active"}});
    assert_eq!(cells(Resource::Namespace, namespace), ["x", "Active", "3m"]);
    let cidr = json!({"metadata": {}, "spec": {"cidrs": ["10.96.0.0/16", "fd00::/112"]}});
    assert_eq!(cells(Resource::ServiceCidr, cidr), ["x", "10.96.0.0/16,fd00::/112", "3m"]);
    let parent =
        json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}});
    assert_eq!(cells(Resource::IpAddress, parent), ["x", "services/default/web"]);
    assert_eq!(column_definitions(Resource::IpAddress).as_array().unwrap().len(), 2);
    let lease = json!({"spec": {"holderIdentity": "me"}});
    assert_eq!(super::lease(lease.as_object().unwrap(), NOW)[1], "me");
}

#[test]
fn events_of_both_groups() {
    let new = json!({"regarding": {"kind": "Service", "name": "web", "fieldPath": "spec"}, "note": " full\n",
        "reason": "Full", "type": "Warning", "reportingController": "repair", "reportingInstance": "a",
        "eventTime": "2026-03-01T00:01:00.000000Z", "series": {"count": 3, "lastObservedTime": "2026-03-01T00:02:00.000000Z"}});
    let old = json!({"involvedObject": {"kind": "Service", "name": "web", "fieldPath": "spec"}, "message": " full\n",
        "reason": "Full", "type": "Warning", "source": {"component": "repair", "host": "a"},
        "firstTimestamp": "2026-03-01T00:01:00Z", "lastTimestamp": "2026-03-01T00:02:00Z", "count": 3});
    for event in [new, old] {
        assert_eq!(
            cells(Resource::Event, event).join("|"),
            "60s|Warning|Full|service/web|spec|repair, a|full|2m|3|x"
        );
    }
}

#[test]
fn a_row_includes_the_requested_part_of_its_object() {
    let object = json!({"kind": "Namespace", "metadata": {"name": "x"}, "spec": {}});
    let row = |include, version| {
        row(Resource::Namespace, object.as_object().unwrap(), include, version, NOW)["object"].clone()
    };
    assert_eq!(row(IncludeObject::None, MetaVersion::V1), Value::Null);
    assert_eq!(row(IncludeObject::Object, MetaVersion::V1), object);
    let partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1beta1", "metadata": {"name": "x"}});
    assert_eq!(row(IncludeObject::Metadata, MetaVersion::V1Beta1), partial);
}
