//! Names of Services, asked by the resolvers of two C libraries, dig and `portolan env`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use portolan_testkit::{PortolanProcess, eventually};
use serde_json::{Value, json};

use crate::common::{at, http};
use crate::site::{BINARY, Backing, PATIENCE, Site, tool};

/// Addresses of the DNS server, on the loopback device of the namespace.
const ADDRESSES: &str = "127.0.0.53:53,[::1]:53";
/// More endpoints than fit into a datagram, so that the resolver asks again over TCP.
const MANY: usize = 120;

fn create(site: &Site, path: &str, object: &Value) {
    let (code, body) = site.ask(0, "POST", path, &object.to_string()).unwrap();
    assert_eq!(code, 201, "{body}");
}

fn create_service(site: &Site, name: &str, spec: &Value) {
    let object = json!({"metadata": {"name": name}, "spec": spec});
    create(site, "/api/v1/namespaces/shop/services", &object);
}

fn create_slice(site: &Site, name: &str, service: &str, kind: &str, endpoints: &[Value]) {
    let object = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": kind, "endpoints": endpoints, "ports": [{"name": "sql", "port": 5432}]});
    create(site, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", &object);
}

fn create_objects(site: &Site) {
    create(site, "/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    create_service(
        site,
        "web",
        &json!({"clusterIPs": ["10.96.0.80", "fd00:96::80"], "clusterIP": "10.96.0.80",
            "ipFamilyPolicy": "RequireDualStack", "ports": [{"name": "http", "port": 80}]}),
    );
    create_service(site, "v4", &json!({"clusterIP": "10.96.0.44", "ports": [{"port": 80}]}));
    create_service(site, "db", &json!({"clusterIP": "None", "ports": [{"name": "sql", "port": 5432}]}));
    create_service(
        site,
        "alias",
        &json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"}),
    );
    let mut endpoints: Vec<Value> =
        (1..MANY).map(|last| json!({"addresses": [format!("192.0.2.{last}")]})).collect();
    endpoints.push(json!({"addresses": ["192.0.2.200"], "hostname": "db-0"}));
    create_slice(site, "db-1", "db", "IPv4", &endpoints);
}

/// Runs a program of a client, whose resolver is configured as that of a pod in the namespace `shop`.
fn as_client(site: &Site, program: &Path, arguments: &[&str]) -> Output {
    let at = |name: &str| site.folder().join(name);
    let search = "search shop.svc.cluster.local svc.cluster.local cluster.local";
    // A busy machine may need longer than the resolvers wait for an answer otherwise.
    let options = "options ndots:5 timeout:30 attempts:5";
    fs::write(at("resolv.conf"), format!("nameserver 127.0.0.53\n{search}\n{options}\n")).unwrap();
    fs::write(at("nsswitch.conf"), "hosts: dns\n").unwrap();
    let script = "mount --bind \"$FOLDER/resolv.conf\" /etc/resolv.conf && \
                  mount --bind \"$FOLDER/nsswitch.conf\" /etc/nsswitch.conf && exec \"$0\" \"$@\"";
    let mut command = site.namespace.command("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .args([program])
        .args(arguments)
        .env("FOLDER", site.folder());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "this test needs root: {errors}");
    output
}

/// Asks the C library's resolver. Returns the first words of getent's lines, or its exit code.
fn getent(site: &Site, arguments: &[&str]) -> Result<BTreeSet<String>, Option<i32>> {
    let output = as_client(site, "getent".as_ref(), arguments);
    if !output.status.success() {
        return Err(output.status.code());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    Ok(text.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect())
}

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|&one| one.to_owned()).collect()
}

fn site() -> Site {
    let arguments = ["--dns-listen", ADDRESSES, "--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112"];
    let site = Site::start(Backing::File, &arguments).unwrap();
    // getent asks for addresses of a family only if the host has one that is not of loopback (AI_ADDRCONFIG). Every kernel
    // has bridges.
    let addresses = "addr add 198.51.100.9/32 dev eth0\naddr add 2001:db8:9::9/128 dev eth0 nodad\n";
    site.namespace.ip(&format!("link add eth0 type bridge\nlink set eth0 up\n{addresses}")).unwrap();
    site
}

#[test]
fn the_c_librarys_resolver_finds_services() {
    let site = site();
    create_objects(&site);
    let ask = |arguments: &[&str]| getent(&site, arguments);
    eventually(PATIENCE, "all endpoints", || ask(&["ahostsv4", "db"]).is_ok_and(|all| all.len() == MANY))
        .unwrap();
    assert_eq!(ask(&["ahostsv4", "web"]), Ok(set(&["10.96.0.80"])));
    assert_eq!(ask(&["ahostsv6", "web.shop"]), Ok(set(&["fd00:96::80"])));
    assert_eq!(ask(&["ahostsv4", "alias.shop.svc.cluster.local"]), Ok(set(&["10.96.0.80"])));
    assert_eq!(ask(&["ahostsv4", "db-0.db"]), Ok(set(&["192.0.2.200"])));
    assert_eq!(ask(&["ahostsv4", "192-0-2-7.db"]), Ok(set(&["192.0.2.7"])));
    assert_eq!(ask(&["hosts", "10.96.0.80"]), Ok(set(&["10.96.0.80"])));
    // 2: the key does not exist.
    assert_eq!(ask(&["ahostsv4", "none"]), Err(Some(2)));
    // An endpoint that is not ready has no name, and a deleted Service neither.
    let slice = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/db-1";
    assert_eq!(site.ask(0, "DELETE", slice, "").unwrap().0, 200);
    eventually(PATIENCE, "no endpoint", || ask(&["ahostsv4", "db"]) == Err(Some(2))).unwrap();
    assert_eq!(site.ask(0, "DELETE", "/api/v1/namespaces/shop/services/web", "").unwrap().0, 200);
    eventually(PATIENCE, "no Service", || ask(&["ahostsv4", "web"]) == Err(Some(2))).unwrap();
    // Only addresses that pods cannot reach are listened on.
    let service = "/api/v1/namespaces/kube-system/services/kube-dns";
    assert_eq!(site.ask(0, "GET", service, "").unwrap().0, 404);
    // Names are the same after a crash.
    site.crash(0);
    site.wait_for(0);
    eventually(PATIENCE, "names", || ask(&["ahostsv4", "v4"]) == Ok(set(&["10.96.0.44"]))).unwrap();
}

/// A program that prints the addresses of a name of one family, or `error` and its number.
const RESOLVE: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>
int main(int count, char **arguments) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = 0;
    char text[64];
    if (count != 3) return 1;
    hints.ai_family = arguments[1][0] == '4' ? AF_INET : arguments[1][0] == '6' ? AF_INET6 : AF_UNSPEC;
    int error = getaddrinfo(arguments[2], 0, &hints, &found);
    if (error) return printf("error %d\n", error) < 0;
    for (; found; found = found->ai_next) {
        getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST);
        puts(text);
    }
    return 0;
}
"#;

/// musl asks for both families at once, and takes NXDOMAIN of one of them as the answer for both.
#[test]
fn musls_resolver_finds_services() {
    let Some(compiler) = tool("musl-gcc") else { return };
    let site = site();
    create_objects(&site);
    let (source, program) = (site.folder().join("resolve.c"), site.folder().join("resolve"));
    fs::write(&source, RESOLVE).unwrap();
    let output = Command::new(compiler).arg("-static").arg("-o").args([&program, &source]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let ask = |family: &str, name: &str| {
        let output = as_client(&site, &program, &[family, name]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect::<BTreeSet<String>>()
    };
    eventually(PATIENCE, "all endpoints", || ask("4", "db-0.db") == set(&["192.0.2.200"])).unwrap();
    assert_eq!(ask("any", "web"), set(&["10.96.0.80", "fd00:96::80"]));
    assert_eq!(ask("4", "web.shop"), set(&["10.96.0.80"]));
    assert_eq!(ask("6", "web.shop.svc.cluster.local"), set(&["fd00:96::80"]));
    assert_eq!(ask("any", "alias"), set(&["10.96.0.80", "fd00:96::80"]));
    // The Service has no IPv6 address. That is no reason to go on with the search list, or to fail.
    assert_eq!(ask("any", "v4"), set(&["10.96.0.44"]));
    let is_error = |answer: BTreeSet<String>| answer.iter().all(|line| line.starts_with("error "));
    assert!(is_error(ask("6", "v4")));
    // -2: the name does not exist. To ask again later (-3) would not help, but is the answer to names of other domains.
    assert_eq!(ask("any", "none.shop.svc.cluster.local."), set(&["error -2"]));
    assert_eq!(ask("any", "none"), set(&["error -3"]), "at the end of the search list");
    let many = ask("4", "db");
    assert!(many.len() > 20, "the endpoints that fit into a datagram: {many:?}");
}

/// Asks dig. Returns the status and the records of the answer, sorted.
fn dig(site: &Site, program: &Path, arguments: &[&str]) -> (String, Vec<String>) {
    let mut command = site.namespace.command(program);
    command.args(["+noall", "+comments", "+answer", "+time=100", "+tries=1"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "dig {arguments:?}: {text}");
    let status = text.split_once("status: ").and_then(|(_, rest)| rest.split(',').next()).unwrap_or_default();
    let records = text.lines().filter(|line| !line.starts_with(';') && !line.is_empty());
    let record = |line: &str| line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
    let mut records: Vec<String> = records.map(record).collect();
    records.sort();
    (status.to_owned(), records)
}

#[test]
fn dig_gets_records_and_the_right_errors() {
    let Some(program) = tool("dig") else { return };
    let site = site();
    create_objects(&site);
    let web = "web.shop.svc.cluster.local.";
    let ask = |arguments: &[&str]| dig(&site, &program, arguments);
    let ok = |records: &[&str]| {
        ("NOERROR".to_owned(), records.iter().map(|&it| it.to_owned()).collect::<Vec<_>>())
    };
    let first = || ask(&["@127.0.0.53", "db-0.db.shop.svc.cluster.local.", "A"]) == ok(&["A 192.0.2.200"]);
    eventually(PATIENCE, "all objects", first).unwrap();
    // Until then, no name is known not to exist.
    eventually(PATIENCE, "names in sync", || site.ask(0, "GET", "/readyz", "").unwrap().0 == 200).unwrap();
    for transport in ["+notcp", "+tcp"] {
        for server in ["@127.0.0.53", "@::1"] {
            let ask = |name: &str, kind: &str| ask(&[server, transport, name, kind]);
            assert_eq!(ask(web, "A"), ok(&["A 10.96.0.80"]));
            assert_eq!(ask(web, "AAAA"), ok(&["AAAA fd00:96::80"]));
            assert_eq!(
                ask(&format!("_http._tcp.{web}"), "SRV"),
                ok(&["SRV 0 100 80 web.shop.svc.cluster.local."])
            );
            let alias = ["A 10.96.0.80", "CNAME web.shop.svc.cluster.local."];
            assert_eq!(ask("alias.shop.svc.cluster.local.", "A"), ok(&alias));
            assert_eq!(ask("80.0.96.10.in-addr.arpa.", "PTR"), ok(&["PTR web.shop.svc.cluster.local."]));
            let db = ["PTR db-0.db.shop.svc.cluster.local."];
            assert_eq!(ask("200.2.0.192.in-addr.arpa.", "PTR"), ok(&db));
            // No such name, a name without such a record, and a name of another domain.
            assert_eq!(ask("none.shop.svc.cluster.local.", "A").0, "NXDOMAIN");
            assert_eq!(ask("v4.shop.svc.cluster.local.", "AAAA"), ok(&[]));
            assert_eq!(ask("shop.svc.cluster.local.", "A"), ok(&[]));
            assert_eq!(ask("example.org.", "A").0, "REFUSED");
        }
    }
    let (status, endpoints) = ask(&["@127.0.0.53", "db.shop.svc.cluster.local.", "A"]);
    assert_eq!((status.as_str(), endpoints.len()), ("NOERROR", MANY), "asked again over TCP");

    let (code, page) = site.ask(0, "GET", "/metrics", "").unwrap();
    assert_eq!(code, 200);
    for sample in [
        "portolan_dns_answers_total{transport=\"tcp\",type=\"SRV\",code=\"NOERROR\"} 2",
        "portolan_dns_answers_total{transport=\"udp\",type=\"A\",code=\"REFUSED\"} 2",
        "portolan_dns_truncated_total 1",
        "portolan_dns_in_sync 1",
    ] {
        assert!(page.lines().any(|line| line == sample), "{sample} is not in:\n{page}");
    }
    let (code, text) = site.ask(0, "GET", "/readyz?verbose", "").unwrap();
    assert!(code == 200 && text.contains("[+]dns ok"), "{code} {text}");
}

#[test]
fn names_of_other_domains_are_asked_of_the_servers_of_resolv_conf() {
    let Some(program) = tool("dig") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    // It names the asking server, too, as on a host whose programs use this one.
    fs::write(&file, "nameserver 127.0.0.53\nnameserver 127.0.0.54\n").unwrap();
    let arguments = ["--dns-listen", "127.0.0.53:53", "--dns-forward", file.to_str().unwrap()];
    let site = Site::start(Backing::File, &arguments).unwrap();
    create(&site, "/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    let there = "kubernetes.default.svc.example.org";
    create_service(&site, "alias", &json!({"type": "ExternalName", "externalName": there}));
    let other = [
        "serve",
        "--listen=127.0.0.1:8101",
        "--insecure-http",
        "--in-memory",
        "--service-cluster-ip-range=10.97.0.0/16",
        "--dns-listen=127.0.0.54:53",
        "--cluster-domain=example.org",
    ];
    let mut other = PortolanProcess::start(&site.namespace, BINARY.as_ref(), &other).unwrap();
    // Until it is ready, no name is known not to exist.
    let is_ready = || {
        http::get(&site.namespace, at("127.0.0.1:8101"), "/readyz").is_some_and(|answer| answer.status == 200)
    };
    other.wait_until(PATIENCE, "the other server is ready", is_ready).unwrap();
    let ask = |transport: &str, name: &str| dig(&site, &program, &["@127.0.0.53", transport, name, "A"]);
    // The server fails a question that is not answered within two seconds.
    let answers = |transport: &str, name: &str, status: &str, records: &[&str]| {
        let wanted = (status.to_owned(), records.iter().map(|&it| it.to_owned()).collect::<Vec<_>>());
        let mut last = (String::new(), Vec::new());
        let outcome = eventually(PATIENCE, name, || {
            last = ask(transport, name);
            last == wanted
        });
        assert!(outcome.is_ok(), "{name} {transport}: {last:?}");
    };
    let there = format!("{there}.");
    for transport in ["+notcp", "+tcp"] {
        answers(transport, &there, "NOERROR", &["A 10.97.0.1"]);
        answers(transport, "none.default.svc.example.org.", "NXDOMAIN", &[]);
        // No server has this one.
        answers(transport, "example.net.", "REFUSED", &[]);
        let alias = ["A 10.97.0.1", "CNAME kubernetes.default.svc.example.org."];
        answers(transport, "alias.shop.svc.cluster.local.", "NOERROR", &alias);
    }
    // Without the other server, its names fail, and own names are answered.
    assert!(other.terminate(PATIENCE).unwrap().success(), "{}", other.output());
    assert_eq!(ask("+notcp", &there).0, "SERVFAIL");
    assert_eq!(ask("+notcp", "kubernetes.default.svc.cluster.local.").0, "NOERROR");
}

#[test]
fn without_dns_there_are_no_metrics_and_no_check_of_it() {
    let site = Site::start(Backing::File, &[]).unwrap();
    let (_, page) = site.ask(0, "GET", "/metrics", "").unwrap();
    assert!(!page.contains("portolan_dns_") && !page.contains("portolan_health_check_"), "{page}");
    let (_, text) = site.ask(0, "GET", "/readyz?verbose", "").unwrap();
    assert!(!text.contains("dns"), "{text}");
}

#[test]
fn variables_of_services_work_in_a_shell() {
    let site = site();
    create_objects(&site);
    let kubeconfig = site.folder().join("admin.conf");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": format!("http://{}", site.addresses()[0])}}],
        "users": [{"name": "a", "user": {}}]});
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let run = |script: &str| {
        let mut command = site.namespace.command("sh");
        command.args(["-c", script]).env("PROGRAM", BINARY).env("FOLDER", site.folder());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let Output { status, stdout, stderr } = command.spawn().unwrap().wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    };
    let good = |script: &str| {
        let (code, stdout, stderr) = run(script);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{script}: {stdout}");
        stdout
    };
    let in_shell = "eval \"$($PROGRAM env --kubeconfig $FOLDER/admin.conf -n shop --export)\" && \
                    sh -c 'echo $WEB_SERVICE_HOST:$WEB_SERVICE_PORT_HTTP $KUBERNETES_SERVICE_PORT'";
    assert_eq!(good(in_shell), "10.96.0.80:80 443\n");
    // Without a kubeconfig, the file of an administrator in the data folder is used.
    let in_unit = good("$PROGRAM env --data-dir $FOLDER -n shop --format systemd");
    assert!(in_unit.lines().any(|line| line == "WEB_PORT_80_TCP=\"tcp://10.96.0.80:80\""), "{in_unit}");
    let (code, stdout, stderr) = run("$PROGRAM env --data-dir /nonexistent");
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("/nonexistent/admin.conf: give --kubeconfig"), "{stderr}");
}
