//! `portolan env`: prints the environment variables of Services of any cluster. Read-only.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use portolan_dns::{Service, env};
use portolan_watch::{ClientSettings, connect, objects::list_all};
use serde_json::Value;

use crate::serve::DATA_DIR;

const SERVICES: &str = "/api/v1/services";
/// The kubeconfig of an administrator in the folder of the API server's data.
const ADMIN_KUBECONFIG: &str = "admin.conf";
/// The variable that containers of a cluster have: the address of its API server.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

/// Prints the environment variables that Kubernetes gives to containers: addresses and ports of the Services of a
/// namespace. In a shell: eval "$(portolan env --export)".
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct EnvOptions {
    #[command(flatten)]
    form: env::VariableOptions,
    /// The kubeconfig file. Without it, the service account is used in a pod, and admin.conf in the data folder elsewhere.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Another context of it than the current one.
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// Folder of the API server's data.
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
}

/// Reads the Services and prints the variables.
pub(crate) fn run(options: &EnvOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let objects = runtime.block_on(async {
        let settings = ClientSettings {
            kubeconfig: options.kubeconfig()?,
            context: options.context.clone(),
            qps: -1.0,
            ..ClientSettings::default()
        };
        let client = connect(&settings).await?;
        list_all(&client, SERVICES).await?.context("the API server has no Services")
    })?;
    let services = objects.iter().filter_map(service);
    let services: Vec<Service> = services.collect();
    let (text, left_out) = options.form.text(&services);
    for name in left_out {
        eprintln!("left out, because no shell can have a variable of this name: {name}");
    }
    portolan_proxy::print(&text).context("cannot write the variables")
}

impl EnvOptions {
    fn kubeconfig(&self) -> anyhow::Result<Option<PathBuf>> {
        if self.kubeconfig.is_some() || std::env::var_os(IN_CLUSTER).is_some() {
            return Ok(self.kubeconfig.clone());
        }
        let file = self.data_dir.join(ADMIN_KUBECONFIG);
        anyhow::ensure!(
            file.exists(),
            "there is no {}: give --kubeconfig, or make a file with `portolan serve kubeconfig --role read-only`",
            file.display()
        );
        Ok(Some(file))
    }
}

/// Decodes a Service. One that cannot be decoded is reported and has no variables.
fn service(object: &Value) -> Option<Service> {
    let name = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Service::try_from(object)
        .inspect_err(|error| {
            eprintln!("left out: {}/{}: {error}", name("/metadata/namespace"), name("/metadata/name"));
        })
        .ok()
}
