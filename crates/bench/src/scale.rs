//! Measures what many nodes cost an API server, and how they come back after it was away.
//!
//! A number of nodes goes in. The cost of one change, and the course of a restart and of a cut, come out. The nodes are the
//! agent's own list-and-watch state machine, in this process; the server is a process of its own. All of them share this
//! machine's processors, so the times are those of a server with few processors.
//!
//! - [`fleet`]: the nodes
//! - [`server`]: the API server
//! - [`marker`]: the object that changes

mod fleet;
mod marker;
mod server;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use portolan_testkit::ControlPlane;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::fleet::{Fleet, KINDS};
use self::server::Server;
use crate::bars::Bar;
use crate::statistics::{Sample, mebibytes, millis};
use crate::table::render_rows;
use crate::workload::{self, Size};

/// Single changes.
const CHANGES: u16 = 20;
/// Pause after a change, in which the rest of its work ends.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum time until all nodes have heard of a change.
const WITHIN: Duration = Duration::from_secs(300);
/// Without requests for this long, the nodes are connected.
const QUIET: Duration = Duration::from_secs(4);
/// After an outage, requests are counted for this long: longer than the delays of the first attempts.
const OBSERVED: Duration = Duration::from_secs(30);
/// Open files of a process that are not connections of nodes: the server's other connections, its store and its log, and
/// kube-apiserver's connections to etcd.
const OTHER_FILES: u64 = 500;
/// Bar: time from a server's readiness until the last node is in sync.
const LAST_NODE: f64 = 15.0;

/// All figures of one server.
#[derive(Debug)]
pub(crate) struct Figures {
    server: String,
    nodes: usize,
    size: Size,
    connected: Duration,
    resident: [u64; 2],
    of_a_node: u64,
    changes: Changes,
    outages: Vec<Outage>,
}

/// Single changes.
#[derive(Debug)]
struct Changes {
    /// Time of each change to each node.
    to_nodes: Sample,
    /// Time of each change to the last node.
    to_last: Sample,
    bytes: u64,
    of_server: Duration,
    of_nodes: Duration,
}

/// What followed an outage.
#[derive(Debug)]
struct Outage {
    name: &'static str,
    /// Time from the readiness of the server until the nodes heard of a Service and an EndpointSlice that changed then.
    in_sync: Sample,
    /// The most requests that were answered within one second.
    peak: usize,
    /// Requests that were answered.
    requests: usize,
    /// Those of them that came after the last node was in sync.
    late: usize,
    /// Requests without an answer.
    unanswered: u64,
    /// Lists that nodes began.
    lists: u64,
}

/// Measures `portolan serve`, or a kube-apiserver if its binaries are given.
pub(crate) fn measure(
    binary: &Path,
    control_plane: Option<&ControlPlane>,
    nodes: usize,
    size: Size,
) -> anyhow::Result<Figures> {
    allow_connections(nodes)?;
    let (name, mut server) = match control_plane {
        Some(binaries) => (format!("kube-apiserver {}", binaries.version()?), Server::kubernetes(binaries)?),
        None => (format!("portolan serve {}", env!("CARGO_PKG_VERSION")), Server::portolan(binary, nodes)?),
    };
    eprintln!("loading {size} objects");
    let objects =
        size.services().chain(size.slices()).chain([marker::service(0), marker::slice(0)]).collect();
    server.load(objects, &workload::namespaces()).context("load the objects")?;
    let versions = server.versions()?;
    let (before, own) = (server.resident()?, own_resident()?);
    eprintln!("starting {nodes} nodes");
    let started = Instant::now();
    let fleet = Fleet::start(&server.namespace, nodes, server.settings(), &versions)?;
    fleet.settle(QUIET, WITHIN)?;
    let last = fleet.requests(started).last().copied().unwrap_or(started);
    let connected = last.saturating_duration_since(started);
    let resident = [before, server.resident()?];
    let of_a_node = own_resident()?.saturating_sub(own).checked_div(nodes as u64).unwrap_or_default();
    let mut change = 0;
    eprintln!("measuring single changes");
    let changes = single(&mut server, &fleet, &mut change)?;
    let mut outages = Vec::new();
    for (cause, outage) in OUTAGES {
        eprintln!("measuring what follows: {cause}");
        outages.push(after(cause, outage, &mut server, &fleet, &mut change)?);
    }
    Ok(Figures { server: name, nodes, size, connected, resident, of_a_node, changes, outages })
}

type Cause = fn(&mut Server) -> anyhow::Result<()>;

const OUTAGES: [(&str, Cause); 3] = [
    ("the server is restarted", |server| server.terminate().and_then(|()| server.start_again())),
    ("the server is killed and started", |server| server.kill().and_then(|()| server.start_again())),
    ("all connections are reset", |server| server.cut_connections()),
];

fn single(server: &mut Server, fleet: &Fleet, change: &mut u16) -> anyhow::Result<Changes> {
    let (mut to_nodes, mut to_last) = (Vec::new(), Vec::new());
    let (bytes, of_server, of_nodes) = (server.traffic()?, server.processor_time()?, fleet.processor_time()?);
    for _ in 0..CHANGES {
        let heard = one(server, fleet, change, false)?;
        to_last.push(heard.percentile(100));
        to_nodes.extend(heard.values());
        thread::sleep(PAUSE);
    }
    Ok(Changes {
        to_nodes: to_nodes.into_iter().collect(),
        to_last: to_last.into_iter().collect(),
        bytes: server.traffic()?.saturating_sub(bytes) / u64::from(CHANGES),
        of_server: server.processor_time()?.saturating_sub(of_server) / u32::from(CHANGES),
        of_nodes: fleet.processor_time()?.saturating_sub(of_nodes) / u32::from(CHANGES),
    })
}

/// Writes a change of an EndpointSlice, and if `both`, of its Service, too. Waits until all nodes have heard of it. Returns the
/// time from the write for each.
fn one(server: &Server, fleet: &Fleet, change: &mut u16, both: bool) -> anyhow::Result<Sample> {
    *change = change.saturating_add(1);
    fleet.expect(*change, both);
    let written = Instant::now();
    if both {
        server.apply(marker::service(*change))?;
    }
    server.apply(marker::slice(*change))?;
    fleet.all_hear(written, WITHIN)
}

fn after(
    name: &'static str,
    cause: Cause,
    server: &mut Server,
    fleet: &Fleet,
    change: &mut u16,
) -> anyhow::Result<Outage> {
    let (begin, lists, unanswered) = (Instant::now(), fleet.lists(), fleet.unanswered());
    cause(server)?;
    let ready = Instant::now();
    let in_sync = one(server, fleet, change, true)?;
    let all = ready.checked_add(in_sync.percentile(100)).unwrap_or(ready);
    thread::sleep(OBSERVED.saturating_sub(ready.elapsed()));
    let requests = fleet.requests(begin);
    let late = requests.iter().filter(|at| **at > all).count();
    let lists = fleet.lists().saturating_sub(lists);
    let unanswered = fleet.unanswered().saturating_sub(unanswered);
    Ok(Outage { name, in_sync, peak: peak(&requests), requests: requests.len(), late, unanswered, lists })
}

/// Returns the most times within one second. The times are in order.
fn peak(times: &[Instant]) -> usize {
    let mut from = 0;
    let mut most = 0;
    for (index, at) in times.iter().enumerate() {
        while times
            .get(from)
            .is_some_and(|first| at.saturating_duration_since(*first) >= Duration::from_secs(1))
        {
            from += 1;
        }
        most = most.max(index + 1 - from);
    }
    most
}

/// Raises the limit of open files to what the nodes need. The server inherits it.
fn allow_connections(nodes: usize) -> anyhow::Result<()> {
    let needed = (nodes as u64).saturating_mul(KINDS.len() as u64).saturating_add(OTHER_FILES);
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .with_context(|| format!("raise the limit of open files to {needed}, or measure fewer nodes"))
}

/// Returns the resident memory of this process in bytes.
fn own_resident() -> anyhow::Result<u64> {
    portolan_testkit::resident(std::process::id()).context("the memory of this process")
}

/// Returns the table.
pub(crate) fn render(figures: &Figures) -> String {
    let Figures { server, nodes, size, connected, resident: [before, with], of_a_node, changes, outages } =
        figures;
    let mut rows = vec![
        ("all nodes are connected after, s".to_owned(), seconds(*connected)),
        ("server: resident before / with the nodes, MiB".to_owned(), {
            format!("{:.0} / {:.0}", mebibytes(*before), mebibytes(*with))
        }),
        ("the client of a node, KiB".to_owned(), (of_a_node >> 10).to_string()),
        ("one change: to a node / to the last node, median, ms".to_owned(), {
            format!("{:.0} / {:.0}", millis(changes.to_nodes.median()), millis(changes.to_last.median()))
        }),
        ("- bytes to all nodes, MiB".to_owned(), format!("{:.1}", mebibytes(changes.bytes))),
        ("- processor time of the server, ms".to_owned(), format!("{:.0}", millis(changes.of_server))),
        ("- processor time of a node, us".to_owned(), {
            format!("{:.0}", millis(changes.of_nodes) * 1e3 / count(*nodes))
        }),
    ];
    for outage in outages {
        rows.push((format!("{}: half of the nodes / the last one in sync after, s", outage.name), {
            format!("{} / {}", seconds(outage.in_sync.median()), seconds(outage.in_sync.percentile(100)))
        }));
        rows.push((
            "- answered requests: most in a second / all / after the last node was in sync".to_owned(),
            { format!("{} / {} / {}", outage.peak, outage.requests, outage.late) },
        ));
        rows.push(("- attempts to connect without an answer".to_owned(), outage.unanswered.to_string()));
        rows.push(("- lists".to_owned(), outage.lists.to_string()));
    }
    let head = [format!("{server}, {nodes} nodes, {size}"), String::new()].to_vec();
    let rows = rows.into_iter().map(|(name, value)| vec![name, value]);
    render_rows(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// Returns the bars and whether the figures meet them.
pub(crate) fn bars(figures: &Figures) -> Vec<Bar> {
    let bar = |outage: &Outage| {
        let name = format!("{}, {} nodes: the last one in sync", outage.name, figures.nodes);
        Bar::new(name, " s", LAST_NODE, Some(outage.in_sync.percentile(100).as_secs_f64()))
    };
    figures.outages.iter().map(bar).collect()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
}

fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_fullest_second() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        assert_eq!(peak(&[]), 0);
        assert_eq!(peak(&[at(0), at(999)]), 2);
        assert_eq!(peak(&[at(0), at(1_000)]), 1);
        assert_eq!(peak(&[at(0), at(600), at(1_100), at(1_200), at(5_000)]), 3);
    }
}
