//! The rules of the older iptables. The kernel lists them only to its own programs, which run only if it has tables.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

use portolan_model::Family;
use portolan_node::sysctl::Host;

use crate::rules::{Chain, saved};

/// Why the rules cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No program for them is installed.
    #[error("the kernel has tables of it, and {program} is not installed")]
    NoProgram {
        /// The missing program.
        program: &'static str,
    },
    /// The program cannot be started.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The program failed.
    #[error("{program} failed ({status}): {message}")]
    Failed {
        /// The program.
        program: &'static str,
        /// The exit status.
        status: ExitStatus,
        /// The program's error output.
        message: String,
    },
}

/// Returns the chains of each family. A family without tables is left out.
pub(super) fn read(host: &Host) -> Vec<(Family, Result<Vec<Chain>, Error>)> {
    let families = [
        (Family::Ipv4, "/proc/thread-self/net/ip_tables_names", ["iptables-legacy-save", "iptables-save"]),
        (Family::Ipv6, "/proc/thread-self/net/ip6_tables_names", ["ip6tables-legacy-save", "ip6tables-save"]),
    ];
    let mut read = Vec::new();
    for (family, names, programs) in families {
        // Most nodes have no such file. Only root may read it; without root, nftables cannot be read either.
        if host.read(names).is_some_and(|tables| !tables.is_empty()) {
            read.push((family, save(programs).map(|text| saved::chains(family, &text))));
        }
    }
    read
}

/// Runs the first of two programs that reads the older tables. The second name may be that of a front end of nftables.
fn save([legacy, plain]: [&'static str; 2]) -> Result<String, Error> {
    let found = [legacy, plain].into_iter().find(|program| is_legacy(program));
    let program = found.ok_or(Error::NoProgram { program: legacy })?;
    let output = Command::new(program).stdin(Stdio::null()).output();
    let output = output.map_err(|source| Error::Start { program, source })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Failed { program, status: output.status, message });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if the program is installed and no front end of nftables.
fn is_legacy(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("legacy"))
}
