//! Builds a world, runs a program in its node's namespace, and removes the world when the program ends.
//!
//! `portolan-world bash` opens a shell on a node with pods, for manual tests. The lines printed at the
//! start name the participants' namespaces for `nsenter --net=PATH`.

use std::env;
use std::process::ExitCode;

use portolan_testkit::{Pod, TestkitError, World};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some((program, rest)) = arguments.split_first() else {
        eprintln!("usage: portolan-world PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    match run(program, rest) {
        Ok(success) => ExitCode::from(u8::from(!success)),
        Err(error) => {
            eprintln!("portolan-world: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: &str, arguments: &[String]) -> Result<bool, TestkitError> {
    let world = World::new()?;
    let nodes = [world.node().namespace(), world.remote_node().namespace()];
    let pods = world.pods().iter().chain(world.remote_pods()).chain([world.client()]).map(Pod::namespace);
    for namespace in nodes.into_iter().chain(pods) {
        println!("{} {}", namespace.name(), namespace.path());
    }
    let mut command = world.node().namespace().command(program);
    let mut child = command.args(arguments).spawn()?;
    println!("started {}", child.id());
    let status =
        child.wait().map_err(|source| TestkitError::System { action: "wait for the program", source })?;
    Ok(status.success())
}
