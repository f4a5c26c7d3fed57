//! Policy routing: the kernel delivers marked packets to this node, whatever their destination is.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};

use portolan_model::{Family, Settings};
use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::Request;
use portolan_wire::route::policy::{
    MarkRule, OF_KERNEL, add_local_route, add_rule, delete_local_route, delete_rule, deleted_rule,
    is_local_route, routes, rules,
};
use portolan_wire::route::{AF_INET, AF_INET6, GROUP_IPV4_RULE, GROUP_IPV6_RULE};

use portolan_nftables::capture_mark;
use portolan_sock::retry_on_change;

/// The routing table of the userspace mode. The number is unlikely to be used by other programs ("po" in ASCII).
pub const TABLE: u32 = 28_783;
/// The priority of the policy rule: before the main table (32766) and the rules that network plug-ins usually add, after
/// the local table (0).
pub const RULE_PRIORITY: u32 = 500;

/// Adds the policy rule and the route if they are missing, and removes a policy rule with another mark or protocol. Returns how many
/// objects were written or removed.
pub(super) fn ensure(settings: &Settings) -> Result<usize, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let family = number(settings.family);
    let wanted = rule(settings);
    let mut written = 0;
    for stale in ours(&mut socket, family)?.into_iter().filter(|found| *found != wanted) {
        written += request(&mut socket, delete_rule(&stale), &[Errno::ENOENT])?;
    }
    written += request(&mut socket, add_local_route(family, TABLE), &[Errno::EEXIST])?;
    written += request(&mut socket, add_rule(&wanted), &[Errno::EEXIST])?;
    Ok(written)
}

/// Removes the policy rule and the route.
pub(super) fn remove(family: Family) -> Result<(), SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let family = number(family);
    for found in ours(&mut socket, family)? {
        request(&mut socket, delete_rule(&found), &[Errno::ENOENT])?;
    }
    // The kernel has no object for the table itself: it is gone with its last route.
    request(&mut socket, delete_local_route(family, TABLE), &[Errno::ENOENT, Errno::ESRCH])?;
    Ok(())
}

/// What exists of the policy routing of a family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The policy rules that lead to [`TABLE`].
    pub rules: Vec<MarkRule>,
    /// True if [`TABLE`] has the route that delivers packets to this node.
    pub has_route: bool,
}

/// A subscription to deletions of the policy rule.
#[derive(Debug)]
pub struct RuleWatch {
    events: Socket,
}

impl RuleWatch {
    /// Subscribes in the network namespace of this thread.
    pub fn open() -> Result<Self, SocketError> {
        let events = Socket::open(Protocol::Route)?;
        events.subscribe(&[GROUP_IPV4_RULE, GROUP_IPV6_RULE])?;
        Ok(Self { events })
    }

    /// Reads the pending notifications. Returns the families in which a rule that leads to [`TABLE`] was deleted, or may have
    /// been.
    pub fn deleted(&mut self) -> Result<Vec<Family>, SocketError> {
        let mut deleted = BTreeSet::new();
        let received = self.events.receive(|frame| {
            deleted.extend(deleted_rule(frame)?);
            Ok(())
        });
        match received {
            Ok(_) => {
                let is_ours = |family: &Family| deleted.contains(&(number(*family), TABLE));
                Ok(Family::BOTH.into_iter().filter(is_ours).collect())
            }
            Err(SocketError::Overrun | SocketError::Truncated { .. } | SocketError::Decode(_)) => {
                Ok(Family::BOTH.into())
            }
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for RuleWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_fd().as_raw_fd()
    }
}

/// Reads what a removal would remove, in the network namespace of this thread.
pub fn find(of: Family) -> Result<Routing, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let family = number(of);
    let rules = ours(&mut socket, family)?;
    // Without strict checking, as before Linux 4.20, the kernel lists the routes of all tables.
    let _is_filtered = socket.set_strict_checking()?;
    let listed = retry_on_change(|| {
        let mut found = false;
        socket.dump(&mut routes(family, TABLE), |frame| {
            found |= is_local_route(frame, family, TABLE)?;
            Ok(())
        })?;
        Ok(found)
    });
    match listed {
        // The kernel has no such table.
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Routing { rules, has_route: false }),
        listed => listed.map(|has_route| Routing { rules, has_route }),
    }
}

fn ours(socket: &mut Socket, family: u8) -> Result<Vec<MarkRule>, SocketError> {
    retry_on_change(|| {
        let mut found = Vec::new();
        socket.dump(&mut rules(family), |frame| {
            let ours = MarkRule::decode(frame)?.filter(|rule| rule.table == TABLE && rule.family == family);
            found.extend(ours);
            Ok(())
        })?;
        Ok(found)
    })
}

fn rule(settings: &Settings) -> MarkRule {
    let mark = capture_mark(settings);
    let family = number(settings.family);
    MarkRule { family, priority: RULE_PRIORITY, mark, mask: mark, table: TABLE, protocol: OF_KERNEL }
}

const fn number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => AF_INET,
        Family::Ipv6 => AF_INET6,
    }
}

/// Sends a request. Returns 1 if the kernel executed it, and 0 if it returned one of the errors in `nothing`.
fn request(socket: &mut Socket, mut request: Request, nothing: &[Errno]) -> Result<usize, SocketError> {
    match socket.query(&mut request, |_| Ok(())) {
        Ok(()) => Ok(1),
        Err(error) if error.errno().is_some_and(|errno| nothing.contains(&errno)) => Ok(0),
        Err(error) => Err(error),
    }
}
