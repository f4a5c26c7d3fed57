//! The `portolan` binary: command line, wiring, exit codes. What it wires lives in the other rooms.

mod demo;
mod logging;
mod privilege;
mod proxy;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Kubernetes Services as virtual IPs in the Linux kernel.
#[derive(Debug, Parser)]
#[command(name = "portolan", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How much to log: 0 what operators need, 2 what happens, 4 what is decided.
    #[arg(short, long, global = true, default_value_t = 0)]
    v: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The node agent: turns Services into virtual IPs on this node, in the place of kube-proxy.
    Proxy(Box<proxy::Options>),
    /// A Kubernetes-style API server for Services, for hosts without Kubernetes.
    Serve(serve::Options),
    /// Shows Services at work: a small cluster in network namespaces on this machine.
    Demo(demo::Options),
}

fn main() -> ExitCode {
    privilege::raise_net_admin();
    portolan_sock::memory::configure();
    let cli = Cli::parse();
    // The demo writes for people, and shows the proxy's log only if something goes wrong.
    if !matches!(cli.command, Command::Demo(_)) {
        logging::start(cli.v);
    }
    let outcome = match cli.command {
        Command::Proxy(options) => proxy::run(&options),
        Command::Serve(options) => serve::run(options),
        Command::Demo(options) => return demo::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
