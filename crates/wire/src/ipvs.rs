//! IPVS, as much as it takes to end it: its virtual servers, to be counted, and removed all at once.

use crate::generic::{Header, request};
use crate::netlink::{NLM_F_ACK, NLM_F_DUMP};
use crate::{DecodeError, Frame, Request};

/// The name by which generic netlink knows it (`IPVS_GENL_NAME`).
pub const FAMILY: &str = "IPVS";

const VERSION: u8 = 1;
const IPVS_CMD_NEW_SERVICE: u8 = 1;
const IPVS_CMD_GET_SERVICE: u8 = 4;
const IPVS_CMD_FLUSH: u8 = 17;

/// All virtual servers. `family` is the number of [`FAMILY`].
pub fn virtual_servers(family: u16) -> Request {
    request(family, NLM_F_DUMP, Header { command: IPVS_CMD_GET_SERVICE, version: VERSION }, |_| {})
}

/// Removes all virtual servers with their destinations. `family` is the number of [`FAMILY`].
pub fn flush(family: u16) -> Request {
    request(family, NLM_F_ACK, Header { command: IPVS_CMD_FLUSH, version: VERSION }, |_| {})
}

/// Whether a message tells of a virtual server. `family` is the number of [`FAMILY`].
pub fn is_virtual_server(family: u16, frame: &Frame<'_>) -> Result<bool, DecodeError> {
    Ok(frame.header.kind == family && Header::decode(frame)?.command == IPVS_CMD_NEW_SERVICE)
}
