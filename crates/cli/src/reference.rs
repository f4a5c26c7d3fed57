//! Generates shell completions and manual pages from the definition of the command line.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

/// Options of `portolan completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

/// Options of `portolan man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Folder to write the pages into.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(options: &Completions) {
    clap_complete::generate(options.shell, &mut crate::Cli::command(), "portolan", &mut std::io::stdout());
}

/// Writes one page for the program and one for each subcommand.
pub(crate) fn man(options: &Man) -> anyhow::Result<()> {
    let folder = || format!("--out: cannot write into {}", options.out.display());
    std::fs::create_dir_all(&options.out).with_context(folder)?;
    clap_mangen::generate_to(crate::Cli::command(), &options.out).with_context(folder)
}
