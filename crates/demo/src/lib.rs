//! `portolan demo`: a small cluster in network namespaces, and requests to its Services.
//!
//! The demo creates a node with pods, a second node and an outside client. It starts the API server and a real
//! `portolan proxy` on the node, and sends requests to check that Services work. Each step has an expected result.
//! The exit code tells whether all steps had it. Processes and namespaces end however the demo ends. If it is
//! interrupted, folders may stay in the temporary directory: former values of kernel settings (`portolan-state-…`), and
//! the manifests of `portolan demo up`.
//!
//! `portolan demo up` shows a host without Kubernetes (`up`).

mod changes;
mod cluster;
mod keep;
mod objects;
mod permission;
mod requests;
mod screen;
mod steps;
mod up;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use cluster::Cluster;
use screen::Screen;

/// Options of `portolan demo`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DemoOptions {
    /// Leave the cluster up at the end, until Ctrl-C, for a look at it by hand.
    #[arg(long)]
    keep: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Other demos.
#[derive(Debug, Subcommand)]
enum Part {
    /// A host without Kubernetes: one program serves a Service, checks its backends and answers for its name.
    Up,
}

/// The outcome of a step.
struct Finding {
    /// The result in one line.
    result: String,
    /// Deviations from the expected result.
    faults: Vec<String>,
}

/// Runs the demo. Returns success if every step had the expected result.
pub fn run(options: &DemoOptions) -> ExitCode {
    let play = || match options.part {
        None => play(options),
        Some(Part::Up) => up::play(),
    };
    match permission::obtain().and_then(|()| play()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("portolan demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play(options: &DemoOptions) -> anyhow::Result<bool> {
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

fn finish(options: &DemoOptions, screen: &mut Screen, cluster: &Cluster) -> anyhow::Result<()> {
    screen.table()?;
    screen.line(&"  * after the changes of endpoints")?;
    if options.keep { keep::until_interrupted(screen, cluster) } else { Ok(()) }
}
