//! Checks whether the kernel can run this mode, and what it lacks.

use std::net::IpAddr;
use std::path::Path;

use portolan_model::{Family, IpvsScheduler, Protocol as Transport};
use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::ipset::{self, Type};
use portolan_wire::ipvs::{self, Counters, VirtualServer};
use portolan_wire::nfnetlink::Family as SetFamily;
use portolan_wire::{Batch, compat, generic, route};

use super::Error;
use super::device::{DEVICE, device};
use super::frontend::Key;
use super::module;
use super::set::{Set, set_family};
use super::settings::CONNTRACK_SETTING;

/// Addresses of the virtual server that is created as a trial: for documentation (RFC 5737, RFC 3849).
const TRIAL_ADDRESSES: [&str; 2] = ["198.51.100.0", "2001:db8::"];
/// Ports of the trial virtual server. The next one is tried if another program has one there.
const TRIAL_PORTS: std::ops::Range<u16> = 20_000..20_010;

/// The match of iptables whose module needs IPVS.
const MATCH: &str = "ipvs";

/// Checks that the kernel, in the network namespace of this thread, can run this mode in these families. Returns the
/// scheduler with this name; an empty name stands for `rr`. An error lists everything that is missing. The kernel
/// loads its modules. Creates a virtual server at an address for documentation and a network device, and removes them
/// again.
pub fn available(scheduler: &str, families: &[Family]) -> Result<IpvsScheduler, portolan_engine::Error> {
    let name = if scheduler.is_empty() { "rr" } else { scheduler };
    let wanted = IpvsScheduler::named(name);
    let mut missing = missing(wanted.unwrap_or_default(), families)?;
    match wanted {
        Some(scheduler) if missing.is_empty() => return Ok(scheduler),
        Some(_) => {}
        None => {
            missing.push(format!("no scheduler is called `{name}`; write one of {}", IpvsScheduler::names()));
        }
    }
    Err(portolan_engine::Error::Unsupported { mode: "ipvs", missing: missing.join("; ") })
}

/// Returns the number of IPVS in generic netlink; `None` if the kernel has no IPVS. The kernel loads the module.
pub(super) fn number(socket: &mut Socket) -> Result<Option<u16>, SocketError> {
    if let Some(number) = known_number(socket)? {
        return Ok(Some(number));
    }
    // Before Linux 5.17 the kernel does not load IPVS when it is asked for it by name, but it loads it for a match that needs
    // it. Whether it has the match does not matter: the second question is whether IPVS is there.
    if let Ok(mut netfilter) = Socket::open(Protocol::Netfilter) {
        let _ = netfilter.query(&mut compat::find_match(MATCH, 0), |_| Ok(()));
    }
    known_number(socket)
}

/// Returns the number of IPVS if the kernel has loaded it, or loads it for its name.
fn known_number(socket: &mut Socket) -> Result<Option<u16>, SocketError> {
    let mut found = None;
    let asked = socket.query(&mut generic::family(ipvs::FAMILY), |frame| {
        if let generic::GenericEvent::NewFamily(family) = generic::GenericEvent::decode(frame)?
            && family.name == ipvs::FAMILY
        {
            found = Some(family.id);
        }
        Ok(())
    });
    match asked {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        asked => asked.map(|()| found),
    }
}

/// Returns what the kernel lacks, each with a way to get it.
fn missing(scheduler: IpvsScheduler, families: &[Family]) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    let mut generic = Socket::open(Protocol::Generic).map_err(Error::socket("netlink sockets"))?;
    match number(&mut generic).map_err(Error::socket("asking for IPVS"))? {
        None => missing.push(
            "IPVS is missing (module ip_vs, CONFIG_IP_VS); run `modprobe ip_vs`, or boot a kernel that has it"
                .to_owned(),
        ),
        Some(number) => {
            if !Path::new(CONNTRACK_SETTING).exists() {
                missing.push(format!(
                    "IPVS does not work with conntrack here ({CONNTRACK_SETTING} is missing); boot a kernel with CONFIG_IP_VS_NFCT"
                ));
            }
            for family in families {
                missing.extend(trial(&mut generic, number, *family, scheduler)?);
            }
        }
    }
    missing.extend(missing_sets(families)?);
    missing.extend(missing_device()?);
    Ok(missing)
}

/// Creates a virtual server and removes it. Returns why that is not possible; `None` if it is.
pub(super) fn trial(
    socket: &mut Socket,
    number: u16,
    family: Family,
    scheduler: IpvsScheduler,
) -> Result<Option<String>, Error> {
    if !module::is_usable(scheduler) {
        return Ok(Some(lacks(scheduler)));
    }
    let [ipv4, ipv6] = TRIAL_ADDRESSES;
    let address = match family {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    };
    let Ok(address) = address.parse::<IpAddr>() else { return Ok(None) };
    for port in TRIAL_PORTS {
        let identity = Key { address, port, protocol: Transport::Tcp }.identity();
        let server = VirtualServer {
            identity,
            scheduler: scheduler.name().to_owned(),
            flags: 0,
            timeout: 0,
            counters: Counters::default(),
        };
        match alone(socket, |batch| ipvs::new_virtual_server(batch, number, &server))? {
            None => {
                alone(socket, |batch| ipvs::delete_virtual_server(batch, number, &identity))?;
                return Ok(None);
            }
            // Another program has a virtual server there.
            Some(Errno::EEXIST) => {}
            Some(Errno::ENOENT) => return Ok(Some(lacks(scheduler))),
            Some(errno) => {
                return Ok(Some(format!(
                    "IPVS takes no virtual server of {family} ({errno}); boot a kernel whose IPVS has {family}"
                )));
            }
        }
    }
    Ok(None)
}

fn lacks(scheduler: IpvsScheduler) -> String {
    format!(
        "the scheduler {scheduler} is missing; run `modprobe ip_vs_{scheduler}`, or choose another one (ipvs.scheduler)"
    )
}

/// Sends one message. Returns why the kernel refused it, or `None`.
fn alone(socket: &mut Socket, write: impl FnOnce(&mut Batch)) -> Result<Option<Errno>, Error> {
    let mut batch = Batch::new(socket.next_sequence(1));
    write(&mut batch);
    batch.acknowledge_last();
    let replies = socket.submit(&batch).map_err(Error::socket("virtual servers"))?;
    match replies.refusals.first() {
        Some(refusal) if refusal.errno == Errno::EPERM => Err(Error::Refused {
            what: "adding a virtual server (CAP_NET_ADMIN is needed)".to_owned(),
            errno: Errno::EPERM,
        }),
        Some(refusal) => Ok(Some(refusal.errno)),
        None if replies.acknowledged == 0 => Err(Error::Lost { what: "virtual servers" }),
        None => Ok(None),
    }
}

fn missing_sets(families: &[Family]) -> Result<Vec<String>, Error> {
    let mut socket = Socket::open(Protocol::Netfilter).map_err(Error::socket("netlink sockets"))?;
    let kinds: std::collections::BTreeSet<Type> = Set::ALL.into_iter().map(Set::kind).collect();
    let mut missing = Vec::new();
    for kind in kinds {
        for family in families {
            match revision(&mut socket, kind, set_family(*family)) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let name = kind.name();
                    let module = name.replacen(':', "_", 1).replace(',', "");
                    missing.push(format!(
                        "ipsets of type {name} ({family}) are missing; run `modprobe ip_set_{module}`"
                    ));
                }
                // The kernel does not know ipset's netlink messages.
                Err(error) if error.errno() == Some(Errno::EINVAL) => {
                    return Ok(vec![
                        "ipsets are missing (module ip_set, CONFIG_IP_SET); run `modprobe ip_set`".to_owned(),
                    ]);
                }
                Err(source) => return Err(Error::Socket { what: "asking for types of ipsets", source }),
            }
        }
    }
    missing.dedup();
    Ok(missing)
}

/// Returns the revision of a set type to use; `None` if the kernel lacks the type.
pub(super) fn revision(
    socket: &mut Socket,
    kind: Type,
    family: SetFamily,
) -> Result<Option<u8>, SocketError> {
    let mut found = None;
    let asked = socket.query(&mut ipset::find_type(kind, family), |frame| {
        if let ipset::IpsetEvent::Type { revision } = ipset::IpsetEvent::decode(frame)? {
            found = Some(revision);
        }
        Ok(())
    });
    match asked {
        Err(error) if error.errno() == Some(Errno(ipset::ERR_FIND_TYPE)) => Ok(None),
        asked => asked.map(|()| found.map(|latest: u8| latest.min(kind.known_revision()))),
    }
}

fn missing_device() -> Result<Option<String>, Error> {
    let failed = Error::socket("making the network device kube-ipvs0");
    let mut socket = Socket::open(Protocol::Route).map_err(&failed)?;
    if device(&mut socket).map_err(&failed)?.is_some() {
        return Ok(None);
    }
    match socket.query(&mut route::create_dummy(DEVICE), |_| Ok(())) {
        Ok(()) => {}
        Err(error) if error.errno() == Some(Errno::EEXIST) => return Ok(None),
        Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => {
            let text = "dummy network devices are missing (CONFIG_DUMMY); run `modprobe dummy`";
            return Ok(Some(text.to_owned()));
        }
        Err(error) => return Err(failed(error)),
    }
    if let Some(index) = device(&mut socket).map_err(&failed)? {
        socket.query(&mut route::delete_link(index), |_| Ok(())).map_err(&failed)?;
    }
    Ok(None)
}
