//! Expressions for sockets of this host.

use super::{Body, Map, number, register, register_if};
use crate::DecodeError;
use crate::netlink::Message;
use crate::nfnetlink::Family;
use crate::nftables::Register;

const NFTA_TPROXY_FAMILY: u16 = 1;
const NFTA_TPROXY_REG_ADDR: u16 = 2;
const NFTA_TPROXY_REG_PORT: u16 = 3;

const NFTA_SOCKET_KEY: u16 = 1;
const NFTA_SOCKET_DREG: u16 = 2;

numbers! {
    /// A property of a socket (`enum nft_socket_keys`).
    SocketKey(u32) {
        /// True if the socket may use any address (`IP_TRANSPARENT`); one byte.
        TRANSPARENT = 0,
        /// The socket's mark, in the machine's byte order.
        MARK = 1,
        /// True if the socket is bound to no address; one byte.
        WILDCARD = 2,
    }
}

/// Passes the packet to a socket of this host (`tproxy`): that of its connection, or else a listener's. The socket
/// has to be transparent. Ends the rule if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tproxy {
    /// Family of the address.
    pub family: Family,
    /// Address of the listener. If absent, the packet's destination or an address of this host.
    pub address: Option<Register>,
    /// Port of the listener, in network byte order. If absent, the packet's port.
    pub port: Option<Register>,
}

/// Loads a property of the socket that receives the packet (`socket`). Ends the rule if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Socket {
    /// The property to load.
    pub key: SocketKey,
    /// The register to load into.
    pub destination: Register,
}

impl Body for Tproxy {
    const NAME: &'static str = "tproxy";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_u32_be(NFTA_TPROXY_FAMILY, u32::from(self.family.0));
        message.attr_register_if(NFTA_TPROXY_REG_ADDR, self.address);
        message.attr_register_if(NFTA_TPROXY_REG_PORT, self.port);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let family = map.required(NFTA_TPROXY_FAMILY)?;
        let family_number = family.u32_be()?;
        Ok(Self {
            family: Family(u8::try_from(family_number).map_err(|_| family.impossible(family_number))?),
            address: register_if(map, NFTA_TPROXY_REG_ADDR)?,
            port: register_if(map, NFTA_TPROXY_REG_PORT)?,
        })
    }
}

impl Body for Socket {
    const NAME: &'static str = "socket";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_u32_be(NFTA_SOCKET_KEY, self.key.0);
        message.attr_register(NFTA_SOCKET_DREG, self.destination);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            key: SocketKey(number(map, NFTA_SOCKET_KEY)?),
            destination: register(map, NFTA_SOCKET_DREG)?,
        })
    }
}
