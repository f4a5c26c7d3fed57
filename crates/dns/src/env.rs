//! Environment variables of Services: `portolan env`.
//!
//! [`variables`] computes what a kubelet gives to the containers of a namespace. [`VariableOptions::text`] writes it for a shell
//! or for systemd. All of it is pure; the caller reads the Services.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use clap::{Args, ValueEnum};

use crate::object::{Kind, ObjectName, Protocol, Service};

#[cfg(test)]
mod tests;

/// Namespace of the Service that all namespaces have variables of.
const DEFAULT_NAMESPACE: &str = "default";
/// Name of that Service: the API server's.
const API_SERVER: &str = "kubernetes";

/// Prints the environment variables that Kubernetes gives to containers: addresses and ports of the Services of a
/// namespace. In a shell: eval "$(portolan env --export)".
#[derive(Debug, Clone, Args)]
pub struct VariableOptions {
    /// The namespace whose Services are printed. The Service `kubernetes` of the namespace `default` is always printed.
    #[arg(short, long, default_value = DEFAULT_NAMESPACE, value_name = "NAMESPACE")]
    pub namespace: String,
    /// Form of the lines.
    #[arg(long, value_enum, default_value_t = Format::Shell)]
    pub format: Format,
    /// Writes `export` before each line, so that programs started by the shell see the variables.
    #[arg(long)]
    pub export: bool,
}

/// Form of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For `eval` in a POSIX shell.
    Shell,
    /// For `EnvironmentFile=` of systemd.
    Systemd,
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Name. It may begin with a digit, which Kubernetes allows and shells do not.
    pub name: String,
    /// Value: an address, a port, a protocol, or a URL of these.
    pub value: String,
}

/// Returns the variables of a namespace: those of its Services by name, and of `kubernetes` in `default` if the
/// namespace has no Service of that name. Services without a cluster IP have none.
pub fn variables<'a>(services: impl IntoIterator<Item = &'a Service>, namespace: &str) -> Vec<Variable> {
    let mut visible = BTreeMap::<&str, &Service>::new();
    for service in services {
        let ObjectName { namespace: of, name } = &service.name;
        if **of == *namespace {
            visible.insert(name, service);
        } else if **of == *DEFAULT_NAMESPACE && **name == *API_SERVER {
            visible.entry(name).or_insert(service);
        }
    }
    visible.into_values().flat_map(of_service).collect()
}

/// The order is the kubelet's: host and ports first, then the variables of Docker links.
fn of_service(service: &Service) -> Vec<Variable> {
    let Kind::ClusterIps(ips) = &service.kind else { return Vec::new() };
    let Some(ip) = ips.first() else { return Vec::new() };
    let prefix = variable_name(&service.name.name);
    let mut all = vec![variable(format!("{prefix}_SERVICE_HOST"), ip.to_string())];
    if let Some(first) = service.ports.first() {
        all.push(variable(format!("{prefix}_SERVICE_PORT"), first.number.to_string()));
    }
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(&port.name));
        all.push(variable(name, port.number.to_string()));
    }
    for (index, port) in service.ports.iter().enumerate() {
        let url = url(port.protocol, *ip, port.number);
        if index == 0 {
            all.push(variable(format!("{prefix}_PORT"), url.clone()));
        }
        let link = format!("{prefix}_PORT_{}_{}", port.number, port.protocol);
        all.push(variable(link.clone(), url));
        all.push(variable(format!("{link}_PROTO"), lower(port.protocol)));
        all.push(variable(format!("{link}_PORT"), port.number.to_string()));
        all.push(variable(format!("{link}_ADDR"), ip.to_string()));
    }
    all
}

fn variable(name: String, value: String) -> Variable {
    Variable { name, value }
}

fn variable_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

fn lower(protocol: Protocol) -> String {
    protocol.name().to_ascii_lowercase()
}

fn url(protocol: Protocol, ip: IpAddr, port: u16) -> String {
    format!("{}://{}", lower(protocol), SocketAddr::new(ip, port))
}

impl VariableOptions {
    /// Returns the lines for the variables of [`VariableOptions::namespace`], and the names that are left out because no shell
    /// and no unit can have a variable of that name.
    pub fn text<'a>(&self, services: impl IntoIterator<Item = &'a Service>) -> (String, Vec<String>) {
        let mut text = String::new();
        let mut left_out = Vec::new();
        let export = if self.export { "export " } else { "" };
        for Variable { name, value } in variables(services, &self.namespace) {
            if !is_variable_name(&name) {
                left_out.push(name);
                continue;
            }
            // Writing to a string does not fail.
            let _ = match self.format {
                Format::Shell => writeln!(text, "{export}{name}='{}'", value.replace('\'', r"'\''")),
                Format::Systemd => {
                    writeln!(text, "{name}=\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
                }
            };
        }
        (text, left_out)
    }
}

fn is_variable_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty() && name.bytes().all(allowed)
}
