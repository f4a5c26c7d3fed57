//! `portolan up --dry-run`: what a start would do. The objects are checked by an API in memory.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use portolan_proxy::packets::Configured;
use portolan_serve::manifests::{Follower, Keeper};
use portolan_serve::{Api, ApiConfig};

use super::screen::{self, Row};
use super::{Plan, host, print, services};

/// Prints what a start would do.
pub(super) fn run(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tried = runtime.block_on(try_out(plan))?;
    print(&text(plan, &tried)?);
    Ok(())
}

/// The objects of the command line and of the manifests, as an API has accepted them.
#[derive(Default)]
struct Tried {
    rows: Vec<Row>,
    /// What is wrong in manifests.
    complaints: Vec<String>,
}

async fn try_out(plan: &Plan) -> anyhow::Result<Tried> {
    let api = plan.options.server.api();
    api.check().map_err(|error| anyhow::anyhow!("--{error}"))?;
    // No probe ever passes here, and endpoints that wait for one are not counted.
    let api = Arc::new(Api::new(&ApiConfig { health_checked: None, ..api }));
    let keeper = Keeper::start(Arc::clone(&api), &plan.given()).await?;
    let mut tried = Tried::default();
    if let Some(folder) = &plan.options.server.manifests {
        let read = Follower::start_beside(Arc::clone(&api), folder.clone(), keeper.reserved()).await;
        let read =
            read.map_err(|error| anyhow::anyhow!("--manifests: cannot read {}: {error}", folder.display()))?;
        tried.complaints.extend(read.complaints().map(str::to_owned));
    }
    tried.rows = screen::rows(&api);
    Ok(tried)
}

fn text(plan: &Plan, Tried { rows, complaints }: &Tried) -> anyhow::Result<String> {
    let Plan { options, agent, node, .. } = plan;
    let addresses = if options.node_ip.is_empty() { host::addresses().ips } else { options.node_ip.clone() };
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mode = Configured::load(agent)?.mode_name().unwrap_or("that fits this host");
    let data_dir = options.server.data_dir.display();
    let mut text = String::from("A start would:\n");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  keep its data in {data_dir}{}", presence(&options.server.data_dir));
    let _ = writeln!(text, "  serve the Kubernetes API at {}", options.server.listen);
    if options.server.tls.has_tls() {
        let _ =
            writeln!(text, "  write {}, a kubeconfig with all permissions", options.kubeconfig().display());
    }
    let _ =
        writeln!(text, "  register Node {node} with {}, if nothing else has made it", addresses.join(", "));
    if !options.no_ip_forward {
        text.push_str("  turn on the forwarding of packets, if it is off\n");
    }
    for part in options.server.optional_parts() {
        let _ = writeln!(text, "  {part}");
    }
    if options.passive_health_checks {
        text.push_str("  set endpoints aside for a while if connections to them fail\n");
    }
    if options.server.has_health_checks() {
        for service in services::unchecked(&options.services) {
            let _ = writeln!(
                text,
                "  not probe the endpoints of {service}, because it has a port that is not TCP"
            );
        }
    }
    let _ = writeln!(text, "  program these Services in the mode {mode}, and those that {data_dir} has:");
    if rows.is_empty() {
        text.push_str("    none\n");
    }
    for Row { service, port, protocol, node_port, backends, .. } in rows {
        let at = if node_port.is_some() { ", with a node port" } else { "" };
        let plural = if *backends == 1 { "" } else { "s" };
        let _ = writeln!(text, "    {service} {port}/{protocol}{at} -> {backends} backend{plural}");
    }
    if !complaints.is_empty() {
        text.push_str("  leave these documents of manifests out:\n");
    }
    for complaint in complaints {
        let _ = writeln!(text, "    {complaint}");
    }
    text.push_str(
        "Cluster IPs and node ports that no manifest names are chosen at the first start, and kept.\n\
         Objects that are stored already were not compared: a start may refuse a Service for their sake.\n\
         Nothing was changed. `portolan plan` compares the rules of this host with those of manifests.\n",
    );
    Ok(text)
}

fn presence(folder: &Path) -> &'static str {
    if folder.exists() { "" } else { ", which it makes" }
}
