use std::io::Write as _;

use super::{ClientError, ClientSettings, config, connect, url};

fn kubeconfig(cluster: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(
        file,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\n\
         clusters: [{{name: k, cluster: {{{cluster}}}}}]\n"
    )
    .unwrap();
    file
}

fn settings(file: &tempfile::NamedTempFile, master: Option<&str>) -> ClientSettings {
    ClientSettings { kubeconfig: Some(file.path().to_owned()), master: master.map(str::to_owned) }
}

async fn error(settings: &ClientSettings) -> String {
    match connect(settings).await {
        Err(error) => error.to_string(),
        Ok(_) => "no error".to_owned(),
    }
}

#[tokio::test]
async fn plain_http_needs_no_certificate_authority() {
    let file = kubeconfig("server: 'http://127.0.0.1:8080'");
    let settings = settings(&file, None);
    assert_eq!(config(&settings).await.unwrap().root_cert, Some(Vec::new()));
    assert!(connect(&settings).await.is_ok());
}

#[tokio::test]
async fn unchecked_https_needs_no_certificate_authority() {
    let file = kubeconfig("server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true");
    let config = config(&settings(&file, None)).await.unwrap();
    assert_eq!((config.root_cert, config.accept_invalid_certs), (Some(Vec::new()), true));
}

#[tokio::test]
async fn https_without_an_authority_is_left_to_the_system_s() {
    let file = kubeconfig("server: 'https://127.0.0.1:6443'");
    assert_eq!(config(&settings(&file, None)).await.unwrap().root_cert, None);
}

#[tokio::test]
async fn master_goes_before_the_kubeconfig_s_server() {
    for cluster in ["server: 'https://127.0.0.1:6443'", "insecure-skip-tls-verify: false"] {
        let file = kubeconfig(cluster);
        let config = config(&settings(&file, Some("http://127.0.0.1:9"))).await.unwrap();
        assert_eq!(config.cluster_url, "http://127.0.0.1:9");
        assert!(config.root_cert.is_some());
    }
}

#[tokio::test]
async fn master_alone() {
    let settings = ClientSettings { kubeconfig: None, master: Some("127.0.0.1:8080".to_owned()) };
    assert_eq!(config(&settings).await.unwrap().cluster_url, "http://127.0.0.1:8080");
    assert!(connect(&settings).await.is_ok());
}

#[tokio::test]
async fn a_proxy_in_the_kubeconfig_is_named() {
    let file = kubeconfig("server: 'http://127.0.0.1:8080', proxy-url: 'http://127.0.0.1:3128'");
    let error = connect(&settings(&file, None)).await.err().unwrap();
    assert!(matches!(&error, ClientError::Proxy { cluster, .. } if cluster == "k"), "{error}");
}

#[tokio::test]
async fn errors_name_the_file() {
    let missing = ClientSettings { kubeconfig: Some("/nonexistent/config".into()), master: None };
    let message = error(&missing).await;
    assert!(message.starts_with("kubeconfig /nonexistent/config: "), "{message}");
    let file = kubeconfig("certificate-authority-data: '!', server: 'https://127.0.0.1:1'");
    let message = error(&settings(&file, None)).await;
    assert!(message.contains(&file.path().display().to_string()), "{message}");
}

#[test]
fn urls() {
    assert_eq!(url("https://[::1]:6443/prefix").unwrap().path(), "/prefix");
    for (text, reason) in [
        ("ftp://a", "is neither http nor https"),
        ("http://", "is not a URL"),
        ("http:// a", "is not a URL"),
        ("", "is not a URL"),
    ] {
        let error = url(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}
