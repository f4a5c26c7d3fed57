use portolan_schema::json::{Object, Value, json};

use super::plan::*;

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("{other}"),
    }
}

fn endpoints(subsets: &Value) -> Object {
    object(json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}},
        "subsets": subsets,
    }))
}

fn addresses(range: std::ops::Range<usize>) -> Vec<Value> {
    range.map(|number| json!({"ip": format!("10.1.{}.{}", number / 250, number % 250 + 1)})).collect()
}

/// Returns the slices after these writes.
fn written(mut slices: Vec<Object>, writes: Vec<Write>) -> Vec<Object> {
    let name = |slice: &Object| slice["metadata"]["name"].as_str().unwrap().to_owned();
    for write in writes {
        match write {
            Write::Create(new) => {
                assert!(!slices.iter().any(|it| name(it) == name(&new)), "names differ");
                slices.push(new);
            }
            Write::Update(old, new) => *slices.iter_mut().find(|it| name(it) == old).unwrap() = new,
            Write::Delete(old) => slices.retain(|it| name(it) != old),
        }
    }
    slices
}

fn sync(slices: Vec<Object>, endpoints: &Object) -> (Vec<Object>, usize) {
    let writes = Wanted::of(endpoints).writes(endpoints, &slices);
    let count = writes.len();
    (written(slices, writes), count)
}

fn mirrored(slices: &[Object]) -> Vec<String> {
    let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().unwrap());
    let mut addresses: Vec<String> =
        endpoints.map(|it| it["addresses"][0].as_str().unwrap().to_owned()).collect();
    addresses.sort();
    addresses
}

#[test]
fn families_and_ports_have_slices_of_their_own() {
    let endpoints = endpoints(&json!([
        {"addresses": [{"ip": "10.1.0.1", "nodeName": "n1"}, {"ip": "fd00::1"}],
         "notReadyAddresses": [{"ip": "10.1.0.2", "hostname": "h"}], "ports": [{"port": 80}]},
        {"addresses": [{"ip": "10.1.0.3"}], "ports": [{"port": 80, "protocol": "TCP"}]},
        {"addresses": [{"ip": "10.1.0.3"}, {"ip": "not an address"}, {"ip": "127.0.0.1"}],
         "ports": [{"name": "m", "port": 81, "protocol": "UDP", "appProtocol": "x"}]},
    ]));
    assert_eq!(Wanted::of(&endpoints).invalid, 2);
    let (slices, count) = sync(Vec::new(), &endpoints);
    assert_eq!((slices.len(), count), (3, 3));
    let brief: Vec<Value> = slices
        .iter()
        .map(|it| json!([it["addressType"], it["ports"], mirrored(std::slice::from_ref(it))]))
        .collect();
    let plain = json!([{"name": "", "port": 80, "protocol": "TCP"}]);
    assert!(brief.contains(&json!(["IPv4", plain, ["10.1.0.1", "10.1.0.2", "10.1.0.3"]])), "{brief:?}");
    assert!(brief.contains(&json!(["IPv6", plain, ["fd00::1"]])), "{brief:?}");
    let named = json!([{"name": "m", "port": 81, "protocol": "UDP", "appProtocol": "x"}]);
    assert!(brief.contains(&json!(["IPv4", named, ["10.1.0.3"]])), "{brief:?}");
    let metadata = &slices[0]["metadata"];
    assert_eq!(metadata["annotations"], json!({"a": "b"}));
    assert_eq!(
        metadata["labels"],
        json!({"app": "web", "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io"})
    );
    assert_eq!(metadata["ownerReferences"][0]["uid"], "u1");
    let all: Vec<&Value> = slices.iter().flat_map(|it| it["endpoints"].as_array().unwrap()).collect();
    let of = |ip: &str| all.iter().find(|it| it["addresses"][0] == ip).unwrap();
    assert_eq!(of("10.1.0.1")["nodeName"], "n1");
    assert_eq!(of("10.1.0.2")["hostname"], "h");
    assert_eq!(
        (&of("10.1.0.1")["conditions"], &of("10.1.0.2")["conditions"]),
        (&json!({"ready": true}), &json!({"ready": false}))
    );
    assert_eq!(sync(slices, &endpoints).1, 0, "nothing to do the second time");
}

#[test]
fn a_subset_gives_a_thousand_addresses() {
    let endpoints =
        endpoints(&json!([{"addresses": addresses(0..1003)}, {"addresses": addresses(2000..2010)}]));
    assert_eq!(Wanted::of(&endpoints).surplus, 3);
    let (slices, _) = sync(Vec::new(), &endpoints);
    let mut sizes: Vec<usize> = slices.iter().map(|it| it["endpoints"].as_array().unwrap().len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [10, 1000]);
}

#[test]
fn changes_touch_the_slices_they_must() {
    let of = |first: Vec<Value>, second: Vec<Value>| {
        endpoints(&json!([{"addresses": first}, {"addresses": second}]))
    };
    let (slices, _) = sync(Vec::new(), &of(addresses(0..1000), addresses(2000..2010)));
    let full = slices.iter().find(|it| it["endpoints"].as_array().unwrap().len() == 1000).unwrap().clone();
    let (slices, count) = sync(slices, &of(addresses(0..1000), addresses(2000..2015)));
    assert_eq!(count, 1, "new ones go where there is room");
    assert!(slices.contains(&full));
    let (slices, count) = sync(slices, &of(addresses(0..990), addresses(2000..2015)));
    assert_eq!((count, mirrored(&slices).len()), (1, 1005), "those that go leave the rest in place");
    let (slices, count) = sync(slices, &of(addresses(1..990), addresses(2000..2016)));
    assert_eq!((count, mirrored(&slices).len()), (1, 1005), "a slice that is written takes the new ones");
    let (slices, count) = sync(slices, &of(Vec::new(), Vec::new()));
    assert_eq!((count, slices.len()), (2, 0));
}

#[test]
fn doubles_and_slices_of_other_ports_go() {
    let endpoints = endpoints(&json!([{"addresses": addresses(0..3), "ports": [{"port": 80}]}]));
    let (slices, _) = sync(Vec::new(), &endpoints);
    let mut double = slices[0].clone();
    double["metadata"]["name"] = "web-double".into();
    let mut other = double.clone();
    other["metadata"]["name"] = "web-other".into();
    other["ports"][0]["port"] = 81.into();
    let (left, count) = sync(vec![slices[0].clone(), double, other], &endpoints);
    assert_eq!((left, count), (slices, 2));
}

#[test]
fn endpoints_and_ports_that_are_all_replaced_take_over_the_slice() {
    let of = |addresses: Vec<Value>, port: u16| {
        endpoints(&json!([{"addresses": addresses, "ports": [{"port": port}]}]))
    };
    let (slices, _) = sync(Vec::new(), &of(addresses(0..2), 80));
    for (addresses, port) in [(addresses(2..4), 80), (addresses(2..4), 81), (addresses(0..2), 82)] {
        let wanted = of(addresses, port);
        let writes = Wanted::of(&wanted).writes(&wanted, &slices);
        assert!(matches!(writes.as_slice(), [Write::Update(..)]), "{writes:?}");
        let (left, _) = sync(slices.clone(), &wanted);
        assert_eq!(left.first().map(|it| &it["ports"][0]["port"]), Some(&json!(port)));
        assert_eq!(sync(left, &wanted).1, 0, "nothing to do the second time");
    }
}

#[test]
fn deletions_come_last() {
    let (slices, _) = sync(Vec::new(), &endpoints(&json!([{"addresses": addresses(0..2)}])));
    let wanted = endpoints(&json!([{"addresses": [{"ip": "fd00::1"}]}]));
    let writes = Wanted::of(&wanted).writes(&wanted, &slices);
    assert!(matches!(writes.as_slice(), [Write::Create(_), Write::Delete(_)]), "{writes:?}");
}

#[test]
fn labels_that_change_are_copied_and_lost_ones_put_back() {
    let mut endpoints = endpoints(&json!([{"addresses": addresses(0..3)}]));
    let (slices, _) = sync(Vec::new(), &endpoints);
    endpoints["metadata"]["labels"] = json!({"app": "new"});
    let (mut slices, count) = sync(slices, &endpoints);
    assert_eq!((count, &slices[0]["metadata"]["labels"]["app"]), (1, &json!("new")));
    slices[0]["metadata"]["labels"]["app"] = "changed by hand".into();
    let (slices, count) = sync(slices, &endpoints);
    assert_eq!((count, &slices[0]["metadata"]["labels"]["app"]), (1, &json!("new")));
}

#[test]
fn which_endpoints_are_mirrored() {
    let service = |selector: Value| object(json!({"spec": {"selector": selector}}));
    let plain = endpoints(&json!([]));
    let with = |map: &str, key: &str, value: &str| {
        let mut endpoints = plain.clone();
        endpoints["metadata"][map][key] = value.into();
        endpoints
    };
    let skip = "endpointslice.kubernetes.io/skip-mirror";
    let none = service(json!(null));
    assert!(is_mirrored(&plain, Some(&none)));
    assert!(is_mirrored(&with("labels", skip, "false"), Some(&none)));
    assert!(!is_mirrored(&with("labels", skip, "true"), Some(&none)));
    assert!(!is_mirrored(
        &with("annotations", "control-plane.alpha.kubernetes.io/leader", "{}"),
        Some(&none)
    ));
    assert!(!is_mirrored(&plain, Some(&service(json!({"app": "web"})))));
    assert!(!is_mirrored(&plain, None));
}
