//! The command line of `portolan-proxy`: the flags of kube-proxy, and the subcommands `cleanup`, `status` and `explain`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::explain;
use crate::options::{is_kube_proxy, normalise_flags};
use crate::program::Program;
use crate::{CleanupOptions, ProxyOptions, StatusOptions};

/// The node agent: turns Services into virtual IPs on this node, in the place of kube-proxy.
#[derive(Debug, Parser)]
#[command(name = "portolan-proxy", args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct CommandLine {
    #[command(flatten)]
    options: ProxyOptions,
    #[command(subcommand)]
    action: Option<Action>,
}

/// What the program can do besides running.
#[derive(Debug, Subcommand)]
enum Action {
    /// Removes from this node what the proxy has programmed, in whatever mode, and what kube-proxy left.
    Cleanup(CleanupOptions),
    Status(StatusOptions),
    Explain(explain::ExplainOptions),
}

/// Returns the command line of the program when it is called as `kube-proxy`, which has no subcommands.
fn kube_proxy() -> Command {
    let about = CommandLine::command().get_about().cloned().unwrap_or_default();
    ProxyOptions::augment_args(Command::new("kube-proxy").about(about))
}

impl Program for CommandLine {
    fn from_arguments(arguments: Vec<OsString>) -> Result<Self, clap::Error> {
        let mut command = if is_kube_proxy(&arguments) { kube_proxy() } else { Self::command() };
        let matches = command.try_get_matches_from_mut(normalise_flags(arguments))?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    fn runs_until_signal(&self) -> bool {
        match &self.action {
            Some(Action::Cleanup(options)) => options.waits(),
            Some(_) => false,
            None => self.options.runs_until_signal(),
        }
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match &self.action {
            Some(Action::Cleanup(options)) => crate::clean_up(options)?,
            Some(Action::Status(options)) => {
                // It asks and needs no privilege, so a failure to give it up is ignored.
                let _ = crate::privilege::give_up();
                return crate::show_status(options);
            }
            Some(Action::Explain(options)) => {
                let _ = crate::privilege::give_up();
                return explain::run(options);
            }
            None => crate::run(&self.options)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<CommandLine, clap::Error> {
        CommandLine::from_arguments(line.split(' ').map(OsString::from).collect())
    }

    /// Returns the error, which is also the form of the help.
    fn error(line: &str) -> String {
        parse(line).map(|_| ()).expect_err(line).to_string()
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
        kube_proxy().debug_assert();
    }

    #[test]
    fn the_flags_are_those_of_kube_proxy() {
        let parsed = parse("portolan-proxy --cluster_cidr=10.0.0.0/8  -v 2 --cleanup").expect("flags");
        assert!(parsed.action.is_none() && parsed.options.cleanup && !parsed.runs_until_signal());
        assert!(parse("portolan-proxy").expect("no flags").runs_until_signal());
        assert!(parse("portolan-proxy --master cleanup").expect("a value").runs_until_signal());
        for line in ["portolan-proxy proxy", "portolan-proxy --nope", "portolan-proxy --source-vip=1"] {
            assert!(error(line).contains("Usage: portolan-proxy [OPTIONS]"), "{line}: {}", error(line));
        }
    }

    #[test]
    fn the_subcommand_has_its_own_flags() {
        let parsed = parse("portolan-proxy cleanup --only_ours --config a_b").expect("a subcommand");
        assert!(matches!(parsed.action, Some(Action::Cleanup(_))) && !parsed.runs_until_signal());
        assert!(parse("portolan-proxy cleanup --wait").expect("a subcommand").runs_until_signal());
        let help = error("portolan-proxy cleanup --help");
        assert!(help.contains("Usage: portolan-proxy cleanup [OPTIONS]"), "{help}");
        let parsed = parse("portolan-proxy status -o json --service a/b").expect("a subcommand");
        assert!(matches!(parsed.action, Some(Action::Status(_))) && !parsed.runs_until_signal());
        assert!(error("portolan-proxy status -o xml").contains("[possible values: text, json, yaml]"));
        assert!(error("portolan-proxy status --socket /a --url http://b").contains("cannot be used with"));
        assert!(error("portolan-proxy --v=2 cleanup").contains("cannot be used with"));
        let parsed =
            parse("portolan-proxy explain node 10.96.0.1:443 --socket /a -o json").expect("a subcommand");
        assert!(matches!(parsed.action, Some(Action::Explain(_))) && !parsed.runs_until_signal());
        assert!(error("portolan-proxy explain nobody 10.96.0.1:443").contains("`nobody` is no sender"));
    }

    #[test]
    fn called_kube_proxy_it_has_no_subcommand() {
        assert!(parse("/usr/local/bin/kube-proxy --bind_address ::1").expect("flags").runs_until_signal());
        assert!(error("kube-proxy cleanup").contains("unexpected argument 'cleanup'"));
        let help = error("kube-proxy --help");
        assert!(help.contains("Usage: kube-proxy [OPTIONS]") && help.starts_with("The node agent"), "{help}");
    }
}
