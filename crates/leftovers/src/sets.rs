//! The ipsets of the IPVS mode, kube-proxy's and ours. Rules of iptables refer to them.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::ipset::{self, IpsetEvent};

use super::Error;
use super::found::{Kind, Object};
use portolan_sock::retry_on_change;

/// The sets of kube-proxy, with their IPv4 names (`pkg/proxy/ipvs/ipset.go`).
const NAMES: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];
/// The sets of our IPVS mode that kube-proxy does not have.
const OWN_NAMES: [&str; 8] = [
    "PORTOLAN-VIRTUAL-SERVERS",
    // Only if the first comparison was interrupted.
    "PORTOLAN-VIRTUAL-SERVERS-NEW",
    // Only if a trial was interrupted.
    "PORTOLAN-TRIAL",
    "PORTOLAN-REJECT",
    "PORTOLAN-COUNT-REJECT",
    "PORTOLAN-DROP",
    "PORTOLAN-DROP-EXTERNAL",
    "PORTOLAN-SOURCE-RANGES",
];
/// A set that only rules of our own IPVS mode refer to. Their chains are rewritten by each mode of kube-proxy that
/// has them.
const REFUSED: &str = "PORTOLAN-REJECT";
/// A set that exists for as long as our IPVS mode has virtual servers.
const MARKER: &str = "PORTOLAN-VIRTUAL-SERVERS";
/// This directory exists if the kernel has ipset, loaded or built in.
const MODULE: &str = "/sys/module/ip_set";
/// How long a set in use is waited for: the kernel frees a deleted nftables rule, and its reference to a set, in the
/// background. On a busy node that may take seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a set whose rules may well be in force.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Removes the sets of kube-proxy's and our IPVS mode in the network namespace of this thread. Returns their number.
/// The rules that refer to them have to be removed before.
pub(super) fn remove() -> Result<usize, Error> {
    remove_those(&names(NAMES.iter().chain(&OWN_NAMES)))
}

/// Removes only the sets of our IPVS mode that kube-proxy does not have. Returns their number.
pub(super) fn remove_own() -> Result<usize, Error> {
    remove_those(&names(OWN_NAMES.iter()))
}

/// Lists what [`remove`] would remove.
pub(super) fn find() -> Result<Vec<Object>, Error> {
    find_those(&names(NAMES.iter().chain(&OWN_NAMES)))
}

/// Lists what [`remove_own`] would remove.
pub(super) fn find_own() -> Result<Vec<Object>, Error> {
    find_those(&names(OWN_NAMES.iter()))
}

/// Returns true if our IPVS mode has virtual servers in either family, or its clean-up is incomplete.
pub(super) fn has_marker() -> Result<bool, Error> {
    is_any(&names([MARKER].iter()))
}

/// Returns true if a family has sets of our IPVS mode that kube-proxy does not have: its clean-up is incomplete.
pub(super) fn has_own(family: Family) -> Result<bool, Error> {
    is_any(&OWN_NAMES.iter().map(|name| in_family(name, family)).collect())
}

/// Returns the name of the set that only rules of our IPVS mode refer to.
pub(super) fn refused(family: Family) -> String {
    in_family(REFUSED, family)
}

/// Returns true if a family has sets of the IPVS mode, kube-proxy's or ours, to which its rules refer.
pub(super) fn are_there(family: Family) -> Result<bool, Error> {
    is_any(&NAMES.iter().chain(&OWN_NAMES).map(|name| in_family(name, family)).collect())
}

fn is_any(known: &BTreeSet<String>) -> Result<bool, Error> {
    Ok(!find_those(known)?.is_empty())
}

fn find_those(known: &BTreeSet<String>) -> Result<Vec<Object>, Error> {
    // A request would make the kernel load the module.
    if is_missing(Path::new(MODULE)) {
        return Ok(Vec::new());
    }
    let failed = |source| Error::Sets { source };
    let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
    let found = present(&mut socket, known).map_err(failed)?;
    Ok(found.into_iter().map(|name| Object::new(Kind::Set, None, name)).collect())
}

/// Returns the number of rules of our IPVS mode, in both variants of iptables, that refer to [`refused`]. The kernel
/// releases the set a moment after a rule is removed, so this waits for that. Sends a request about a set, which
/// loads the kernel's module: call [`are_there`] before.
pub(super) fn rules_in_force(family: Family) -> Result<u32, Error> {
    let failed = |source| Error::Sets { source };
    let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
    let name = refused(family);
    let start = Instant::now();
    loop {
        let references = references(&mut socket, &name).map_err(failed)?;
        if references == 0 || start.elapsed() > SHORT_PATIENCE {
            return Ok(references);
        }
        sleep(PAUSE);
    }
}

/// Returns the number of rules that refer to a set; 0 if the set is missing.
fn references(socket: &mut Socket, name: &str) -> Result<u32, SocketError> {
    let mut count = 0;
    let listed = retry_on_change(|| {
        socket.dump(&mut ipset::header(name), |frame| {
            if let IpsetEvent::Set { references: Some(references), .. } = IpsetEvent::decode(frame)? {
                count = references;
            }
            Ok(())
        })
    });
    match listed {
        // EINVAL: a kernel without ipset.
        Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(0),
        listed => listed.map(|()| count),
    }
}

fn remove_those(known: &BTreeSet<String>) -> Result<usize, Error> {
    // A request would make the kernel load the module.
    if is_missing(Path::new(MODULE)) {
        return Ok(0);
    }
    let failed = |source| Error::Sets { source };
    let mut socket = Socket::open(Protocol::Netfilter).map_err(failed)?;
    let wanted = present(&mut socket, known).map_err(failed)?;
    let mut left = wanted.clone();
    let start = Instant::now();
    loop {
        let mut busy = BTreeSet::new();
        for name in left {
            if !destroy(&mut socket, &name).map_err(failed)? {
                busy.insert(name);
            }
        }
        left = busy;
        if left.is_empty() {
            return Ok(wanted.len());
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::SetsInUse { names: left.into_iter().collect::<Vec<_>>().join(" ") });
        }
        sleep(PAUSE);
    }
}

/// Returns true if this system lists its modules and has none with this name.
fn is_missing(module: &Path) -> bool {
    module.parent().is_some_and(Path::exists) && !module.exists()
}

/// Returns which of these sets exist.
fn present(socket: &mut Socket, known: &BTreeSet<String>) -> Result<BTreeSet<String>, SocketError> {
    let listed = retry_on_change(|| {
        let mut found = BTreeSet::new();
        socket.dump(&mut ipset::names(), |frame| {
            if let IpsetEvent::Set { name, .. } = IpsetEvent::decode(frame)?
                && known.contains(&name)
            {
                found.insert(name);
            }
            Ok(())
        })?;
        Ok(found)
    });
    match listed {
        // A kernel without ipset.
        Err(SocketError::Refused(refusal)) if refusal.errno == Errno::EINVAL => Ok(BTreeSet::new()),
        listed => listed,
    }
}

/// Removes a set. Returns false if a rule refers to it.
fn destroy(socket: &mut Socket, name: &str) -> Result<bool, SocketError> {
    match socket.query(&mut ipset::destroy(name), |_| Ok(())) {
        Err(SocketError::Refused(refusal)) if refusal.errno == Errno(ipset::ERR_BUSY) => Ok(false),
        // Another program has just removed it.
        Err(SocketError::Refused(refusal)) if refusal.errno == Errno::ENOENT => Ok(true),
        answer => answer.map(|()| true),
    }
}

/// Returns the names of these sets in both families.
fn names<'a>(names: impl Iterator<Item = &'a &'a str>) -> BTreeSet<String> {
    names.flat_map(|name| Family::BOTH.map(|family| in_family(name, family))).collect()
}

/// Returns the name of a set in a family. A name of IPv6 that gets too long is cut.
fn in_family(name: &str, family: Family) -> String {
    match family {
        Family::Ipv4 => name.to_owned(),
        Family::Ipv6 => name.replacen('-', "-6-", 1).chars().take(ipset::NAME_MAX).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_both_families() {
        let names = names(NAMES.iter().chain(&OWN_NAMES));
        assert_eq!(names.len(), 50);
        for name in
            ["KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK", "KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS", "PORTOLAN-6-DROP"]
        {
            assert!(names.contains(name), "{name}");
        }
        // Cut to 31 bytes, as kube-proxy does.
        assert!(names.contains("KUBE-6-LOAD-BALANCER-SOURCE-CID"));
        assert!(names.contains("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"));
        for others in ["KUBE-ROUTER-PODS", "KUBE-6-", "KUBE-6-LOAD-BALANCER-SOURCE-CIDR", "kube-loop-back"] {
            assert!(!names.contains(others), "{others}");
        }
    }

    #[test]
    fn a_module_is_missing_only_where_modules_are_listed() {
        assert!(is_missing(Path::new("/proc/no-such")));
        assert!(!is_missing(Path::new("/proc/self")));
        assert!(!is_missing(Path::new("/no-such/ip_set")), "nothing is known");
    }
}
