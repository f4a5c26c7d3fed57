//! The `portolan` binary: parses the command line, starts the subcommand and sets the exit code. The work itself is
//! in the other crates.

mod check_ips;
mod demo;
mod doctor;
mod logging;
mod privilege;
mod proxy;
mod reference;
mod serve;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use portolan_node::config::Logging;

/// Kubernetes Services as virtual IPs in the Linux kernel.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The node agent: turns Services into virtual IPs on this node, in the place of kube-proxy.
    Proxy(Box<proxy::Options>),
    /// Removes from this node what the proxy has programmed, in whatever mode, and what kube-proxy left.
    Cleanup(proxy::CleanupOptions),
    /// A Kubernetes-style API server for Services, for hosts without Kubernetes.
    Serve {
        #[command(flatten)]
        options: Box<serve::Options>,
        /// How much to log: 0 what operators need, 2 what happens, 4 what is decided.
        #[arg(short, long, default_value_t = 0)]
        v: u8,
    },
    #[command(name = "check-ips")]
    CheckIps(check_ips::Options),
    /// Shows Services at work: a small cluster in network namespaces on this machine.
    Demo(demo::Options),
    Doctor(portolan_doctor::Options),
    /// Prints a script that completes this program's command line.
    #[command(hide = true)]
    Completions(reference::Completions),
    /// Writes the manual pages.
    #[command(hide = true)]
    Man(reference::Man),
}

impl Command {
    /// Returns true if the command runs until a signal stops it and has nothing to finish: it may exit with status 0
    /// at any time.
    fn runs_until_signal(&self) -> bool {
        match self {
            Self::Proxy(options) => options.runs_until_signal(),
            Self::Serve { options, .. } => options.runs_until_signal(),
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let signals = portolan_sock::signals::hold();
    portolan_sock::memory::configure();
    let cli = match parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    if cli.command.runs_until_signal() {
        signals.end_with_success();
    } else {
        drop(signals);
    }
    match run(cli.command) {
        Ok(code) => code,
        Err(error) if tracing::dispatcher::has_been_set() => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    if proxy::is_kube_proxy(&arguments) {
        command = command.mut_subcommand("proxy", |proxy| proxy.override_usage("kube-proxy [OPTIONS]"));
    }
    let matches = command.try_get_matches_from_mut(proxy::normalise(arguments))?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Proxy(options) => {
            if !options.act()? {
                privilege::raise();
                proxy::run(&options)?;
            }
        }
        Command::Cleanup(options) => {
            privilege::raise();
            proxy::clean_up(&options)?;
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
        Command::Completions(options) => {
            // Completions are text on standard output and need no privilege, so a failure to give it up is ignored.
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
