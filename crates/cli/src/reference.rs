//! Generates shell completions and manual pages from the definition of the command line.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command, CommandFactory as _, ValueEnum};
use clap_complete::Shell;

/// Options of `portolan completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
    /// The program whose command line is completed.
    #[arg(long, value_enum, default_value_t = Program::Portolan)]
    program: Program,
}

/// The programs of this repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Program {
    Portolan,
    PortolanProxy,
}

impl Program {
    /// Returns its name and its command line.
    fn command(self) -> (&'static str, Command) {
        match self {
            Self::Portolan => ("portolan", crate::Cli::command()),
            Self::PortolanProxy => ("portolan-proxy", portolan_proxy::CommandLine::command()),
        }
    }
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
    let (name, mut command) = options.program.command();
    clap_complete::generate(options.shell, &mut command, name, &mut std::io::stdout());
}

/// Writes one page for the program and one for each subcommand. That of `portolan proxy` has the name of the binary
/// `portolan-proxy`, which has the same flags.
pub(crate) fn man(options: &Man) -> anyhow::Result<()> {
    let folder = || format!("--out: cannot write into {}", options.out.display());
    std::fs::create_dir_all(&options.out).with_context(folder)?;
    clap_mangen::generate_to(crate::Cli::command(), &options.out).with_context(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        crate::Cli::command().debug_assert();
        crate::Plugin::command().debug_assert();
    }

    #[test]
    fn completions_and_manual_pages_have_the_flags() {
        for program in Program::value_variants() {
            let (name, mut command) = program.command();
            let mut script = Vec::new();
            clap_complete::generate(Shell::Bash, &mut command, name, &mut script);
            assert!(String::from_utf8_lossy(&script).contains("--metrics-bind-address"), "{name}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        clap_mangen::generate_to(crate::Cli::command(), folder.path()).expect("manual pages");
        let page = std::fs::read_to_string(folder.path().join("portolan-proxy.1")).expect("the proxy's page");
        assert!(page.contains("metrics\\-bind\\-address"), "{page}");
    }
}
