use clap::Parser;
use serde_json::json;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: VariableOptions,
}

fn options(arguments: &[&str]) -> VariableOptions {
    Line::try_parse_from([&["env"], arguments].concat()).unwrap().options
}

fn service(namespace: &str, name: &str, spec: &serde_json::Value) -> Service {
    Service::try_from(&json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})).unwrap()
}

fn cluster() -> Vec<Service> {
    let one = |ip: &str| json!({"clusterIP": ip, "ports": [{"port": 80}]});
    vec![
        // The example of Kubernetes' documentation.
        service("default", "redis-primary", &json!({"clusterIP": "10.0.0.11", "ports": [{"port": 6379}]})),
        service(
            "default",
            "kubernetes",
            &json!({"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}),
        ),
        service("default", "headless", &json!({"clusterIP": "None", "ports": [{"port": 80}]})),
        service("default", "outside", &json!({"type": "ExternalName", "externalName": "a.example"})),
        service(
            "shop",
            "web",
            &json!({"clusterIP": "fd00::1", "ports": [
            {"name": "http-alt", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}]}),
        ),
        service("own", "kubernetes", &one("10.0.0.99")),
        service("digits", "9p", &one("10.0.0.98")),
    ]
}

#[test]
fn the_example_of_the_documentation() {
    let services = cluster();
    let (text, left_out) = options(&[]).text(&services[..1]);
    insta::assert_snapshot!(text, @r"
    REDIS_PRIMARY_SERVICE_HOST='10.0.0.11'
    REDIS_PRIMARY_SERVICE_PORT='6379'
    REDIS_PRIMARY_PORT='tcp://10.0.0.11:6379'
    REDIS_PRIMARY_PORT_6379_TCP='tcp://10.0.0.11:6379'
    REDIS_PRIMARY_PORT_6379_TCP_PROTO='tcp'
    REDIS_PRIMARY_PORT_6379_TCP_PORT='6379'
    REDIS_PRIMARY_PORT_6379_TCP_ADDR='10.0.0.11'
    ");
    assert!(left_out.is_empty());
}

#[test]
fn named_ports_both_protocols_and_ipv6_for_systemd() {
    let (text, _) = options(&["-n", "shop", "--format", "systemd"]).text(&cluster());
    insta::assert_snapshot!(text, @r#"
    KUBERNETES_SERVICE_HOST="10.0.0.1"
    KUBERNETES_SERVICE_PORT="443"
    KUBERNETES_SERVICE_PORT_HTTPS="443"
    KUBERNETES_PORT="tcp://10.0.0.1:443"
    KUBERNETES_PORT_443_TCP="tcp://10.0.0.1:443"
    KUBERNETES_PORT_443_TCP_PROTO="tcp"
    KUBERNETES_PORT_443_TCP_PORT="443"
    KUBERNETES_PORT_443_TCP_ADDR="10.0.0.1"
    WEB_SERVICE_HOST="fd00::1"
    WEB_SERVICE_PORT="8080"
    WEB_SERVICE_PORT_HTTP_ALT="8080"
    WEB_SERVICE_PORT_DNS="53"
    WEB_PORT="tcp://[fd00::1]:8080"
    WEB_PORT_8080_TCP="tcp://[fd00::1]:8080"
    WEB_PORT_8080_TCP_PROTO="tcp"
    WEB_PORT_8080_TCP_PORT="8080"
    WEB_PORT_8080_TCP_ADDR="fd00::1"
    WEB_PORT_53_UDP="udp://[fd00::1]:53"
    WEB_PORT_53_UDP_PROTO="udp"
    WEB_PORT_53_UDP_PORT="53"
    WEB_PORT_53_UDP_ADDR="fd00::1"
    "#);
}

#[test]
fn services_without_a_cluster_ip_have_no_variables() {
    let services = cluster();
    let names: Vec<String> = variables(&services, "default").into_iter().map(|one| one.name).collect();
    assert!(names.iter().all(|name| name.starts_with("KUBERNETES_") || name.starts_with("REDIS_PRIMARY_")));
    assert!(variables(&services[2..4], "default").is_empty());
}

#[test]
fn a_namespaces_own_service_takes_the_place_of_the_api_servers() {
    let mut services = cluster();
    for _ in 0..2 {
        let found = variables(&services, "own");
        assert_eq!(found.first().map(|one| one.value.as_str()), Some("10.0.0.99"));
        assert_eq!(found.iter().filter(|one| one.name == "KUBERNETES_SERVICE_HOST").count(), 1);
        services.reverse();
    }
}

#[test]
fn lines_for_a_shell_may_be_exported() {
    let (text, _) = options(&["--export"]).text(&cluster());
    assert!(!text.is_empty() && text.lines().all(|line| line.starts_with("export ")));
}

#[test]
fn names_that_begin_with_a_digit_are_left_out() {
    let services = cluster();
    let (text, left_out) = options(&["-n", "digits"]).text(&services);
    assert!(!text.contains("9P"));
    assert_eq!(left_out.len(), variables(&services[6..], "digits").len());
}
