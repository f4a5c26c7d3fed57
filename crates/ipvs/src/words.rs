//! What is written, as lines in the words of ipvsadm, ipset, ip and iptables-restore.

use std::net::{IpAddr, SocketAddr};

use portolan_model::{Family, Protocol};
use portolan_wire::ipset::Member;
use portolan_wire::ipvs::FLAG_PERSISTENT;

use super::device::DEVICE;
use super::difference::{Difference, Operation, WEIGHT};
use super::frontend::{Config, Key};
use super::set::Set;

/// Returns what is written for a difference, with restores before and after the virtual servers, one line for each object.
pub(super) fn lines_of<'a>(
    difference: &'a Difference,
    before: &'a str,
    after: &'a str,
    family: Family,
) -> impl Iterator<Item = String> + 'a {
    let Difference { add, servers, bind, gone, unbind, remove, .. } = difference;
    let member = move |verb: &str, (set, member): &(Set, Member)| {
        format!("ipset {verb} {} {}", set.name(family), member_text(member))
    };
    let address = |verb: &str, address: &IpAddr| {
        let length = if address.is_ipv4() { 32 } else { 128 };
        format!("ip address {verb} {address}/{length} dev {DEVICE}")
    };
    let added = add.iter().map(move |added| member("add", added));
    let bound = bind.iter().map(move |bound| address("add", bound));
    let unbound = unbind.iter().map(move |unbound| address("del", unbound));
    let removed = remove.iter().map(move |removed| member("del", removed));
    added
        .chain(before.lines().map(str::to_owned))
        .chain(servers.iter().map(command))
        .chain(bound)
        .chain(after.lines().map(str::to_owned))
        .chain(gone.iter().map(command))
        .chain(unbound)
        .chain(removed)
}

/// Returns a message about a virtual server as a command of ipvsadm.
fn command(operation: &Operation) -> String {
    match operation {
        Operation::New(key, config) => format!("ipvsadm -A {} {}", service(key), settings(*config)),
        Operation::Set(key, config) => format!("ipvsadm -E {} {}", service(key), settings(*config)),
        Operation::Delete(key) => format!("ipvsadm -D {}", service(key)),
        Operation::NewReal(key, place) => format!("ipvsadm -a {} -r {place} -m -w {WEIGHT}", service(key)),
        Operation::Restore(key, place) => format!("ipvsadm -e {} -r {place} -m -w {WEIGHT}", service(key)),
        Operation::Drain(key, place, _) => format!("ipvsadm -e {} -r {place} -m -w 0", service(key)),
        Operation::DeleteReal(key, place) => format!("ipvsadm -d {} -r {place}", service(key)),
    }
}

fn service(key: &Key) -> String {
    let option = match key.protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    format!("{option} {}", SocketAddr::new(key.address, key.port))
}

fn settings(config: Config) -> String {
    let persistent = config.flags & FLAG_PERSISTENT != 0;
    let persistence = if persistent { format!(" -p {}", config.timeout) } else { String::new() };
    format!("-s {}{persistence}", config.scheduler)
}

/// Returns a member as ipset prints it.
fn member_text(member: &Member) -> String {
    let port = |number: u8, port: u16| match [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| protocol.number() == number)
    {
        Some(protocol) => format!("{}:{port}", protocol.to_string().to_ascii_lowercase()),
        None => format!("{number}:{port}"),
    };
    match *member {
        Member::Ip(address) => address.to_string(),
        Member::IpPort(address, protocol, number) => format!("{address},{}", port(protocol, number)),
        Member::IpPortIp(address, protocol, number, other) => {
            format!("{address},{},{other}", port(protocol, number))
        }
        Member::IpPortNet(address, protocol, number, network, prefix) => {
            format!("{address},{},{network}/{prefix}", port(protocol, number))
        }
        Member::Port(number) => number.to_string(),
    }
}
