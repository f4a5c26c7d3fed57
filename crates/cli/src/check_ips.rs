//! `portolan check-ips`: audits the cluster IPs and node ports of any cluster. Read-only.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_serve::json::Value;
use portolan_serve::{
    LoadBalancerRanges, NodePortRange, ServiceRanges,
    audit::{Cluster, Report},
};
use portolan_watch::{Client, ClientSettings, connect, objects::list_all};

/// Services are read first: their addresses were allocated earlier, so they are in the collections that are read
/// later.
const SERVICES: &str = "/api/v1/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const NODES: &str = "/api/v1/nodes";
/// Delay before the second audit. The collections are read one after the other while the cluster changes, so only
/// findings of both audits are reported.
const SECOND_LOOK: Duration = Duration::from_secs(2);
/// Exit code for findings about the cluster. An error of the check itself has exit code 1.
pub(crate) const FINDINGS: u8 = 2;

/// Compares the cluster IPs and node ports of Services with each other, with the ranges and with the IPAddress objects,
/// and the ranges with the Nodes. Nothing is written.
///
/// Exit codes: 0 nothing is wrong; 1 the cluster could not be read; 2 something is wrong.
#[derive(Debug, Args)]
pub(crate) struct CheckIpsOptions {
    /// The kubeconfig file; in a pod, its service account is used without.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Another context of it than the current one.
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// URL of the API server, in place of the kubeconfig's.
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Range of node ports of the cluster.
    #[arg(long, default_value = "30000-32767", value_name = "FIRST-LAST")]
    service_node_port_range: NodePortRange,
    /// Ranges of cluster IPs of a cluster that has no ServiceCIDRs (Kubernetes before 1.33).
    #[arg(long, value_name = "CIDR[,CIDR]")]
    service_cluster_ip_range: Option<ServiceRanges>,
    /// Ranges of load-balancer addresses of a Portolan server: what is outside of them or not recorded is found, too.
    #[arg(long, value_name = "CIDR,...")]
    load_balancer_ip_range: Option<LoadBalancerRanges>,
}

/// Form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// One finding a line.
    Text,
    /// One JSON object.
    Json,
}

/// Audits the cluster and prints the report.
pub(crate) fn run(options: &CheckIpsOptions) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let settings = ClientSettings {
            kubeconfig: options.kubeconfig.clone(),
            context: options.context.clone(),
            master: options.master.clone(),
            qps: -1.0,
            ..ClientSettings::default()
        };
        let client = connect(&settings).await?;
        let first = look(&client, options).await?;
        if first.is_clean() {
            return Ok(first);
        }
        tokio::time::sleep(SECOND_LOOK).await;
        anyhow::Ok(look(&client, options).await?.also_in(&first))
    })?;
    print(&report, options.output)
}

/// Prints a report. The exit code is 0 if the report is clean, else [`FINDINGS`].
pub(crate) fn print(report: &Report, output: Output) -> anyhow::Result<ExitCode> {
    let text = match output {
        Output::Text => report.to_string(),
        Output::Json => format!("{:#}\n", report.to_json()),
    };
    portolan_proxy::print(&text).context("cannot write the report")?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) })
}

/// Lists all objects of a collection, as JSON for the audit.
async fn list(client: &Client, path: &str) -> anyhow::Result<Option<Vec<Value>>> {
    let objects = list_all(client, path).await?;
    Ok(objects.map(|objects| objects.into_iter().map(Value::from).collect()))
}

async fn look(client: &Client, options: &CheckIpsOptions) -> anyhow::Result<Report> {
    let mut notes = Vec::new();
    let mut cluster = Cluster::new(options.service_node_port_range);
    if let Some(ranges) = &options.load_balancer_ip_range {
        cluster = cluster.with_load_balancers(ranges.clone());
    }
    let services = list(client, SERVICES).await?.context("the API server has no Services")?;
    for service in services.iter().filter_map(Value::as_object) {
        cluster.add_service(service);
    }
    if let Some(addresses) = list(client, ADDRESSES).await? {
        cluster.knows_addresses();
        for address in addresses.iter().filter_map(Value::as_object) {
            cluster.add_address(address);
        }
    } else {
        notes
            .push("the API server has no IPAddresses: Services are compared with each other only".to_owned());
    }
    match (list(client, RANGES).await?, &options.service_cluster_ip_range) {
        (Some(cidrs), _) => {
            for cidr in cidrs.iter().filter_map(Value::as_object) {
                cluster.add_service_cidr(cidr);
            }
        }
        (None, Some(ranges)) => cluster.add_configured(ranges),
        (None, None) => {
            anyhow::bail!("the API server has no ServiceCIDRs: give its ranges by --service-cluster-ip-range")
        }
    }
    match list(client, NODES).await {
        Ok(found) => {
            for node in found.iter().flatten().filter_map(Value::as_object) {
                cluster.add_node(node);
            }
        }
        // A client may lack the permission for Nodes only.
        Err(error) => notes.push(format!("Nodes are not compared with the ranges: {error:#}")),
    }
    notes.push(
        "which node ports the cluster has recorded is not served: leaked ones cannot be seen".to_owned(),
    );
    Ok(cluster.report(SystemTime::now(), notes))
}
