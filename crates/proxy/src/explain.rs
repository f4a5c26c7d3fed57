//! The subcommand `explain` of `portolan-proxy`: asks the running agent about a packet, and prints its report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use portolan_node::config::CONTROL_SOCKET;

use crate::packets::{Asked, ask, print};

/// Asks the running proxy what happens to a packet: which Service port it meets, which endpoints may get it, and why; and
/// whether the kernel has that.
///
/// Exit codes: 0 reachable; 1 the question cannot be answered; 2 refused; 3 dropped; 4 not a Service's; 5 the kernel has
/// something else than what is wanted.
#[derive(Debug, Args)]
pub(crate) struct ExplainOptions {
    #[command(flatten)]
    asked: Asked,
    /// The control socket of the proxy.
    #[arg(long, value_name = "FILE", default_value = CONTROL_SOCKET)]
    socket: PathBuf,
}

/// Runs the subcommand. Returns its exit status.
///
/// # Errors
/// No proxy answers, it has no answer to the question, or the report cannot be written.
pub(crate) fn run(options: &ExplainOptions) -> anyhow::Result<ExitCode> {
    print(&ask(&options.socket, &options.asked.question())?, options.asked.output)
}
