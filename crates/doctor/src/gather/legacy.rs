//! The rules of the older iptables. The kernel lists them only to its own programs, which run only if it has tables.

use std::io;
use std::process::{Command, ExitStatus, Stdio};

use portolan_model::Family;
use portolan_node::sysctl::Host;

use crate::rules::{Chain, saved};

/// Why the rules cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Whether the kernel has tables of it is not known.
    #[error("cannot read {file}, which lists its tables: {source}")]
    Unreadable {
        /// The list of the tables.
        file: &'static str,
        /// The system's error.
        source: io::Error,
    },
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
        match tables(host, names) {
            Ok(true) => read.push((family, save(programs).map(|text| saved::chains(family, &text)))),
            Ok(false) => {}
            Err(error) => read.push((family, Err(error))),
        }
    }
    read
}

/// Returns true if a list of tables has any. Most nodes have no such file, because the kernel makes it with the first table of
/// any network namespace. Only root may read it: a user with `CAP_NET_ADMIN` can read nftables, and not this file.
fn tables(host: &Host, file: &'static str) -> Result<bool, Error> {
    let tables = host.read_if_there(file).map_err(|source| Error::Unreadable { file, source })?;
    Ok(tables.is_some_and(|tables| !tables.is_empty()))
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "/proc/thread-self/net/ip_tables_names";

    /// Root may read any file, so the file that cannot be read is a folder here.
    #[test]
    fn a_list_that_cannot_be_read_is_not_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::below(folder.path());
        let file = folder.path().join(LIST.trim_start_matches('/'));
        assert_eq!(read(&host).len(), 0, "no file");
        std::fs::create_dir_all(&file).unwrap();
        let unread = read(&host);
        let [(Family::Ipv4, Err(error))] = unread.as_slice() else { panic!("{unread:?}") };
        assert!(
            error.to_string().starts_with("cannot read /proc/thread-self/net/ip_tables_names"),
            "{error}"
        );
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        assert_eq!(read(&host).len(), 0, "no tables");
    }
}
