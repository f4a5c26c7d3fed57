use portolan_schema::json::json;
use portolan_store::Draft;

use super::*;

fn service(labels: &portolan_schema::json::Value, cluster_ip: &str) -> StoredObject {
    let value = json!({
        "metadata": {"name": "web", "namespace": "shop", "labels": labels},
        "spec": {"clusterIP": cluster_ip, "type": "ClusterIP"},
    });
    Draft::new(Resource::Service, value.as_object().unwrap()).at(1)
}

fn selects(labels: &str, fields: &str) -> bool {
    let object = service(&json!({"app": "web", "tier": "", "size": "10"}), "10.0.0.1");
    Selector::parse(Resource::Service, labels, fields).unwrap().matches(&object)
}

#[test]
fn label_requirements() {
    for yes in [
        "",
        "app",
        "app=web",
        "app==web",
        "app = web",
        "tier=",
        "!other",
        "app!=db",
        "other!=x",
        "app in (db, web)",
        "app notin (db),tier in ()",
        "other notin (x)",
        "size>9,size<11",
        "app,tier",
    ] {
        assert!(selects(yes, ""), "{yes}");
    }
    for no in [
        "other",
        "!app",
        "app=db",
        "app!=web",
        "app notin (web)",
        "other in (x)",
        "size>10",
        "app>1",
        "app,other",
    ] {
        assert!(!selects(no, ""), "{no}");
    }
}

#[test]
fn field_requirements() {
    for yes in [
        "metadata.name=web",
        "metadata.namespace==shop",
        "spec.clusterIP!=None",
        "spec.clusterIP=10.0.0.1,spec.type=ClusterIP",
    ] {
        assert!(selects("", yes), "{yes}");
    }
    for no in ["metadata.name!=web", "metadata.namespace=x", "spec.clusterIP=", r"metadata.name=we\,b"] {
        assert!(!selects("", no), "{no}");
    }
}

#[test]
fn an_unset_field_reads_as_empty() {
    let value = json!({"metadata": {"name": "x", "namespace": "y"}, "spec": {"type": "ExternalName"}});
    let object = Draft::new(Resource::Service, value.as_object().unwrap()).at(1);
    let selector = |text| Selector::parse(Resource::Service, "", text).unwrap();
    assert!(selector("spec.clusterIP!=None").matches(&object));
    assert!(selector("spec.clusterIP=").matches(&object));
}

#[test]
fn malformed_selectors_are_refused() {
    for labels in ["a b", "a in b", "a in (b", "=x", "a=b/c", ",", "a,", "a>x", "-a"] {
        assert!(Selector::parse(Resource::Service, labels, "").is_err(), "{labels}");
    }
    for fields in ["metadata.name", "spec.ports=1", "metadata.name=a=b", r"metadata.name=\x"] {
        assert!(Selector::parse(Resource::Service, "", fields).is_err(), "{fields}");
    }
    assert!(Selector::parse(Resource::Node, "", "metadata.namespace=x").is_err());
}

#[test]
fn a_name_and_a_namespace_are_a_key() {
    let key = |resource, fields, namespace| {
        Selector::parse(resource, "app=x", fields).unwrap().key(resource, namespace)
    };
    let of_service = |fields, namespace| key(Resource::Service, fields, namespace);
    assert_eq!(of_service("metadata.name=web", Some("shop")).as_deref(), Some("shop/web"));
    assert_eq!(of_service("metadata.namespace=shop,metadata.name=web", None).as_deref(), Some("shop/web"));
    // The namespace of the URL comes first. A contradicting selector fails when the object is matched.
    assert_eq!(
        of_service("metadata.namespace=x,metadata.name=web", Some("shop")).as_deref(),
        Some("shop/web")
    );
    assert_eq!(of_service("metadata.name=web", None), None);
    assert_eq!(of_service("metadata.name!=web,spec.type=ClusterIP", Some("shop")), None);
    assert_eq!(key(Resource::Node, "metadata.name=host1", None).as_deref(), Some("host1"));
}
