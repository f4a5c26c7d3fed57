//! The binary `portolan`: parses the command line and starts the subcommand. The work itself is in the other crates.

mod check;
mod check_ips;
mod cluster;
mod doctor;
mod env;
mod explain;
mod objects;
mod output;
mod plan;
mod recorded;
mod reference;
mod serve;
mod snapshot;
mod up;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use portolan_demo as demo;
use portolan_logging as logging;
use portolan_node::config::Logging;
use portolan_proxy as proxy;
use portolan_proxy::privilege;
use portolan_proxy::program::{self, Program};

/// Kubernetes Services as virtual IPs in the Linux kernel.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What portolan can do as a plugin of kubectl.
#[derive(Debug, Parser)]
#[command(name = "kubectl portolan", bin_name = "kubectl portolan", version, propagate_version = true)]
struct Plugin {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    Explain(explain::ExplainOptions),
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(Box<up::UpOptions>),
    /// The node agent: turns Services into virtual IPs on this node, in the place of kube-proxy.
    Proxy(Box<proxy::ProxyOptions>),
    /// Removes from this node what the proxy has programmed, in whatever mode, and what kube-proxy left.
    Cleanup(proxy::CleanupOptions),
    Status(proxy::StatusOptions),
    /// A Kubernetes-style API server for Services, for hosts without Kubernetes.
    Serve {
        #[command(flatten)]
        options: Box<serve::ServeOptions>,
        /// How much to log: 0 what operators need, 2 what happens, 4 what is decided.
        #[arg(short, long, default_value_t = 0)]
        v: u8,
    },
    #[command(name = "check-ips")]
    CheckIps(check_ips::CheckIpsOptions),
    /// Shows Services at work: a small cluster in network namespaces on this machine.
    Demo(demo::DemoOptions),
    Doctor(doctor::DoctorCommand),
    Env(env::EnvOptions),
    Explain(explain::ExplainOptions),
    Snapshot(snapshot::SnapshotOptions),
    Plan(plan::PlanOptions),
    Check(check::CheckOptions),
    /// Prints a script that completes this program's command line.
    #[command(hide = true)]
    Completions(reference::Completions),
    /// Writes the manual pages.
    #[command(hide = true)]
    Man(reference::Man),
}

impl Program for Cli {
    fn from_arguments(arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        if proxy::is_kubectl_plugin(&arguments) {
            let Plugin { command: PluginCommand::Explain(options) } =
                Plugin::try_parse_from(proxy::normalise(arguments))?;
            return Ok(Self { command: Command::Explain(options.of_plugin()) });
        }
        let mut command = Self::command();
        if proxy::is_kube_proxy(&arguments) {
            command = command.mut_subcommand("proxy", |proxy| proxy.override_usage("kube-proxy [OPTIONS]"));
        }
        let matches = command.try_get_matches_from_mut(proxy::normalise(arguments))?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    fn runs_until_signal(&self) -> bool {
        match &self.command {
            Command::Proxy(options) => options.runs_until_signal(),
            Command::Serve { options, .. } => options.runs_until_signal(),
            Command::Up(options) => options.runs_until_signal(),
            Command::Cleanup(options) => options.waits(),
            _ => false,
        }
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Up(options) => {
                privilege::raise();
                return up::run(*options);
            }
            Command::Proxy(options) => proxy::run(&options)?,
            Command::Cleanup(options) => proxy::clean_up(&options)?,
            Command::Status(options) => {
                let _ = privilege::give_up();
                return proxy::show_status(&options);
            }
            Command::Serve { options, v } => {
                let given_up = privilege::give_up();
                logging::start(&Logging { verbosity: v.into(), ..Logging::default() })?;
                if let Err(error) = given_up {
                    tracing::warn!(%error, "CAP_NET_ADMIN is of no use here but could not be given up");
                }
                return serve::run(*options);
            }
            Command::CheckIps(options) => {
                let _ = privilege::give_up();
                return check_ips::run(&options);
            }
            // The demo writes for people, and shows the proxy's log only if something goes wrong.
            Command::Demo(options) => {
                privilege::give_up_unless_effective()?;
                return Ok(demo::run(&options));
            }
            Command::Doctor(options) => {
                privilege::raise();
                return doctor::run(&options);
            }
            Command::Env(options) => {
                let _ = privilege::give_up();
                env::run(&options)?;
            }
            Command::Explain(options) => {
                if options.reads_kernel() {
                    privilege::raise();
                } else {
                    let _ = privilege::give_up();
                }
                return explain::run(&options);
            }
            Command::Snapshot(options) => {
                if options.reads_kernel() {
                    privilege::raise();
                } else {
                    let _ = privilege::give_up();
                }
                snapshot::run(&options)?;
            }
            Command::Check(options) => {
                privilege::raise();
                return check::run(&options);
            }
            Command::Plan(options) => {
                if options.reads_kernel() {
                    privilege::raise();
                } else {
                    let _ = privilege::give_up();
                }
                return plan::run(&options);
            }
            Command::Completions(options) => {
                // Completions are text on standard output and need no privilege, so a failure to give it up is
                // ignored.
                let _ = privilege::give_up();
                reference::completions(&options);
            }
            Command::Man(options) => {
                let _ = privilege::give_up();
                reference::man(&options)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn main() -> ExitCode {
    program::main::<Cli>()
}
