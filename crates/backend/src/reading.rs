//! Listings of the kernel that are read again when what they list changes meanwhile.

use portolan_sock::SocketError;

/// How often a listing is tried while others keep changing what it lists.
pub(crate) const ATTEMPTS: u32 = 8;

/// Lists again where what is listed changed meanwhile.
pub(crate) fn consistently<T>(mut read: impl FnMut() -> Result<T, SocketError>) -> Result<T, SocketError> {
    for _ in 1..ATTEMPTS {
        match read() {
            Err(SocketError::Interrupted | SocketError::Overrun) => {}
            outcome => return outcome,
        }
    }
    read()
}
