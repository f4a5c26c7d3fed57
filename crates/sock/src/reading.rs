//! Kernel listings that are repeated if their objects change while they are read.

use crate::SocketError;

/// Number of attempts at a listing while other programs change its objects.
pub const ATTEMPTS: u32 = 8;

/// Runs `read` again if its objects changed meanwhile.
pub fn retry_on_change<T>(mut read: impl FnMut() -> Result<T, SocketError>) -> Result<T, SocketError> {
    for _ in 1..ATTEMPTS {
        match read() {
            Err(SocketError::Interrupted | SocketError::Overrun) => {}
            outcome => return outcome,
        }
    }
    read()
}
