//! `portolan demo`: a small cluster in network namespaces, and requests that find their backends.
//!
//! Builds a node with pods, a second node and an outside client, starts the API server and a real
//! `portolan proxy` on the node, and lets requests tell whether Services work. What is expected of each step
//! is checked, and the exit code says whether all of it held. Nothing of it has a name in the file system, so
//! that nothing is left however it ends.

mod changes;
mod cluster;
mod keep;
mod objects;
mod permission;
mod requests;
mod screen;
mod steps;

use std::process::ExitCode;

use clap::Args;

use cluster::Cluster;
use screen::Screen;

/// Options of `portolan demo`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leave the cluster up at the end, until Ctrl-C, for a look at it by hand.
    #[arg(long)]
    keep: bool,
}

/// What a step found.
struct Finding {
    /// In one line.
    result: String,
    /// What was not as expected.
    faults: Vec<String>,
}

/// Runs the demo. Success means that every step went as expected.
pub(crate) fn run(options: &Options) -> ExitCode {
    match permission::obtain().and_then(|()| play(options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("portolan demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play(options: &Options) -> anyhow::Result<bool> {
    let mut screen = Screen::new();
    let mut cluster = steps::set_up(&mut screen)?;
    let outcome =
        steps::show(&mut screen, &mut cluster).and_then(|()| finish(options, &mut screen, &cluster));
    if outcome.is_err() || screen.failures() > 0 {
        eprintln!("--- log of the proxy ---\n{}---", cluster.proxy_log());
    }
    outcome?;
    let passed = screen.failures() == 0;
    steps::take_down(&mut screen, cluster)?;
    screen.verdict()?;
    Ok(passed)
}

fn finish(options: &Options, screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    screen.table()?;
    screen.line(&"  * after the changes of endpoints")?;
    if options.keep { keep::until_interrupted(screen, cluster) } else { Ok(()) }
}
