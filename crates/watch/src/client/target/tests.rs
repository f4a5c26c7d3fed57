use super::*;

use std::collections::HashMap;
use std::path::PathBuf;

/// A pod's environment and mounts, and a directory for kubeconfigs.
struct World {
    directory: tempfile::TempDir,
    variables: HashMap<&'static str, &'static str>,
}

impl World {
    fn outside() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), variables: HashMap::new() }
    }

    fn pod() -> Self {
        let variables = [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")].into();
        let pod = Self { variables, ..Self::outside() };
        pod.write("token", "t0\n");
        pod
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn kubeconfig(&self, cluster: &str, user: &str) -> PathBuf {
        self.write(
            "kubeconfig",
            &format!(
                "{{apiVersion: v1, kind: Config, current-context: c,
                  contexts: [{{name: c, context: {{cluster: k, user: u}}}}, {{name: d, context: {{cluster: o}}}}],
                  users: [{{name: u, user: {{{user}}}}}],
                  clusters: [{{name: o, cluster: {{server: 'http://other'}}}}, {{name: k, cluster: {{{cluster}}}}}]}}"
            ),
        )
    }

    fn find(&self, kubeconfig: Option<&Path>, master: Option<&str>) -> Result<Target, ClientError> {
        let settings = ClientSettings {
            kubeconfig: kubeconfig.map(Path::to_owned),
            master: master.map(str::to_owned),
            ..ClientSettings::default()
        };
        let around = Surroundings {
            variable: &|name| self.variables.get(name).map(|value| (*value).to_owned()),
            service_account: self.directory.path(),
        };
        find(&settings, &around)
    }

    fn url_of(&self, kubeconfig: &Path, context: &str) -> Result<String, ClientError> {
        let settings = ClientSettings {
            kubeconfig: Some(kubeconfig.to_owned()),
            context: Some(context.to_owned()),
            ..ClientSettings::default()
        };
        let around = Surroundings { variable: &|_| None, service_account: self.directory.path() };
        find(&settings, &around).map(|target| target.url.to_string())
    }

    fn url(&self, kubeconfig: Option<&Path>, master: Option<&str>) -> String {
        self.find(kubeconfig, master).unwrap().url.to_string()
    }
}

#[test]
fn further_files_add_what_the_first_one_lacks() {
    let world = World::outside();
    let first = world.kubeconfig("server: 'http://first'", "token: t1");
    let second = world.write(
        "second",
        "{apiVersion: v1, kind: Config, current-context: more,
          contexts: [{name: c, context: {cluster: none}}, {name: more, context: {cluster: m, user: u}}],
          users: [{name: u, user: {token: t2}}], clusters: [{name: m, cluster: {server: 'http://second'}}]}",
    );
    let url_of = |context: Option<&str>, more: Vec<PathBuf>| {
        let settings = ClientSettings {
            kubeconfig: Some(first.clone()),
            more_kubeconfigs: more,
            context: context.map(str::to_owned),
            ..ClientSettings::default()
        };
        let around = Surroundings { variable: &|_| None, service_account: world.directory.path() };
        find(&settings, &around)
    };
    assert_eq!(url_of(None, vec![second.clone()]).unwrap().url, "http://first/");
    let found = url_of(Some("more"), vec![second]).unwrap();
    assert_eq!((found.url.to_string().as_str(), found.user.token.is_some()), ("http://second/", true));
    let missing = world.directory.path().join("missing");
    let error = url_of(None, vec![missing.clone()]).unwrap_err().to_string();
    assert!(error.starts_with(&format!("kubeconfig {}: ", missing.display())), "{error}");
}

#[test]
fn another_context_may_be_named() {
    let world = World::pod();
    let file = world.kubeconfig("server: 'http://here'", "token: t");
    assert_eq!(world.url_of(&file, "c").unwrap(), "http://here/");
    assert_eq!(world.url_of(&file, "d").unwrap(), "http://other/");
    assert!(matches!(world.url_of(&file, "e"), Err(ClientError::Kubeconfig { .. })));
}

#[test]
fn a_pod_needs_neither_flag_nor_file() {
    let target = World::pod().find(None, None).unwrap();
    assert_eq!(target.url, "https://10.96.0.1:443/");
    assert!(target.user.token_file.unwrap().ends_with("/token") && target.lenient);
    let mut pod = World::pod();
    pod.variables.insert("KUBERNETES_SERVICE_HOST", "fd00::1");
    assert_eq!(pod.url(None, Some("")), "https://[fd00::1]:443/", "an empty master is none");
}

#[test]
fn a_pod_needs_the_service_variables_and_a_token() {
    let mut pod = World::pod();
    pod.variables.remove("KUBERNETES_SERVICE_PORT");
    assert!(matches!(pod.find(None, None), Err(ClientError::NotInCluster)));
    let pod = World::pod();
    std::fs::remove_file(pod.directory.path().join("token")).unwrap();
    assert!(matches!(pod.find(None, None), Err(ClientError::ServiceAccount { .. })));
}

#[test]
fn master_goes_before_the_kubeconfig_s_server() {
    let world = World::pod();
    for cluster in ["server: 'https://127.0.0.1:6443'", "insecure-skip-tls-verify: false"] {
        let file = world.kubeconfig(cluster, "token: secret");
        let target = world.find(Some(&file), Some("http://127.0.0.1:9")).unwrap();
        assert_eq!(target.url, "http://127.0.0.1:9/");
        assert!(target.user.token.is_some(), "the user is the kubeconfig's");
    }
    assert_eq!(world.url(None, Some("127.0.0.1:8080")), "http://127.0.0.1:8080/");
}

#[test]
fn a_kubeconfig_without_a_context_is_none() {
    for text in
        ["", "{apiVersion: v1, kind: Config, clusters: [], contexts: [], users: []}", "current-context: ''"]
    {
        let (pod, outside) = (World::pod(), World::outside());
        let (in_pod, file) = (pod.write("empty", text), outside.write("empty", text));
        assert_eq!(pod.url(Some(&in_pod), None), "https://10.96.0.1:443/", "{text:?}");
        assert_eq!(pod.url(Some(&in_pod), Some("http://m")), "http://m/", "{text:?}");
        assert!(matches!(outside.find(Some(&file), None), Err(ClientError::NoContext { .. })), "{text:?}");
    }
}

#[test]
fn a_bad_kubeconfig_is_not_replaced_by_the_pod_s() {
    let pod = World::pod();
    let broken = pod.find(Some(&pod.write("broken", "}")), None).unwrap_err();
    assert!(
        matches!(&broken, ClientError::KubeconfigForm { path, .. } if path.ends_with("broken")),
        "{broken}"
    );
    let lost = pod.find(Some(&pod.write("lost", "current-context: nowhere")), None).unwrap_err();
    assert!(matches!(&lost, ClientError::Kubeconfig { path, .. } if path.ends_with("lost")), "{lost}");
    let error = pod.find(Some(Path::new("/nonexistent/config")), None).unwrap_err().to_string();
    assert!(error.starts_with("kubeconfig /nonexistent/config: "), "{error}");
}

#[test]
fn a_server_without_a_scheme_is_tls_where_there_are_certificates() {
    let world = World::outside();
    world.write("ca.crt", "");
    for (cluster, user, url) in [
        ("", "", "http://10.0.0.1:6443/"),
        ("", "token: t", "http://10.0.0.1:6443/"),
        (", certificate-authority: ca.crt", "", "https://10.0.0.1:6443/"),
        (", insecure-skip-tls-verify: true", "", "https://10.0.0.1:6443/"),
        ("", "client-certificate: a, client-key: b", "https://10.0.0.1:6443/"),
    ] {
        let file = world.kubeconfig(&format!("server: '10.0.0.1:6443'{cluster}"), user);
        assert_eq!(world.url(Some(&file), None), url, "{cluster} {user}");
    }
}

#[test]
fn paths_are_relative_to_the_kubeconfig_and_the_proxy_is_the_cluster_s() {
    let world = World::outside();
    world.write("ca.crt", "");
    let cluster = "server: 'https://a', certificate-authority: ca.crt, proxy-url: 'http://p:1'";
    let target = world.find(Some(&world.kubeconfig(cluster, "tokenFile: t")), None).unwrap();
    let token = target.user.token_file.unwrap();
    assert_eq!(Path::new(&token), world.directory.path().join("t"));
    assert_eq!(target.proxy.as_deref(), Some("http://p:1"));
}

#[test]
fn urls() {
    assert_eq!(url("https://[::1]:6443/prefix", false).unwrap().path(), "/prefix");
    for (text, reason) in [
        ("ftp://a", "is neither http nor https"),
        ("http://", "is not a URL"),
        ("http:// a", "is not a URL"),
        ("", "is not a URL"),
    ] {
        let error = url(text, false).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_server_of_this_process_comes_before_all_others() {
    let world = World::pod();
    let text = "{apiVersion: v1, kind: Config, current-context: c, users: [{name: u, user: {token: t}}],
        contexts: [{name: c, context: {cluster: k, user: u}}],
        clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]}";
    let settings = |text| ClientSettings {
        local: Some(LocalServer::of_kubeconfig(text)),
        kubeconfig: Some("/nonexistent".into()),
        master: Some("http://other".to_owned()),
        ..ClientSettings::default()
    };
    let around = Surroundings {
        variable: &|name| world.variables.get(name).map(|value| (*value).to_owned()),
        service_account: world.directory.path(),
    };
    let target = find(&settings(text), &around).unwrap();
    assert_eq!(target.url.to_string(), "http://127.0.0.1:1/");
    assert!(target.user.token.is_some());
    assert!(find(&settings("["), &around).is_err());
    assert!(!format!("{:?}", settings("secret")).contains("secret"));
}
