//! The binary `portolan-proxy`: the node agent and nothing else. The binary `portolan` has it as a subcommand.

use std::process::ExitCode;

use portolan_proxy::CommandLine;
use portolan_proxy::program;

fn main() -> ExitCode {
    program::main::<CommandLine>()
}
