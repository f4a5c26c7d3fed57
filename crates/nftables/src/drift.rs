//! Which notifications of the kernel concern the table of this mode.

use portolan_wire::nftables::NftablesEvent;
use portolan_wire::{DecodeError, Frame};

use portolan_engine::drift::Watched;

/// A table, and the port ID of the socket that commits its changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnTable {
    pub(super) name: &'static str,
    pub(super) port: u32,
}

impl Watched for OwnTable {
    fn is_writer(&self, port: u32) -> bool {
        self.port == port
    }

    fn is_drift(
        &self,
        table: &str,
        _event: &NftablesEvent<'_>,
        _frame: &Frame<'_>,
    ) -> Result<bool, DecodeError> {
        Ok(table == self.name)
    }
}
