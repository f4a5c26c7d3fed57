use std::time::{Duration, SystemTime};

use portolan_serve::{Pki, Role};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};

use crate::client::{Client, SERVICES, Secure, metric, read_head, start, start_with};

const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

/// Returns the codes of a list, a watch, a create, a read of a path, and a list of a resource that only some roles
/// may read.
fn codes(client: &Client) -> [u16; 5] {
    let mut watch = client.connect().unwrap();
    client.send(&mut watch, "GET", &format!("{SLICES}?watch=true"), "");
    [
        client.get(SLICES).code,
        read_head(&mut watch).0,
        client.create("").code,
        client.get("/metrics").code,
        client.get("/api/v1/namespaces").code,
    ]
}

#[test]
fn each_role_may_do_what_it_is_for() {
    let secure = start();
    for (role, expected) in [
        // The Service's empty name is checked after the authorization.
        (Role::Admin, [200, 200, 422, 200, 200]),
        (Role::Proxy, [200, 200, 403, 403, 403]),
        (Role::ReadOnly, [200, 200, 403, 200, 200]),
    ] {
        assert_eq!(codes(&secure.client(role)), expected, "{role} by certificate");
        let token = secure.pki.issue_token(role, role.default_user()).unwrap();
        assert_eq!(codes(&secure.anonymous().with_token(&token)), expected, "{role} by token");
    }
}

/// The plugin `kubernetes` of `CoreDNS` lists and watches these; pods only with `pods verified` in its configuration.
#[test]
fn the_read_only_role_is_enough_for_coredns() {
    let secure = start();
    let client = secure.client(Role::ReadOnly);
    for path in ["/api/v1/services", SLICES, "/api/v1/namespaces", "/api/v1/pods"] {
        let answer = client.get(&format!("{path}?limit=500&resourceVersion=0"));
        assert_eq!(answer.code, 200, "{path}: {}", answer.body);
        let list = answer.json();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        client.watch(&format!("{path}?allowWatchBookmarks=true&resourceVersion={version}&watch=true"));
    }
}

#[test]
fn every_user_learns_what_its_role_allows() {
    const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let secure = start();
    for role in [Role::Admin, Role::Proxy, Role::ReadOnly] {
        let client = secure.client(role);
        // The answer is what a request meets.
        for (verb, method, path, group, resource) in [
            ("list", "GET", "/api/v1/namespaces", "", "namespaces"),
            ("list", "GET", SLICES, "discovery.k8s.io", "endpointslices"),
            ("create", "POST", SERVICES, "", "services"),
            ("deletecollection", "DELETE", "/api/v1/nodes", "", "nodes"),
        ] {
            let asked = serde_json::json!({"spec": {"resourceAttributes": {"verb": verb, "group": group, "resource": resource}}});
            let answer = client.ask("POST", ACCESS, &asked.to_string());
            assert_eq!(answer.code, 201, "{role}: {}", answer.body);
            let is_allowed = client.ask(method, path, "{}").code != 403;
            assert_eq!(answer.json()["status"]["allowed"], is_allowed, "{role} {verb} {resource}");
        }
        let asked = r#"{"spec":{"nonResourceAttributes":{"verb":"get","path":"/metrics"}}}"#;
        let allowed = client.ask("POST", ACCESS, asked).json()["status"]["allowed"].clone();
        assert_eq!(allowed, client.get("/metrics").code == 200, "{role}");
        let rules = client.ask("POST", RULES, r#"{"spec":{"namespace":"default"}}"#).json();
        let rules = rules["status"]["resourceRules"].as_array().unwrap().clone();
        let has_star = rules.iter().any(|rule| rule["verbs"][0] == "*");
        assert_eq!(has_star, role == Role::Admin, "{role}: {rules:?}");
        let user = client.ask("POST", SELF, "{}").json()["status"]["userInfo"].clone();
        assert_eq!(user["username"], role.default_user());
        assert_eq!(user["groups"], serde_json::json!([role.group(), "system:authenticated"]));
    }
    assert_eq!(secure.anonymous().ask("POST", SELF, "{}").code, 401);
}

#[test]
fn a_refusal_is_a_status_of_upstream() {
    let secure = start();
    let answer = secure.client(Role::Proxy).create("web");
    assert_eq!(
        answer.refused(403, "Forbidden"),
        r#"services is forbidden: User "system:kube-proxy" cannot create resource "services" in API group "" in the namespace "default""#
    );
    assert_eq!(answer.json()["details"]["kind"], "services");
    let answer = secure.anonymous().get(SERVICES);
    assert_eq!(answer.refused(401, "Unauthorized"), "Unauthorized");
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

#[test]
fn impersonation_is_refused() {
    let secure = start();
    for header in ["impersonate-user", "Impersonate-Group", "impersonate-extra-a"] {
        let client = secure.client(Role::Admin).with_header(header, "nobody");
        let message = client.get(SERVICES).refused(403, "Forbidden");
        assert!(message.contains("--as"), "{message}");
        assert_eq!(client.create("web").code, 403);
    }
}

#[test]
fn without_credentials_there_is_health_and_the_version() {
    let secure = start();
    let anonymous = secure.anonymous();
    for path in ["/healthz", "/livez", "/readyz", "/readyz/ping", "/readyz?verbose", "/version"] {
        assert_eq!(anonymous.get(path).code, 200, "{path}");
    }
    assert_eq!(anonymous.ask("POST", "/readyz", "").code, 405);
    assert_eq!(anonymous.get("/readyz/nothing").code, 404);
    for path in ["/", "/api", "/apis", "/metrics", "/healthzz", "/versions", SERVICES] {
        let code = anonymous.get(path).code;
        assert_eq!(code, if path == "/healthzz" { 404 } else { 401 }, "{path}");
    }
}

#[test]
fn what_is_no_credential() {
    let secure = start();
    let anonymous = || secure.anonymous();
    let other = tempfile::tempdir().unwrap();
    let other = Pki::open(other.path()).unwrap();
    let server = ["server.crt", "server.key"]
        .map(|name| std::fs::read_to_string(secure.path("pki").join(name)).unwrap());
    let [chain, key] = server;
    let servers_own = Client { certificate: Some((chain, key)), ..anonymous() };
    for (what, client) in [
        ("an unknown token", anonymous().with_token("x")),
        (
            "headers of a proxy",
            anonymous().with_header("x-remote-user", "a").with_header("x-remote-group", "system:masters"),
        ),
        ("basic authentication", anonymous().with_header("authorization", "Basic YTph")),
        ("a certificate of another authority", anonymous().with_certificate(&other, Role::Admin)),
        ("a certificate that has ended", issued(&secure, -2, -1)),
        ("a certificate that has not begun", issued(&secure, 1, 2)),
        ("the certificate of the server", servers_own),
    ] {
        let answer = client.get(SERVICES);
        assert_eq!(answer.refused(401, "Unauthorized"), "Unauthorized", "{what}");
    }
    assert_eq!(issued(&secure, -1, 1).get(SERVICES).code, 200);
    // An unknown certificate does not invalidate a known token.
    let token = secure.pki.issue_token(Role::ReadOnly, "reader").unwrap();
    let both = anonymous().with_certificate(&other, Role::Admin).with_token(&token);
    assert_eq!((both.get(SERVICES).code, both.create("web").code), (200, 403));
}

/// Returns a client of the group of admins whose certificate is valid from `from` to `until`, in days from now.
fn issued(secure: &Secure, from: i64, until: i64) -> Client {
    let read = |name: &str| std::fs::read_to_string(secure.path("pki").join(name)).unwrap();
    let authority =
        Issuer::from_ca_cert_pem(&read("ca.crt"), KeyPair::from_pem(&read("ca.key")).unwrap()).unwrap();
    let day = |days: i64| {
        let length = Duration::from_secs(days.unsigned_abs() * 24 * 60 * 60);
        if days < 0 { SystemTime::now() - length } else { SystemTime::now() + length }
    };
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "somebody");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    (params.not_before, params.not_after) = (day(from).into(), day(until).into());
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap().pem();
    Client { certificate: Some((certificate, key.serialize_pem())), ..secure.anonymous() }
}

#[test]
fn pages_in_a_browser_are_kept_out_unless_they_have_a_token() {
    let secure = start();
    let token = secure.pki.issue_token(Role::Admin, "admin").unwrap();
    let page = |client: Client| client.with_header("origin", "https://console.example").get(SERVICES).code;
    // A browser uses an installed certificate for the requests of every page.
    assert_eq!(page(secure.client(Role::Admin)), 403);
    assert_eq!(page(secure.anonymous()), 403);
    assert_eq!(page(secure.anonymous().with_token(&token)), 200);
}

#[test]
fn a_token_file_and_another_authority_are_accepted() {
    let other = tempfile::tempdir().unwrap();
    let other = Pki::open(other.path()).unwrap();
    let secure = start_with(|_, tls, folder| {
        let (tokens, authority) = (folder.join("tokens.csv"), folder.join("clients.crt"));
        std::fs::write(
            &tokens,
            "t-1,alice,1,\"x,portolan:read-only\"\nt-2,system:kube-proxy,2\nt-3,nobody,3\n",
        )
        .unwrap();
        std::fs::write(&authority, other.authority_certificate().unwrap()).unwrap();
        (tls.tokens, tls.client_authorities) = (Some(tokens), Some(authority));
    });
    let with = |token: &str| secure.anonymous().with_token(token);
    assert_eq!((with("t-1").get("/api/v1/namespaces").code, with("t-1").create("a").code), (200, 403));
    assert_eq!((with("t-2").get(SLICES).code, with("t-2").get("/api/v1/namespaces").code), (200, 403));
    // A known user without a role may only read discovery.
    assert_eq!((with("t-3").get("/api/v1").code, with("t-3").get(SLICES).code), (200, 403));
    assert_eq!(secure.anonymous().with_certificate(&other, Role::Admin).create("b").code, 201);
    assert_eq!(secure.client(Role::Admin).create("c").code, 201);
}

#[test]
fn the_certificate_is_for_all_names_and_requests_are_counted() {
    let secure = start();
    let admin = secure.client(Role::Admin);
    for name in ["localhost", "127.0.0.1", "kubernetes.default.svc"] {
        assert_eq!(Client { name: name.to_owned(), ..admin.clone() }.get("/api").code, 200);
    }
    assert!(Client { name: "other.example".to_owned(), ..admin.clone() }.connect().is_err());
    admin.create("web");
    let posts = "apiserver_request_total{verb=\"POST\",group=\"\",resource=\"services\",code=\"201\"}";
    assert!((metric(&admin, posts) - 1.0).abs() < f64::EPSILON);
    let took = "apiserver_request_duration_seconds_count{verb=\"POST\",group=\"\",resource=\"services\"}";
    assert!((metric(&admin, took) - 1.0).abs() < f64::EPSILON);
    assert!(metric(&admin, "portolan_server_certificate_expiration_timestamp_seconds") > 1e9);
    // The client that ended its handshake because of the name.
    assert!(metric(&admin, "apiserver_tls_handshake_errors_total") >= 1.0);
}
