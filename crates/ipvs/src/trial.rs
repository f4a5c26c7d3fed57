//! Tries whether the rules of this mode can be written.

use std::thread::sleep;
use std::time::{Duration, Instant};

use portolan_iptables::Programs;
use portolan_model::Family;

use super::kernel::Kernel;
use super::set::Set;

/// How long a set in use is waited for: the kernel frees a deleted rule of nftables, and its reference to a set, in the background.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// The modules of the kernel that the rules need, for the message about a refusal.
const MODULES: &str = "xt_set, xt_addrtype, xt_comment, xt_conntrack, xt_mark, xt_tcpudp, xt_REDIRECT, xt_MASQUERADE and \
                       ipt_REJECT (IPv6: ip6t_REJECT)";

/// Writes one rule of each kind into a chain that no rule leads to, with a set, and removes both again, in the network namespace of
/// this thread. Returns why that is not possible; `None` if it is. Does nothing if rules of this mode exist. A lock that another
/// program holds says nothing about the kernel. Runs programs.
///
/// # Errors
/// The set cannot be made or removed.
pub fn try_rules(programs: &Programs, family: Family) -> Result<Option<String>, portolan_engine::Error> {
    let Some(mut kernel) = Kernel::open(family)? else { return Ok(None) };
    if kernel.is_referred_to(Set::Reject)? {
        return Ok(None);
    }
    let name = Set::trial(family);
    // One that an earlier trial has left may have other options.
    kernel.destroy_named(name)?;
    kernel.create_as(Set::Own, name)?;
    let tried = programs.try_rules(&rules(name));
    let start = Instant::now();
    while !kernel.destroy_named(name)? {
        if start.elapsed() > PATIENCE {
            tracing::warn!(set = name, "an ipset that was made for a trial is in use, and stays");
            break;
        }
        sleep(PAUSE);
    }
    Ok(match tried {
        Ok(()) | Err(portolan_iptables::Error::Locked { .. }) => None,
        Err(error) => Some(format!(
            "the rules of this mode are refused, which need the kernel modules {MODULES}: {error}"
        )),
    })
}

/// Returns one rule of each kind, by table.
fn rules(set: &str) -> [(&'static str, Vec<String>); 3] {
    let first = "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN";
    let is_in = format!("-m set --match-set {set} dst,dst");
    [
        ("mangle", vec![format!("-m conntrack --ctstate NEW {is_in} -j DROP"), is_in.clone()]),
        (
            "filter",
            vec![
                format!("{first} {is_in} -j REJECT --reject-with tcp-reset"),
                format!("-m conntrack --ctstate NEW {is_in} -j REJECT"),
                "-m comment --comment \"trial\" -m mark --mark 0x1/0x1 -j ACCEPT".to_owned(),
            ],
        ),
        (
            "nat",
            vec![
                format!("{first} -m addrtype --src-type LOCAL {is_in} -j REDIRECT --to-ports 1"),
                format!("{is_in} -j MARK --set-xmark 0x1/0x1"),
                "-j MASQUERADE --random-fully".to_owned(),
            ],
        ),
    ]
}
