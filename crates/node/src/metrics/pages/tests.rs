use std::sync::atomic::{AtomicU32, Ordering};

use portolan_web::testing::{exchange, loopback, request, request_with, start};

use super::*;
use crate::address::Family;
use crate::config::Mode;
use crate::metrics::tests::{metrics, read};

fn pages(configuration: &Configuration) -> PagesSettings<'_> {
    PagesSettings {
        configuration,
        flags: Vec::new(),
        set_verbosity: None,
        agent_pages: None,
        gates: Vec::new(),
    }
}

async fn served(settings: PagesSettings<'_>) -> (SocketAddr, Arc<Pages>) {
    let pages = Arc::new(Pages::new(Arc::new(metrics().with_process()), settings));
    (start(server(loopback(), true, Arc::clone(&pages))).await, pages)
}

async fn get(address: SocketAddr, path: &str, headers: &[&str]) -> (u16, String, String) {
    let got = request_with(address, "GET", path, headers, "").await.expect("an answer");
    let content_type = got.headers.iter().find_map(|header| header.strip_prefix("Content-Type: "));
    (got.status, content_type.expect("a content type").to_owned(), got.body)
}

fn plain(status: u16, body: &str) -> (u16, String, String) {
    (status, "text/plain; charset=utf-8".to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_metrics_server_has_its_pages() {
    let configuration = Configuration { mode: Some(Mode::Nftables), ..Configuration::default() };
    let (address, pages) = served(pages(&configuration)).await;
    let metrics = &pages.metrics;
    metrics.mode("nftables", "configured", "nftables");
    let ask = |path: &'static str| get(address, path, &[]);
    assert_eq!(ask("/healthz").await, plain(200, "ok"));
    assert_eq!(ask("/healthz/ping").await, plain(200, "ok"));
    assert_eq!(ask("/healthz?verbose").await, plain(200, "[+]ping ok\nhealthz check passed\n"));
    assert_eq!(ask("/proxyMode").await, plain(200, "nftables"));
    for missing in
        ["/", "/proxyMode/", "/metrics/", "/livez", "/debug/pprof", "/debug/pprof/", "/debug/flags/v"]
    {
        assert_eq!(get(address, missing, &[]).await, plain(404, "404 page not found\n"), "{missing}");
    }
    let (status, content_type, page) = ask("/metrics").await;
    assert_eq!((status, content_type.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let page = read(&page).expect("a valid page");
    assert!(page.iter().any(|shown| shown.name == "process_resident_memory_bytes"));
    let (_, content_type, configz) = ask("/configz").await;
    assert_eq!(content_type, "application/json");
    let configz: serde_json::Value = serde_json::from_str(&configz).expect("JSON");
    let shown = configz.get("kubeproxy.config.k8s.io").expect("one component");
    assert_eq!(shown.get("mode").and_then(|mode| mode.as_str()), Some("nftables"));
    assert_eq!(shown.get("nodePortAddresses"), Some(&serde_json::json!(["primary"])));
    metrics.mode_runs(Family::Ipv4, "nftables");
    metrics.mode("ipvs", "configured", "ipvs");
    assert_eq!(ask("/proxyMode").await, plain(200, "nftables"), "its rules are not complete");
    metrics.mode_runs(Family::Ipv4, "ipvs");
    assert_eq!(ask("/proxyMode").await, plain(200, "ipvs"));
}

#[tokio::test]
async fn the_agents_own_pages_are_for_loopback_unless_the_configuration_allows_more() {
    let own: fn(&Request<Bytes>) -> Option<Reply> = |request| {
        let is_known = ["/debug/portolan/state", SERVICE_METRICS].contains(&request.uri().path());
        is_known.then(|| web::answer(StatusCode::OK, PLAIN, "state").into())
    };
    let mut configuration = Configuration { enable_profiling: true, ..Configuration::default() };
    let settings = PagesSettings { agent_pages: Some(Box::new(own)), ..pages(&configuration) };
    let (address, pages) = served(settings).await;
    assert_eq!(get(address, "/debug/portolan/state", &[]).await, plain(200, "state"));
    assert_eq!(get(address, "/debug/portolan/", &[]).await, plain(404, "404 page not found\n"));
    let any = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
    let any = start(server(any, true, Arc::clone(&pages))).await;
    let any = SocketAddr::new(address.ip(), any.port());
    assert_eq!(get(any, "/debug/portolan/state", &[]).await.0, 404, "other hosts reach that server");
    assert_eq!(get(any, SERVICE_METRICS, &[]).await, plain(200, "state"), "they scrape it");
    configuration.portolan.state_on_any_address = true;
    pages.set_configuration(&configuration);
    assert_eq!(get(any, "/debug/portolan/state", &[]).await, plain(200, "state"));
}

#[tokio::test]
async fn metrics_are_compressed_on_request() {
    let configuration = Configuration::default();
    let (address, _) = served(pages(&configuration)).await;
    let (head, body) =
        exchange(address, "GET", "/metrics", &["Accept-Encoding: gzip"], "").await.expect("an answer");
    assert!(head.lines().any(|line| line == "Content-Encoding: gzip"), "{head}");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&body[..]), &mut text).expect("gzip");
    read(&text).expect("a valid page");
    let (head, body) = exchange(address, "POST", "/metrics", &[], "").await.expect("an answer");
    assert!(!head.contains("Content-Encoding"), "{head}");
    assert!(body.starts_with(b"# HELP "));
}

#[tokio::test]
async fn service_level_indicators_count_and_reset() {
    let configuration = Configuration::default();
    let (address, _) = served(pages(&configuration)).await;
    let shown = || async {
        let (_, _, page) = get(address, "/metrics/slis", &[]).await;
        read(&page).expect("a valid page");
        let lines = page.lines().filter(|line| !line.starts_with('#') && !line.starts_with("process_"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(shown().await, [""; 0]);
    for path in ["/healthz", "/healthz?exclude=ping", "/healthz?verbose"] {
        get(address, path, &[]).await;
    }
    let want = [
        "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2",
    ];
    assert_eq!(shown().await, want);
    let reset = request(address, "DELETE", "/metrics/slis").await.expect("an answer");
    assert_eq!((reset.status, reset.body.as_str()), (200, "metrics reset\n"));
    assert_eq!(shown().await, [""; 0]);
}

#[tokio::test]
async fn flags_are_shown_in_every_form() {
    let configuration = Configuration::default();
    let flags = [("v", "4"), ("cluster-cidr", "10.0.0.0/8"), ("config", "")];
    let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let (address, _) = served(PagesSettings { flags, ..pages(&configuration) }).await;
    insta::assert_snapshot!(get(address, "/flagz", &["Accept: */*"]).await.2.trim_start(), @r#"
    kube-proxy flagz
    Warning: this page is for people; its form can change at any time. Programs can ask for an object.

    cluster-cidr=10.0.0.0/8
    config=
    v=4
    "#);
    let as_flagz = |form: &str, version: &str| {
        format!("Accept: application/{form};g=config.k8s.io;v={version};as=Flagz")
    };
    let (status, content_type, body) = get(address, "/flagz", &[&as_flagz("json", "v1beta1")]).await;
    assert_eq!((status, content_type.as_str()), (200, "application/json"));
    let object: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let want = serde_json::json!({
        "kind": "Flagz",
        "apiVersion": "config.k8s.io/v1beta1",
        "metadata": { "name": "kube-proxy" },
        "flags": { "v": "4", "cluster-cidr": "10.0.0.0/8", "config": "" },
    });
    assert_eq!(object, want);
    let accept = as_flagz("yaml", "v1alpha1");
    let old = request_with(address, "GET", "/flagz", &[&accept], "").await.expect("an answer");
    insta::assert_snapshot!(format!("{}\n\n{}", old.headers.join("\n"), old.body), @r#"
    Content-Length: 132
    Content-Type: application/yaml
    Warning: 299 - "config.k8s.io/v1alpha1 Flagz is deprecated; use config.k8s.io/v1beta1 Flagz"
    X-Content-Type-Options: nosniff

    apiVersion: config.k8s.io/v1alpha1
    flags:
      cluster-cidr: 10.0.0.0/8
      config: ""
      v: "4"
    kind: Flagz
    metadata:
      name: kube-proxy
    "#);
    let refused = get(address, "/flagz", &["Accept: application/json"]).await;
    assert_eq!((refused.0, refused.1.as_str()), (406, "text/plain; charset=utf-8"));
}

#[tokio::test]
async fn statusz_shows_version_and_paths() {
    let configuration = Configuration::default();
    let (address, _) = served(pages(&configuration)).await;
    let (_, _, text) = get(address, "/statusz", &[]).await;
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("Started: ")).collect();
    assert!(
        lines.contains(&"kube-proxy statusz") && lines.contains(&"Binary version: 1.36.2+portolan-0.1.0"),
        "{text}"
    );
    let accept = "Accept: application/json;g=config.k8s.io;v=v1beta1;as=Statusz";
    let (_, _, body) = get(address, "/statusz", &[accept]).await;
    let object: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let field = |name: &str| object.get(name).unwrap_or_else(|| panic!("{name} in {body}"));
    let paths = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"];
    assert_eq!(field("paths"), &serde_json::json!(paths));
    assert_eq!(field("emulationVersion"), "1.36");
    assert!(field("uptimeSeconds").is_u64());
    let started = field("startTime").as_str().expect("text");
    assert!(started.starts_with("20") && started.len() == "2026-03-01T10:00:00Z".len(), "{started}");
}

#[tokio::test]
async fn gates_switch_pages_off_and_are_shown() {
    let configuration = Configuration::default();
    let gates = [("ComponentFlagz", "BETA", false), ("ComponentStatusz", "BETA", false), ("Other", "", true)];
    let gates = gates.map(|(name, stage, on)| (name.to_owned(), stage.to_owned(), on)).to_vec();
    let (address, _) = served(PagesSettings { gates, ..pages(&configuration) }).await;
    assert_eq!(get(address, "/flagz", &[]).await.0, 404);
    assert_eq!(get(address, "/statusz", &[]).await.0, 404);
    let (_, _, page) = get(address, "/metrics", &[]).await;
    assert!(
        page.contains("\nkubernetes_feature_enabled{name=\"ComponentFlagz\",stage=\"BETA\"} 0\n"),
        "{page}"
    );
    assert!(page.contains("\nkubernetes_feature_enabled{name=\"Other\",stage=\"\"} 1\n"), "{page}");
}

#[tokio::test]
async fn debug_pages_come_with_profiling() {
    let configuration = Configuration { enable_profiling: true, ..Configuration::default() };
    let verbosity = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&verbosity);
    let set: SetVerbosity = Box::new(move |level| verbosity.store(level, Ordering::Relaxed));
    let (address, pages) = served(PagesSettings { set_verbosity: Some(set), ..pages(&configuration) }).await;
    let put = |body: &'static str| request_with(address, "PUT", "/debug/flags/v", &[], body);
    let done = put("4").await.expect("an answer");
    assert_eq!((done.status, done.body.as_str()), (200, "successfully set klog.logging.verbosity to 4\n"));
    assert_eq!(seen.load(Ordering::Relaxed), 4);
    for bad in ["x", "4.5", "2147483648"] {
        let refused = put(bad).await.expect("an answer");
        assert_eq!(refused.status, 400, "{bad}");
        assert!(refused.body.starts_with(&format!("failed to set klog.logging.verbosity {bad}: ")));
    }
    assert_eq!(seen.load(Ordering::Relaxed), 4, "nothing else has changed it");
    assert_eq!(request(address, "GET", "/debug/flags/v").await.expect("an answer").status, 406);
    for index in ["/debug/flags", "/debug/flags/"] {
        assert_eq!(get(address, index, &[]).await.1, "text/html; charset=utf-8");
    }
    let redirect = request(address, "GET", "/debug/pprof").await.expect("an answer");
    assert_eq!(redirect.status, 302);
    assert!(redirect.headers.contains(&"Location: /debug/pprof/".to_owned()), "{:?}", redirect.headers);
    for path in ["/debug/pprof/", "/debug/pprof/profile?seconds=5"] {
        let (status, _, body) = get(address, path, &[]).await;
        assert_eq!(status, 501);
        assert!(body.contains("perf record"), "{body}");
    }
    assert_eq!(get(address, "/debug/other", &[]).await.0, 404);
    // A reload that disables profiling removes the pages.
    pages.set_configuration(&Configuration::default());
    assert_eq!(get(address, "/debug/pprof/", &[]).await.0, 404);
}
