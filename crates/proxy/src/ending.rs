//! The end of the process after a signal, in the nftables mode.
//!
//! The engine ends, and the data planes in sync save the elements of large sets for the next start. That start uses them if
//! nothing was committed since.

use std::cell::RefCell;
use std::time::Duration;

use portolan_engine::drift::generation;
use portolan_sock::{Protocol, Socket};
use tokio::time::{sleep, timeout};

use super::agent::Agent;

/// Maximum time until the notifications of the last commit have been read.
const REPORTED_WITHIN: Duration = Duration::from_millis(200);
/// Maximum time until the engine has ended.
const ENDED_WITHIN: Duration = Duration::from_secs(2);
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until the notifications of the last commit have been read, and ends the engine. If they do not come in time, the engine does
/// not end, and nothing is saved. The caller must go on reading notifications meanwhile.
pub(super) async fn leave(agent: &RefCell<Agent>) {
    if !agent.borrow().saves_elements() {
        return;
    }
    let Ok(mut socket) = Socket::open(Protocol::Netfilter) else { return };
    let reported = async {
        loop {
            let now = generation(&mut socket).ok();
            if let Some(now) = now.filter(|_| agent.borrow().is_reported(now)) {
                return now;
            }
            sleep(PAUSE).await;
        }
    };
    let Ok(generation) = timeout(REPORTED_WITHIN, reported).await else {
        tracing::debug!(
            "the notifications of the last commit have not come: the next start reads the kernel's table"
        );
        return;
    };
    agent.borrow_mut().stop_engine(generation);
    let ended = async {
        while !agent.borrow().has_engine_ended() {
            sleep(PAUSE).await;
        }
    };
    if timeout(ENDED_WITHIN, ended).await.is_err() {
        tracing::debug!("the engine has not ended in time: the next start may read the kernel's table");
    }
}
