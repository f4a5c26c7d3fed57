//! The network device of this mode, and the addresses of this node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_sock::{Socket, SocketError};
use portolan_wire::route::{Address, Scope};

/// The network device of this mode, with kube-proxy's name. Its addresses make this host accept packets to Services.
pub const DEVICE: &str = "kube-ipvs0";

/// The addresses of this node in the family.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    /// The addresses of our network device.
    pub device: BTreeSet<IpAddr>,
    /// The addresses of other devices, without loopback addresses and those of link scope.
    pub(super) node: BTreeSet<IpAddr>,
}

impl Addresses {
    /// Adds an address of a network device. `device` is the index of our device.
    pub(super) fn add(&mut self, address: &Address, device: u32) {
        if address.index == device {
            self.device.insert(address.local);
        } else if !address.local.is_loopback() && address.scope != Scope::LINK {
            self.node.insert(address.local);
        }
    }
}

/// Returns the index of the network device, if the device exists.
pub fn device(socket: &mut Socket) -> Result<Option<u32>, SocketError> {
    portolan_sock::addresses::device_index(socket, DEVICE)
}
