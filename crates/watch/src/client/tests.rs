use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::AuthInfo;

use super::*;
use crate::content_type::PROTOBUF_OR_JSON;

fn kubeconfig(cluster: &str, user: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c,
          contexts: [{{name: c, context: {{cluster: k, user: u}}}}],
          users: [{{name: u, user: {{{user}}}}}], clusters: [{{name: k, cluster: {{{cluster}}}}}]}}"
    );
    std::fs::write(file.path(), text).unwrap();
    file
}

fn settings(file: &Path) -> ClientSettings {
    ClientSettings { kubeconfig: Some(file.to_owned()), ..ClientSettings::default() }
}

fn config(cluster: &str) -> kube::Config {
    let file = kubeconfig(cluster, "token: secret");
    let target = Surroundings::of_process(|around| target::find(&settings(file.path()), around)).unwrap();
    Transport::new(target, None, Peers::default()).unwrap().1
}

async fn error(cluster: &str, user: &str) -> String {
    match connect(&settings(kubeconfig(cluster, user).path())).await {
        Err(error) => error.to_string(),
        Ok(_) => "no error".to_owned(),
    }
}

#[test]
fn the_first_known_content_type_counts() {
    let prefers = |content_type: &str, accept: &str| {
        let (content_type, accept_content_types) = (content_type.to_owned(), accept.to_owned());
        ClientSettings { content_type, accept_content_types, ..ClientSettings::default() }.prefers_protobuf()
    };
    assert!(ClientSettings::default().prefers_protobuf());
    assert!(
        prefers(PROTOBUF, "")
            && prefers("", PROTOBUF_OR_JSON)
            && prefers(JSON, "text/html, application/vnd.kubernetes.protobuf")
    );
    assert!(!prefers("", "") && !prefers(JSON, "") && !prefers(PROTOBUF, JSON));
    assert!(
        !prefers(PROTOBUF, "application/json,application/vnd.kubernetes.protobuf")
            && !prefers(PROTOBUF, "*/*")
    );
}

#[test]
fn no_authority_is_needed_if_no_certificate_is_checked() {
    for cluster in ["server: 'http://h'", "server: 'https://h', insecure-skip-tls-verify: true"] {
        assert_eq!(config(cluster).root_cert, Some(Vec::new()), "{cluster}");
    }
    assert_eq!(config("server: 'https://h'").root_cert, None, "left to the system's");
}

#[tokio::test]
async fn a_pod_without_a_certificate_authority_starts() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("token"), "t").unwrap();
    for authority in [None, Some("no certificate")] {
        if let Some(text) = authority {
            std::fs::write(directory.path().join("ca.crt"), text).unwrap();
        }
        let around = Surroundings { variable: &|_| Some("1".to_owned()), service_account: directory.path() };
        assert!(connect_in(&ClientSettings::default(), &around).is_ok(), "{authority:?}");
    }
}

#[tokio::test]
async fn unusable_settings_fail_at_connect() {
    let http = "server: 'http://127.0.0.1:1'";
    for (cluster, user, part) in [
        (http, "username: u, token: t", "username and a token"),
        (http, "tokenFile: /nonexistent/token", "/nonexistent/token"),
        (http, "token: \"a\\nb\"", "cannot be sent in a header"),
        (http, "auth-provider: {name: gcp}", "auth-provider \"gcp\" is not supported"),
        (http, "exec: {apiVersion: client.authentication.k8s.io/v1}", "no command"),
        (http, "exec: {command: c}", "no apiVersion"),
        (http, "exec: {command: c, apiVersion: client.authentication.k8s.io/v1alpha1}", "v1alpha1"),
        (
            http,
            "exec: {command: c, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Always}",
            "has no terminal",
        ),
        ("server: 'http://127.0.0.1:1', proxy-url: 'ftp://p'", "", "is no proxy"),
        ("server: 'https://h', certificate-authority: /nonexistent/ca", "", "/nonexistent/ca"),
        ("server: 'https://h', certificate-authority-data: '!'", "", "failed to load certificate authority"),
        (http, "as: \"a\\nb\"", "impersonation"),
        ("server: 'https://h', certificate-authority-data: aGk=", "", "no PEM certificate"),
        ("server: 'https://h', insecure-skip-tls-verify: true", "client-certificate-data: aGk=", "key"),
    ] {
        let error = error(cluster, user).await;
        assert!(error.contains(part), "{cluster} {user}: {error}");
    }
}

/// Returns Display and Debug of the error and of all its sources.
async fn everything_said(settings: &ClientSettings) -> String {
    let Err(error) = connect(settings).await else { return "no error".to_owned() };
    let first: &dyn std::error::Error = &error;
    let causes = std::iter::successors(Some(first), |cause| cause.source());
    causes.map(|cause| format!("{cause} {cause:?}")).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn the_content_of_a_broken_file_is_not_quoted() {
    let http = "server: 'http://127.0.0.1:1'";
    let bytes = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(bytes.path(), b"hunter2\xff").unwrap();
    let line = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(line.path(), "hunter2\nhunter2").unwrap();
    let key = "-----BEGIN PRIVATE KEY-----hunter2";
    let key = format!("client-certificate-data: aGk=, client-key-data: {}", STANDARD.encode(key));
    for (cluster, user, part) in [
        (http, "token: 'a', exec: hunter2", "line 3, column "),
        (http, "token: [hunter2]", "line 3, column "),
        (http, "exec: {env: [hunter2]}", "line 3, column "),
        (http, "token: hunter2}, \"", "line "),
        (http, &format!("tokenFile: {}", bytes.path().display()), "token file"),
        (http, &format!("tokenFile: {}", line.path().display()), "cannot be sent in a header"),
        ("server: 'https://h', insecure-skip-tls-verify: true", &key, "no PEM"),
    ] {
        let said = everything_said(&settings(kubeconfig(cluster, user).path())).await;
        assert!(said.contains(part), "{user}: {said}");
        // pki-types prints a line as its bytes.
        assert!(!said.contains("hunter2") && !said.contains("104, 117, 110"), "{user}: {said}");
    }
}

#[tokio::test]
async fn a_limit_that_allows_no_request_is_refused() {
    let master = Some("http://127.0.0.1:1".to_owned());
    let settings = ClientSettings { master, burst: 0, ..ClientSettings::default() };
    assert!(matches!(connect(&settings).await, Err(ClientError::Limit(_))));
    assert!(connect(&ClientSettings { qps: -1.0, ..settings }).await.is_ok());
}

#[tokio::test]
async fn basic_authentication() {
    let user = AuthInfo {
        username: Some("me".to_owned()),
        password: Some("a:b".to_owned().into()),
        ..AuthInfo::default()
    };
    let credential = Credentials::new(&user).unwrap().current().await.unwrap();
    let header = credential.authorization.unwrap();
    assert_eq!(header, "Basic bWU6YTpi");
    assert!(header.is_sensitive());
}

#[tokio::test]
async fn a_token_file_goes_before_an_inline_token_while_it_is_there() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_owned();
    let token_file = Some(path.to_string_lossy().into_owned());
    let user = AuthInfo { token: Some("inline".to_owned().into()), token_file, ..AuthInfo::default() };
    let credentials = Credentials::new(&user).unwrap();
    let now = async || credentials.current().await.unwrap().authorization.unwrap();
    assert_eq!(now().await, "Bearer inline", "an empty file has no token");
    std::fs::write(&path, "first\n").unwrap();
    assert_eq!(now().await, "Bearer first");
    std::fs::write(&path, "second\n").unwrap();
    assert_eq!(now().await, "Bearer second", "read at every request");
    drop(file);
    assert_eq!(now().await, "Bearer second", "the last one stays");
}

#[test]
fn the_name_in_the_audit_log() {
    let agent = user_agent();
    let agent = agent.to_str().unwrap();
    assert!(
        agent.starts_with("portolan/0.") && agent.ends_with(')') && agent.contains(" (linux/"),
        "{agent}"
    );
}
