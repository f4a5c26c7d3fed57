//! Faults of objects are reported once and counted while they exist.

use super::*;

#[test]
fn faults_are_reported_once() {
    let bad =
        || service("web", json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }, { "port": 0 }] }));
    let mut catalog = Catalog::new("n1");
    assert_eq!(catalog.apply(bad()).faults.len(), 1);
    assert_eq!(catalog.apply(bad()), Applied::default());
    let ports = json!([{ "port": 80 }, { "port": 70000 }]);
    let applied = catalog.apply(service("web", json!({ "clusterIP": "10.96.0.1", "ports": ports })));
    assert_eq!((applied.changed, applied.faults.len()), (false, 1), "a new fault, the same meaning");
}

#[test]
fn an_unusable_object_is_reported_once_and_counted_while_it_exists() {
    let mut catalog = Catalog::new("n1");
    let left_out = |address_type: &str| {
        let Event::EndpointSlice(mut object) = slice("x-1", "x", "TCP", json!([ready("10.0.0.1")])) else {
            panic!("a slice")
        };
        object.payload.family = None;
        object.faults = vec![crate::object::Fault::new("addressType", address_type)];
        Event::EndpointSlice(object)
    };
    let list = |catalog: &mut Catalog, slice: Option<Event>| {
        catalog.apply(Event::ListStart(Kind::EndpointSlice));
        let reported = slice.map_or(0, |slice| catalog.apply(slice).faults.len());
        catalog.apply(Event::ListEnd(Kind::EndpointSlice));
        (reported, catalog.faulty_objects(Kind::EndpointSlice))
    };
    assert_eq!(list(&mut catalog, Some(left_out("FQDN"))), (1, 1));
    assert_eq!(list(&mut catalog, Some(left_out("FQDN"))), (0, 1), "unchanged faults are not reported again");
    assert_eq!(list(&mut catalog, Some(left_out("other"))), (1, 1));
    assert_eq!(catalog.faulty_objects(Kind::Service), 0);
    assert_eq!(list(&mut catalog, None), (0, 0), "the list did not show it");
    assert_eq!(list(&mut catalog, Some(left_out("FQDN"))), (1, 1));
    let mended = slice("x-1", "x", "TCP", json!([ready("10.0.0.1")]));
    assert_eq!(list(&mut catalog, Some(mended)), (0, 0));
    catalog.apply(left_out("FQDN"));
    catalog.apply(Event::EndpointSliceDeleted(key("x-1")));
    assert_eq!(catalog.faulty_objects(Kind::EndpointSlice), 0);
}

/// This node with the given address.
fn node_at(address: &str) -> Event {
    let status = json!({ "addresses": [{ "type": "InternalIP", "address": address }] });
    let object = json!({ "metadata": { "name": "n1" }, "status": status });
    Event::Node(decode_node(object.to_string().as_bytes()).expect("decodes"))
}

#[test]
fn new_faults_of_an_unchanged_node_are_reported() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(node(""));
    let mut tell = |event| {
        let Applied { changed, faults } = catalog.apply(event);
        (changed, faults.len(), catalog.faulty_objects(Kind::Node))
    };
    assert_eq!(tell(node_at("10.0.0.300")), (false, 1, 1));
    assert_eq!(tell(node_at("10.0.0.300")), (false, 0, 1), "unchanged faults are not reported again");
    assert_eq!(tell(node_at("here")), (false, 1, 1), "another fault, the same meaning");
    assert_eq!(tell(node("")), (false, 0, 0), "mended");
}
