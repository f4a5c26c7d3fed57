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

/// Adds the policy rule and the route if they are missing. Returns how many objects were written.
pub(super) fn ensure(settings: &Settings) -> Result<usize, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let family = number(settings.family);
    let route = request(&mut socket, add_local_route(family, TABLE), &[Errno::EEXIST])?;
    let rule = request(&mut socket, add_rule(&rule(settings)), &[Errno::EEXIST])?;
    Ok(route + rule)
}

/// Removes policy rules with another mark or protocol than the wanted one. Returns how many objects were removed or written.
///
/// Packets that are captured with another mark need the rule for it until then. If a rule differs in its protocol only, the kernel does
/// not add the wanted one beside it. So the wanted one is added again after the removal.
pub(super) fn remove_others(settings: &Settings) -> Result<usize, SocketError> {
    let mut socket = Socket::open(Protocol::Route)?;
    let wanted = rule(settings);
    let mut removed = 0;
    for other in ours(&mut socket, number(settings.family))?.into_iter().filter(|found| *found != wanted) {
        removed += request(&mut socket, delete_rule(&other), &[Errno::ENOENT])?;
    }
    if removed > 0 {
        removed += request(&mut socket, add_rule(&wanted), &[Errno::EEXIST])?;
    }
    Ok(removed)
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

#[cfg(test)]
mod tests {
    use portolan_sock::namespace::in_new_network_namespace;

    use super::*;

    #[test]
    fn a_rule_for_another_mark_stays_until_it_is_not_needed() {
        let [before, after] =
            [14, 12].map(|masquerade_bit| Settings { masquerade_bit, ..Settings::plain(Family::Ipv4) });
        in_new_network_namespace(|| {
            let marks = || {
                let rules = find(Family::Ipv4).unwrap().rules;
                rules.iter().map(|rule| rule.mark).collect::<BTreeSet<_>>()
            };
            let [old, new] = [&before, &after].map(capture_mark);
            assert_eq!((ensure(&before).unwrap(), ensure(&before).unwrap()), (2, 0));
            assert_eq!(ensure(&after).unwrap(), 1);
            assert_eq!(marks(), BTreeSet::from([old, new]));
            assert!(remove_others(&after).unwrap() > 0);
            assert_eq!((marks(), remove_others(&after).unwrap()), (BTreeSet::from([new]), 0));
            assert!(find(Family::Ipv4).unwrap().has_route);
        })
        .expect("this test needs root");
    }
}
