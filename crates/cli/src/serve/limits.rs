//! Limits on concurrent requests and connections of `portolan serve`.

use std::time::Duration;

use clap::Args;
use portolan_node::config::parse_duration;
use portolan_serve::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Open files that are not connections: the store, manifests, the log, the runtime.
const OTHER_FILES: usize = 100;

/// Flags for the number of clients, and flags of kube-apiserver that mean the same here.
#[derive(Debug, Args)]
pub(super) struct LimitOptions {
    /// Requests at a time that only read, watches apart; more are answered with 429.
    #[arg(long, default_value_t = 400, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests_inflight: u32,
    /// Requests at a time that write; more are answered with 429. Each may hold a body of up to 3 MiB.
    #[arg(long, default_value_t = 200, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_mutating_requests_inflight: u32,
    /// How long a request other than a watch may take.
    #[arg(long, default_value = "1m", value_name = "DURATION", value_parser = positive)]
    request_timeout: Duration,
    /// Connections at a time, of all clients together; one client may have half of them. Each is an open file. A node
    /// agent has up to four.
    #[arg(long, default_value_t = 4096, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Watches at a time; more are answered with 429. A node agent has four.
    #[arg(long, default_value_t = 10_000, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    max_watches: u32,
}

impl LimitOptions {
    /// Returns the limits of a server that may open `files` files.
    pub(super) fn limits(&self, files: usize, shutdown_delay: Duration) -> Limits {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Limits {
            reading: count(self.max_requests_inflight),
            mutating: count(self.max_mutating_requests_inflight),
            request_time: self.request_timeout,
            watches: count(self.max_watches),
            shutdown_delay,
            ..with_connections(count(self.max_connections), files)
        }
    }
}

/// Raises the soft limit of open files to the hard limit, because every connection is an open file. The usual soft
/// limit of 1024 is for programs that use select(2). Returns the number of files that may be open.
pub(super) fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = &raised {
        tracing::warn!(%error, limit = limit.current, "the number of open files stays limited");
    }
    let files = if raised.is_ok() { limit.maximum } else { limit.current };
    files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX)
}

/// Allows the wanted number of connections, or as many as there can be files.
fn with_connections(wanted: usize, files: usize) -> Limits {
    let connections = wanted.min(files.saturating_sub(OTHER_FILES)).max(1);
    // With the default, few files are no reason to warn.
    if connections < wanted && wanted > Limits::default().connections {
        tracing::warn!(
            wanted,
            connections,
            files,
            "fewer connections are accepted: raise the limit of open files"
        );
    }
    Limits { connections, connections_of_one_client: connections.div_ceil(2), ..Limits::default() }
}

fn positive(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(duration) if duration.is_zero() => Err("must be more than 0".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_other_files() {
        let pair = |wanted, files| {
            let limits = with_connections(wanted, files);
            (limits.connections, limits.connections_of_one_client)
        };
        let usual = Limits::default();
        let pairs = [pair(4096, usize::MAX), pair(4096, 1_024), pair(4096, 10), pair(20_000, 50_000)];
        assert_eq!(pairs, [(4096, 2048), (924, 462), (1, 1), (20_000, 10_000)]);
        assert_eq!(pairs[0], (usual.connections, usual.connections_of_one_client));
    }

    #[test]
    fn flags_and_their_defaults() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: LimitOptions,
        }
        let parse = |arguments: &[&str]| {
            let line = ["x"].iter().chain(arguments);
            let line = <Line as clap::Parser>::try_parse_from(line).map_err(|error| error.to_string())?;
            let limits = line.options.limits(usize::MAX, Duration::ZERO);
            let clients = (limits.connections, limits.watches);
            Ok::<_, String>((limits.reading, limits.mutating, limits.request_time, clients))
        };
        let usual = Limits::default();
        assert_eq!(
            parse(&[]).unwrap(),
            (usual.reading, usual.mutating, usual.request_time, (usual.connections, usual.watches))
        );
        let given =
            ["--max-requests-inflight=7", "--max-mutating-requests-inflight=3", "--request-timeout=90s"];
        assert_eq!(parse(&given).unwrap(), (7, 3, Duration::from_secs(90), (4096, 10_000)));
        let of_5_000_nodes = ["--max-connections=20000", "--max-watches=20000"];
        assert_eq!(parse(&of_5_000_nodes).unwrap().3, (20_000, 20_000));
        for wrong in [
            "--max-requests-inflight=0",
            "--max-connections=0",
            "--max-watches=0",
            "--request-timeout=0s",
            "--request-timeout=x",
        ] {
            assert!(parse(&[wrong]).unwrap_err().contains(wrong.split('=').next().unwrap()), "{wrong}");
        }
    }
}
