use super::*;

fn choose(url: &str, configured: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
    let lookup =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Proxy::choose(&url.parse().unwrap(), configured, lookup)
        .map(|proxy| proxy.map(|proxy| proxy.uri().to_string()))
        .map_err(|error| error.to_string())
}

const API: &str = "https://10.0.0.1:6443";

#[test]
fn the_kubeconfig_goes_before_the_environment() {
    let environment = [("HTTPS_PROXY", "http://env:1"), ("NO_PROXY", "*")];
    assert_eq!(choose(API, Some("http://own:2"), &environment), Ok(Some("http://own:2/".into())));
    assert_eq!(choose("https://127.0.0.1:1", Some("http://own:2"), &[]), Ok(Some("http://own:2/".into())));
    assert_eq!(choose(API, Some(""), &[("HTTPS_PROXY", "env:1")]), Ok(Some("http://env:1/".into())));
}

#[test]
fn the_variable_of_the_scheme_counts() {
    let environment =
        [("HTTPS_PROXY", "http://s:1"), ("http_proxy", "http://p:1"), ("ALL_PROXY", "http://a:1")];
    assert_eq!(choose(API, None, &environment), Ok(Some("http://s:1/".into())));
    assert_eq!(choose("http://10.0.0.1", None, &environment), Ok(Some("http://p:1/".into())));
    assert_eq!(choose(API, None, &environment[1..]), Ok(None), "Go does not know ALL_PROXY");
    let empty = [("HTTPS_PROXY", ""), ("https_proxy", "http://s:1"), ("NO_PROXY", ""), ("no_proxy", "a.b")];
    assert_eq!(choose(API, None, &empty), Ok(Some("http://s:1/".into())), "as if it were not there");
    assert_eq!(choose("https://a.b", None, &empty), Ok(None));
}

#[test]
fn hosts_that_are_not_proxied() {
    let no = |url: &str, no_proxy: &str| {
        choose(url, None, &[("HTTPS_PROXY", "http://p:1"), ("NO_PROXY", no_proxy)]).unwrap().is_none()
    };
    assert!(!no(API, "") && !no(API, "10.0.0.2,example.org"));
    for no_proxy in ["*", "10.0.0.1", "10.0.0.0/8", "a.b, 10.0.0.1", "10.0.0.1:6443"] {
        assert!(no(API, no_proxy), "{no_proxy}");
    }
    assert!(!no(API, "10.0.0.1:443"), "another port");
    assert!(no("https://[fd00::1]:6443", "[fd00::1]:6443") && no("https://[fd00::1]", "fd00::/8"));
    for (host, no_proxy, wanted) in [
        ("example.org", "example.org", true),
        ("api.Example.org", "Example.ORG", true),
        ("api.example.org", ".example.org", true),
        ("a.b.example.org", "*.example.org", true),
        ("example.org", ".example.org", false),
        ("example.org", "*.example.org", false),
        ("example.org.evil", "example.org", false),
        ("notexample.org", "example.org", false),
        ("org", "example.org", false),
        ("example.org", ", ,", false),
        ("example.org", "example.org:443", true),
        ("example.org", ".org:6443", false),
    ] {
        assert_eq!(no(&format!("https://{host}"), no_proxy), wanted, "{host} {no_proxy}");
    }
    for url in ["https://localhost:6443", "https://127.0.0.9", "https://[::1]:1"] {
        assert!(no(url, ""), "{url}");
    }
}

#[test]
fn kinds_of_proxies() {
    for proxy in ["http://p:1", "https://p:1", "socks5://p:1"] {
        assert_eq!(choose(API, Some(proxy), &[]), Ok(Some(format!("{proxy}/"))), "{proxy}");
    }
    let error = choose(API, Some("ftp://me:secret@p:1"), &[]).unwrap_err();
    assert!(error.contains("proxy-url of the kubeconfig") && error.contains("ftp://p:1"), "{error}");
    assert!(!error.contains("secret"), "{error}");
    let error = choose(API, None, &[("HTTPS_PROXY", "quic://p:1")]).unwrap_err();
    assert!(error.contains("HTTPS_PROXY"), "{error}");
}
