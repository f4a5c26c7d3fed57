use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::Parser;
use portolan_node::config::{DetectLocalMode, Mode};
use serde_json::{Value, json};

use super::flags::FLAGS;
use super::*;

mod files;
mod pages;
mod table;

use table::{CASES, Case};

/// A program with the subcommand.
#[derive(Debug, Parser)]
#[command(name = "portolan", propagate_version = true, version)]
enum Portolan {
    /// The node agent: turns Services into virtual IPs on this node, in the place of kube-proxy.
    Proxy(Box<ProxyOptions>),
}

fn parse(arguments: &[&str]) -> Result<ProxyOptions, clap::Error> {
    let line = ["portolan", "proxy"].iter().chain(arguments).map(OsString::from);
    let Portolan::Proxy(options) = Portolan::try_parse_from(normalise(line))?;
    Ok(*options)
}

fn load(arguments: &[&str]) -> anyhow::Result<Loaded> {
    parse(arguments)?.load()
}

fn loaded(arguments: &[&str]) -> Loaded {
    load(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error:#}"))
}

/// Returns the field of the configuration at a dotted path.
fn field(loaded: &Loaded, path: &str) -> Value {
    let object = loaded.configuration.to_v1alpha1();
    path.split('.').fold(object, |value, name| value.get(name).cloned().unwrap_or(Value::Null))
}

fn flagz(loaded: &Loaded, name: &str) -> String {
    let found = loaded.flags.iter().find(|(flag, _)| flag == name);
    found.unwrap_or_else(|| panic!("--{name} is not in /flagz")).1.clone()
}

#[test]
fn a_command_that_connects_itself_takes_the_flags_of_the_connection() {
    let mut options = parse(&["--kubeconfig=k", "--master=http://m", "--proxy-mode=ipvs"]).unwrap();
    let connection = Connection { kubeconfig: Some("k".into()), master: Some("http://m".to_owned()) };
    assert_eq!(options.take_connection(), connection);
    assert_eq!(options.given().collect::<Vec<_>>(), ["proxy-mode"]);
    assert_eq!(options.take_connection(), Connection::default());
    let rest = options.load().unwrap();
    assert_eq!((rest.master, rest.configuration.client_connection.kubeconfig.as_str()), (None, ""));
    let mut options = parse(&["--kubeconfig="]).unwrap();
    assert_eq!(options.take_connection(), Connection::default(), "an empty text is none");
}

/// The kubeconfig of kubeadm's file exists in the pod only. The agent ignores the flag, as kube-proxy does.
#[test]
fn a_command_that_asks_for_an_agent_has_a_kubeconfig_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.conf");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
                clientConnection: {kubeconfig: /in/the/pod, qps: 7}\n";
    std::fs::write(&file, text).expect("a file");
    let options = parse(&[&format!("--config={}", file.display())[..], "--kubeconfig=/here"]).expect("flags");
    let (asked, agent) = (options.load_to_ask().expect("loaded"), options.load().expect("loaded"));
    let kubeconfig = |loaded: &Loaded| loaded.configuration.client_connection.kubeconfig.clone();
    assert_eq!((kubeconfig(&asked).as_str(), kubeconfig(&agent).as_str()), ("/here", "/in/the/pod"));
    assert_eq!((asked.notes.len(), agent.notes.len()), (0, 1), "{:?}", agent.notes);
    assert_eq!(field(&asked, "clientConnection.qps"), field(&agent, "clientConnection.qps"));
    let without = parse(&["--kubeconfig=/here"]).expect("flags").load_to_ask().expect("loaded");
    assert_eq!(kubeconfig(&without), "/here");
}

#[test]
fn every_flag_says_what_its_field_says() {
    for &Case { name, with, good, field: path, want, bad } in CASES {
        let want: Value = serde_json::from_str(want).expect("JSON in the table");
        let of = |value: &str| {
            let given = format!("--{name}={value}");
            load(&[with, &[given.as_str()]].concat())
        };
        let set = of(good).unwrap_or_else(|error| panic!("--{name}={good}: {error:#}"));
        assert_eq!(field(&set, path), want, "--{name}={good}");
        assert_ne!(field(&loaded(&[]), path), want, "--{name}: the value must not be the default");
        let Some(bad) = bad else { continue };
        let error = of(bad).map(|_| ()).expect_err(bad).to_string();
        assert!(error.contains(&format!("--{name}")), "--{name}={bad}: {error}");
    }
}

#[test]
fn every_flag_is_in_the_table() {
    let without_field = [
        "config",
        "config-reload",
        "empty-list-hold",
        "default-mode",
        "ipvs-fallback",
        "userspace-capture",
        "write-config-to",
        "cleanup",
        "only-ours",
        "init-only",
        "version",
        "master",
        "machine-id-file",
        "boot-id-file",
    ];
    let tested: BTreeSet<&str> = CASES.iter().map(|case| case.name).chain(without_field).collect();
    let known: BTreeSet<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    assert_eq!(tested, known);
    assert_eq!(known.len(), FLAGS.len(), "a flag is there twice");
    let fields: BTreeSet<&str> = portolan_node::config::fields().iter().map(|field| field.path).collect();
    for flag in FLAGS {
        // A flag may set a whole section.
        let section = format!("{}.", flag.field);
        let is_field = fields.iter().any(|field| *field == flag.field || field.starts_with(&section));
        assert!(flag.field.is_empty() || is_field, "{}", flag.name);
    }
}

#[test]
fn flags_without_effect_are_accepted() {
    for (name, good) in [("machine-id-file", "/a,/b"), ("boot-id-file", "/c")] {
        let set = loaded(&[&format!("--{name}={good}")]);
        assert_eq!((flagz(&set, name).as_str(), &set.configuration), (good, &Configuration::default()));
        assert!(set.notes.is_empty(), "{:?}", set.notes);
        assert_eq!(flagz(&loaded(&[&format!("--{name}")[..], good]), name), good);
        assert!(parse(&[&format!("--{name}")]).is_err(), "--{name} without a value");
    }
}

#[test]
fn no_flags_mean_the_defaults() {
    let none = loaded(&[]);
    assert_eq!(none.configuration, Configuration::default());
    assert_eq!((none.master.as_deref(), none.file.as_deref()), (None, None));
    assert!(none.notes.is_empty(), "{:?}", none.notes);
    for flag in FLAGS {
        assert_eq!(flagz(&none, flag.name), flag.default, "--{}", flag.name);
    }
    let options = parse(&[]).expect("no flags");
    assert!(!options.cleanup && !options.init_only && options.config_reload);
}

#[test]
fn booleans_are_read_as_go_reads_them() {
    for (given, want) in [
        ("--cleanup", true),
        ("--cleanup=true", true),
        ("--cleanup=1", true),
        ("--cleanup=T", true),
        ("--cleanup=False", false),
        ("--cleanup=0", false),
        ("--cleanup=f", false),
    ] {
        assert_eq!(parse(&[given]).expect(given).cleanup, want, "{given}");
    }
    assert!(!parse(&["--config_reload=false"]).expect("underscores").config_reload);
    assert!(parse(&["--init-only", "--cleanup=false"]).expect("two").init_only);
    // The value of a boolean needs `=`. A following word is a positional argument, and there are none.
    assert!(parse(&["--cleanup", "false"]).is_err());
    assert!(parse(&["--cleanup=maybe"]).is_err());
}

#[test]
fn the_last_use_counts_and_lists_add_up() {
    let set = loaded(&["--conntrack-min=1", "--conntrack-min", "2", "-v", "1", "-v=2", "-v3"]);
    assert_eq!((set.configuration.conntrack.min, set.configuration.logging.verbosity), (2, 3));
    let set = loaded(&["--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses", "11.0.0.0/8,12.0.0.0/8"]);
    assert_eq!(field(&set, "nodePortAddresses"), json!(["10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8"]));
    assert_eq!(flagz(&set, "nodeport-addresses"), "10.0.0.0/8,11.0.0.0/8,12.0.0.0/8");
    let set = loaded(&[
        "--feature-gates=ComponentFlagz=false",
        "--feature-gates=ComponentStatusz=0,ComponentFlagz=1",
    ]);
    assert!(set.gates.enabled("ComponentFlagz") && !set.gates.enabled("ComponentStatusz"));
    let set = loaded(&["--vmodule=a=1", "--vmodule=b=2"]);
    assert_eq!(set.configuration.logging.vmodule.len(), 2);
}

#[test]
fn empty_addresses_and_lists_count_as_not_given() {
    let empty = [
        "--bind-address=",
        "--healthz-bind-address=",
        "--metrics-bind-address",
        "",
        "--nodeport-addresses=",
        "--cluster-cidr=",
        "--proxy-mode=",
        "--hostname-override=",
    ];
    assert_eq!(loaded(&empty).configuration, Configuration::default());
    assert_eq!(loaded(&["--kube-api-qps=0", "--kube-api-burst=0"]).configuration, Configuration::default());
    let set = loaded(&["--bind-address=", "--bind-address=10.0.0.1"]);
    assert_eq!(field(&set, "bindAddress"), json!("10.0.0.1"));
    assert_eq!(field(&loaded(&["--bind-address=fd00::1"]), "healthzBindAddress"), json!("0.0.0.0:10256"));
}

#[test]
fn the_port_flags_fill_a_missing_port_or_switch_off() {
    let none = loaded(&["--healthz-port=12345"]);
    assert_eq!(field(&none, "healthzBindAddress"), json!("0.0.0.0:10256"), "there is a port already");
    assert!(none.notes.iter().any(|note| note.contains("--healthz-port is deprecated")), "{:?}", none.notes);
    let off = loaded(&["--healthz-port=0", "--metrics-port=0"]).configuration;
    assert_eq!((off.healthz_bind_address, off.metrics_bind_address), (None, None));
    let written = loaded(&["--healthz-port=0", "--write-config-to=/tmp/x"]).configuration;
    assert_eq!(written, Configuration::default());
}

#[test]
fn periods_go_to_the_modes_they_are_for() {
    let set = loaded(&["--iptables-sync-period=7m", "--ipvs-sync-period=9m"]).configuration;
    assert_eq!(set.sync_periods().0.as_secs(), 420);
    assert_eq!(set.iptables.sync_period, set.nftables.sync_period);
    let ipvs = loaded(&["--proxy-mode=ipvs"]).configuration;
    assert_eq!((ipvs.mode, ipvs.sync_periods().1.as_secs()), (Some(Mode::Ipvs), 1), "not the file's default");
    let long = loaded(&["--iptables-sync-period=5h", "--iptables-min-sync-period=2h"]).configuration;
    assert_eq!(long.sync_periods().1.as_secs(), 7200);
}

#[test]
fn all_errors_are_reported_together_with_their_flags() {
    let error = load(&[
        "--proxy-mode=fast",
        "--cluster-cidr=10.0.0.0/8,11.0.0.0/8",
        "--oom-score-adj=2000",
        "--conntrack-min=-1",
        "--feature-gates=Nftables=true",
        "--nodeport-addresses=x",
        "--iptables-min-sync-period=2h",
    ]);
    insta::assert_snapshot!(error.map(|_| ()).expect_err("many mistakes"), @r"
    the configuration is invalid:
      --nodeport-addresses: `x` is not a CIDR; write an address and a prefix length, such as 10.0.0.0/16 or fd00::/64
      --proxy-mode: `fast` is not supported; write one of: nftables, iptables, ipvs, userspace
      --feature-gates.Nftables: unrecognized feature gate; did you mean `NFTablesProxyMode`?
      --oom-score-adj: 2000 is out of range; write -1000 to 1000
      --conntrack-min: -1 is out of range; write 0 to 2147483647
      --iptables-min-sync-period: 2h0m0s is above syncPeriod (30s); write at most that
      --cluster-cidr: `10.0.0.0/8,11.0.0.0/8`: write one CIDR, or two of different families
    ");
}

#[test]
fn an_unknown_flag_is_an_error_with_status_1() {
    for given in [
        "x",
        "--nope",
        "--source-vip=1",
        "--windows-service",
        "--enable-dsr",
        "--network-name=a",
        "-x",
        "-masquerade-all",
    ] {
        let error = parse(&[given]).expect_err(given);
        assert!(
            error.use_stderr() && error.to_string().contains("Usage: portolan proxy"),
            "{given}: {error}"
        );
    }
    assert!(parse(&[""]).is_ok() && parse(&["--cleanup", "", "--", ""]).is_ok(), "empty ones are tolerated");
    assert!(!parse(&["--help"]).expect_err("the help").use_stderr());
    assert!(!parse(&["-h"]).expect_err("the help").use_stderr());
}

#[test]
fn versions() {
    let asked = |value: &str| parse(&[value]).expect(value).given.version("version");
    assert_eq!(asked("--version"), VersionFlag::Short);
    assert_eq!(asked("--version=true"), VersionFlag::Short);
    assert_eq!(asked("--version=false"), VersionFlag::No);
    assert_eq!(asked("--version=raw"), VersionFlag::Raw);
    assert_eq!(loaded(&["--version=v1.36.2-rc.1"]).version, "v1.36.2-rc.1");
    assert!(loaded(&[]).version.starts_with("v1.36.2+portolan-"));
    for bad in ["--version=v1.35.0", "--version=1.36.2", "--version=v1.36.20", "--version=x"] {
        assert!(parse(&[bad]).is_err(), "{bad}");
    }
    assert!(
        raw_version().starts_with("version.Info{Major:\"1\", Minor:\"36\", GitVersion:\"v1.36.2+portolan-")
    );
}

#[test]
fn numbers_are_read_as_go_reads_them() {
    let table = [
        ("0", Ok(0)),
        ("-5", Ok(-5)),
        ("+5", Ok(5)),
        ("0x1F", Ok(31)),
        ("017", Ok(15)),
        ("0o17", Ok(15)),
        ("0b11", Ok(3)),
        ("1_000", Ok(1000)),
        ("2147483647", Ok(i32::MAX)),
        ("-2147483648", Ok(i32::MIN)),
        ("2147483648", Err(())),
        ("", Err(())),
        ("-", Err(())),
        ("0x", Err(())),
        ("1.5", Err(())),
        ("--1", Err(())),
        ("08", Err(())),
    ];
    for (text, want) in table {
        assert_eq!(value::integer(text).map_err(|_| ()), want, "{text}");
    }
}

#[test]
fn local_modes_by_name() {
    let set = loaded(&["--detect-local-mode=NodeCIDR"]).configuration;
    assert_eq!(set.detect_local_mode, DetectLocalMode::NodeCidr);
}
