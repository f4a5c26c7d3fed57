//! The optional parts of `portolan serve`: names of Services and health checks.

use std::net::SocketAddr;

use clap::{ArgAction, Args};
use portolan_serve::{AddonsConfig, Forward, HealthChecks, NamesConfig};

/// Share of the files that may be open which probes get, besides connections of clients.
const PROBE_FILES: usize = 4;

/// Everything is off by default.
#[derive(Debug, Args)]
pub(super) struct AddonOptions {
    /// Probe the endpoints of Services with the annotation portolan.dev/health-check, and write the result into their
    /// EndpointSlices. `portolan up` gives its Services of arguments this annotation if all their ports are TCP.
    #[arg(long)]
    health_checks: bool,
    /// Answer DNS requests for the names of Services at these addresses, over UDP and TCP. Pods need an address of this
    /// node: with port 10053, for example, beside another server at port 53.
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',')]
    dns_listen: Vec<SocketAddr>,
    /// What the names of Services end with.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    cluster_domain: String,
    /// Ask these servers about other names, or those of a file such as /etc/resolv.conf. Without it they are refused.
    #[arg(long, value_name = "FILE|IP[:PORT],...", requires = "dns_listen")]
    dns_forward: Option<Forward>,
    /// Make the Service kube-system/kube-dns, through which pods reach the addresses of --dns-listen.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    dns_service: bool,
}

impl AddonOptions {
    /// Returns true if endpoints are probed.
    pub(super) const fn has_health_checks(&self) -> bool {
        self.health_checks
    }

    /// Returns what these parts do at a start, one line for each that is on.
    pub(super) fn described(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.dns_listen.is_empty() {
            let addresses: Vec<String> = self.dns_listen.iter().map(ToString::to_string).collect();
            let forward = if self.dns_forward.is_some() { ", and forward other names" } else { "" };
            let (domain, addresses) = (&self.cluster_domain, addresses.join(", "));
            lines.push(format!("answer DNS requests for names below {domain} at {addresses}{forward}"));
        }
        if self.health_checks {
            lines
                .push("probe the endpoints of Services that have an annotation for health checks".to_owned());
        }
        lines
    }

    /// Returns the settings of a server that may open `files` files. `is_shared`: other servers may use its store.
    pub(super) fn config(self, files: usize, is_shared: bool) -> AddonsConfig {
        let names = NamesConfig {
            listen: self.dns_listen,
            domain: self.cluster_domain,
            forward: self.dns_forward,
            service: self.dns_service,
        };
        let usual = HealthChecks::default();
        let most_probes = usual.most_probes.min(files / PROBE_FILES).max(1);
        AddonsConfig {
            names: (!names.listen.is_empty()).then_some(names),
            health_checks: self.health_checks.then_some(HealthChecks { is_shared, most_probes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: AddonOptions,
    }

    fn parse(arguments: &[&str]) -> Result<AddonsConfig, String> {
        let line = Line::try_parse_from(["x"].iter().chain(arguments));
        line.map(|line| line.options.config(1024, true)).map_err(|error| error.to_string())
    }

    #[test]
    fn everything_is_off_by_default() {
        for arguments in [&[][..], &["--cluster-domain=example.org"], &["--dns-service=false"]] {
            let config = parse(arguments).unwrap();
            assert!(config.names.is_none() && config.health_checks.is_none(), "{arguments:?}");
        }
    }

    #[test]
    fn flags_and_their_defaults() {
        let config = parse(&["--health-checks", "--dns-listen=192.0.2.1:10053,[2001:db8::1]:53"]).unwrap();
        let health_checks = config.health_checks.unwrap();
        assert_eq!((health_checks.is_shared, health_checks.most_probes), (true, 256));
        let names = config.names.unwrap();
        assert_eq!(names.listen, ["192.0.2.1:10053".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        assert_eq!((names.domain.as_str(), names.forward, names.service), ("cluster.local", None, true));
        let given = [
            "--dns-listen=192.0.2.1:53",
            "--dns-forward=192.0.2.53,192.0.2.54:5353",
            "--dns-service=false",
            "--cluster-domain=example.org",
        ];
        let names = parse(&given).unwrap().names.unwrap();
        assert_eq!((names.domain.as_str(), names.service), ("example.org", false));
        assert_eq!(names.forward, Some("192.0.2.53:53,192.0.2.54:5353".parse().unwrap()));
    }

    #[test]
    fn every_flag_is_documented() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let page = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
        let (names, health_checks) = (page("dns.md"), page("health-checks.md"));
        let command = <Line as clap::CommandFactory>::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        assert!(flags.len() > 4, "{flags:?}");
        for flag in flags {
            let is_in_table = names.contains(&format!("| `--{flag}` |"));
            let is_in_text = health_checks.contains(&format!("`--{flag}`"));
            assert!(
                is_in_table || is_in_text,
                "--{flag} is neither in docs/dns.md nor in docs/health-checks.md"
            );
        }
    }

    #[test]
    fn mistakes_name_the_flag_and_the_mend() {
        for (arguments, part) in [
            (&["--dns-listen=192.0.2.1"][..], "--dns-listen"),
            (&["--dns-forward=/etc/resolv.conf"], "--dns-listen"),
            (&["--dns-listen=192.0.2.1:53", "--dns-forward=resolv.conf"], "write IP or IP:PORT"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
    }
}
