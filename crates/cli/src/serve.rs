//! `portolan serve`: options in, the API server running.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_server::{Config, NodePortRange, ServiceRanges};
use tokio::signal::unix::{SignalKind, signal};

/// Options of `portolan serve`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on, in plain HTTP.
    #[arg(long, default_value = "127.0.0.1:8001", value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Allow plain HTTP on an address that other hosts can reach. There is no authentication yet.
    #[arg(long)]
    insecure_allow_non_loopback: bool,
    /// One or two CIDRs that cluster IPs are given from, the first being of the primary family.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR[,CIDR]")]
    service_cluster_ip_range: ServiceRanges,
    /// Ports that node ports are given from.
    #[arg(long, default_value = "30000-32767", value_name = "FIRST-LAST")]
    service_node_port_range: NodePortRange,
    /// Folder of YAML or JSON manifests to keep the objects in step with.
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// `ignore` stores objects that no API server would: for testing clients.
    #[arg(long, value_enum, default_value_t = Validation::Strict)]
    validation: Validation,
}

/// Whether objects are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Validation {
    /// As an API server does.
    Strict,
    /// Only well-formed JSON and metadata are asked for.
    Ignore,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("--listen: cannot listen on {}", options.listen))?;
        let address = listener.local_addr()?;
        let config = Config {
            listen: options.listen,
            insecure_allow_non_loopback: options.insecure_allow_non_loopback,
            service_ranges: options.service_cluster_ip_range,
            node_ports: options.service_node_port_range,
            validate: options.validation == Validation::Strict,
            manifests: options.manifests,
            ..Config::default()
        };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tracing::info!(%address, "serving the Kubernetes API");
        portolan_server::serve(config, listener, async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await?;
        Ok(())
    })
}
