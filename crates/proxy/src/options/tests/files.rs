//! Flags together with a configuration file.

use std::path::PathBuf;

use super::*;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Writes a configuration file into a temporary folder.
fn file(body: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, format!("{HEAD}{body}")).expect("a file");
    (folder, path)
}

fn with_file(body: &str, arguments: &[&str]) -> anyhow::Result<Loaded> {
    let (_folder, path) = file(body);
    let config = format!("--config={}", path.display());
    load(&[&[config.as_str()], arguments].concat())
}

#[test]
fn content_that_was_read_is_used_even_if_the_file_has_changed() {
    let (_folder, path) = file("oomScoreAdj: 7\n");
    let options = parse(&[&format!("--config={}", path.display())]).expect("a command line");
    let content = std::fs::read(&path).expect("a file");
    std::fs::write(&path, "apiVersion: kube").expect("a file");
    assert_eq!(options.load_content(&content).expect("a configuration").configuration.oom_score_adj, 7);
    let error = format!("{:#}", options.load_content(&[0xff]).expect_err("no text"));
    assert!(error.contains("config.yaml") && error.contains("utf-8"), "{error}");
}

#[test]
fn the_file_replaces_the_flags_and_says_so() {
    let arguments = [
        "--proxy-mode=bogus",
        "--cluster-cidr=x",
        "--masquerade-all",
        "--master=http://m",
        "--hostname-override=N",
    ];
    let set =
        with_file("mode: ipvs\nhostnameOverride: other", &arguments).expect("ignored flags harm nothing");
    assert_eq!(set.configuration.mode, Some(Mode::Ipvs));
    assert_eq!(set.configuration.hostname_override.as_deref(), Some("n"));
    assert!(!set.configuration.iptables.masquerade_all);
    assert_eq!(set.master.as_deref(), Some("http://m"));
    assert!(set.file.is_some());
    insta::assert_snapshot!(set.notes.join("\n"), @"the configuration file replaces these flags, which are ignored: --proxy-mode, --masquerade-all, --cluster-cidr");
    assert!(with_file("", &["-v=1", "--master=m"]).expect("flags that count").notes.is_empty());
}

#[test]
fn logging_flags_lie_over_the_file() {
    let body = "logging: {verbosity: 1, format: text, flushFrequency: 9s, vmodule: [{filePattern: a, verbosity: 1}]}";
    let none = with_file(body, &[]).expect("a file").configuration.logging;
    assert_eq!((none.verbosity, none.flush_frequency.as_secs(), none.vmodule.len()), (1, 9, 1));
    let set = with_file(body, &["-v", "5", "--vmodule=b=2"]).expect("flags").configuration.logging;
    assert_eq!((set.verbosity, set.flush_frequency.as_secs()), (5, 9));
    let patterns: Vec<&str> = set.vmodule.iter().map(|item| item.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["b", "a"], "flags go before the file");
    let error = with_file(body, &["--logging-format=json"]).expect_err("vmodule is for text").to_string();
    assert!(error.contains("logging.vmodule: only for logging.format text"), "{error}");
    let error = with_file("logging: {format: json}", &["--vmodule=a=1"])
        .expect_err("the other way round")
        .to_string();
    assert!(error.contains("--vmodule: only for logging.format text"), "{error}");
}

#[test]
fn what_is_wrong_in_a_file_is_named_by_field_and_place() {
    let error = with_file("clusterCidr: 10.0.0.0/8\nmode: fast", &[]).expect_err("two mistakes").to_string();
    assert!(
        error.contains("clusterCidr (line 3, column 1): unknown field; did you mean `clusterCIDR`?"),
        "{error}"
    );
    assert!(error.contains("mode (line 4, column 1): `fast` is not supported"), "{error}");
    let error = load(&["--config=/nonexistent/file"]).expect_err("no file").to_string();
    assert!(error.contains("cannot read configuration file /nonexistent/file"), "{error}");
}

#[test]
fn harmless_faults_of_a_file_are_warnings() {
    let set = with_file("udpIdleTimeout: 1s\nfeatureGates: {NFTablesProxyMode: true, KMSv1: false}", &[]);
    let notes: Vec<String> =
        set.expect("an old file").notes.iter().map(|note| note.replace(|_: char| false, "")).collect();
    assert!(
        notes.iter().any(|note| note.ends_with(
            "udpIdleTimeout (line 3, column 1): not part of v1alpha1 any more, and ignored; it can be deleted"
        )),
        "{notes:?}"
    );
    assert!(notes.iter().any(|note| note.starts_with("feature gate KMSv1 is deprecated")), "{notes:?}");
    assert!(
        notes.iter().any(|note| note.starts_with("feature gate NFTablesProxyMode is here to stay")),
        "{notes:?}"
    );
}

/// An old configuration starts, and says what to leave out.
#[test]
fn gates_of_older_releases_are_warnings() {
    const NOTE: &str =
        "feature gate ProxyTerminatingEndpoints is always true since Kubernetes 1.28: leave it out";
    let by_file = with_file("featureGates: {ProxyTerminatingEndpoints: true}", &[]).expect("an old file");
    assert_eq!(by_file.notes, [NOTE]);
    let by_flag = loaded(&["--feature-gates=ServiceTopology=false,ProxyTerminatingEndpoints=true"]);
    let other = "feature gate ServiceTopology is always false since Kubernetes 1.20: leave it out";
    assert_eq!(by_flag.notes.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&NOTE.into(), &other.into()]));
    let error = load(&["--feature-gates=ProxyTerminatingEndpoints=false"]).expect_err("it cannot be off");
    assert!(error.to_string().contains("always true since Kubernetes 1.28"), "{error}");
}

#[test]
fn the_written_file_is_the_effective_configuration() {
    let (folder, path) = file("mode: ipvs\nipvs: {scheduler: lc}");
    let (config, out) = (path.display().to_string(), folder.path().join("out.yaml"));
    let to = format!("--write-config-to={}", out.display());
    let ended = parse(&["--config", &config, &to, "--ipvs-scheduler=rr"]).expect("flags").act();
    assert!(ended.expect("a good configuration"));
    let written = config::load(&out).expect("what was written is valid");
    assert_eq!(written, loaded(&["--config", &config]).configuration);
    let flags = [&to, "--proxy-mode=nftables", "--masquerade-all", "--iptables-min-sync-period=3s"];
    assert!(parse(&flags).expect("flags").act().expect("good flags"));
    let text = std::fs::read_to_string(&out).expect("the file");
    for line in
        ["mode: nftables", "nodePortAddresses:\n- primary", "  masqueradeAll: true", "  minSyncPeriod: 3s"]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    std::fs::remove_file(&out).expect("the file");
    assert!(parse(&[&to, "--oom-score-adj=9999"]).expect("flags").act().is_err());
    assert!(!out.exists(), "an invalid configuration writes nothing");
    assert!(!parse(&["--cleanup"]).expect("flags").act().expect("nothing to do"));
}
