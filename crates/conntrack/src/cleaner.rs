//! Lists flows over netlink and deletes the stale ones.
//!
//! Flows are deleted on a second socket while the listing goes on. The kernel makes the next part of a listing when
//! the last one has been read, and continues from its position in the table whatever is deleted meanwhile. So one
//! pass finds every flow.

use portolan_model::Family;
use portolan_sock::{Errno, Protocol, Refusal, Socket, SocketError};
use portolan_wire::conntrack::{self, ConntrackEvent, Filter, Flow};
use portolan_wire::{Batch, DecodeError, Frame};

use super::{Check, Error};

/// Number of attempts at a listing that changed while it was read. kube-proxy makes as many (`MaxAttemptsEINTR` in
/// `pkg/proxy/util`).
const ATTEMPTS: u32 = 5;
/// Number of flows deleted at once. It limits memory (about 100 KiB) and the age of a verdict.
const BATCH: usize = 512;

/// The result of a clean-up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of flows listed and checked. A flow that is listed twice counts twice.
    pub listed: usize,
    /// Number of stale flows that are gone, including those that ended before they were deleted.
    pub deleted: usize,
    /// Number of stale flows that the kernel refused to delete.
    pub refused: usize,
    /// The first of those refusals (EBUSY: the flow is offloaded to a flowtable).
    pub refusal: Option<Refusal>,
    /// True if some flows may not have been seen: the table changed too much in each of five attempts, or a flow
    /// could not be read.
    pub partial: bool,
}

/// The sockets for one family's clean-up, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct Cleaner {
    family: Family,
    list: Socket,
    delete: Socket,
}

impl Cleaner {
    /// Opens the sockets.
    pub fn open(family: Family) -> Result<Self, Error> {
        let open = || Socket::open(Protocol::Netfilter).map_err(Error::Open);
        Ok(Self { family, list: open()?, delete: open()? })
    }

    /// Deletes every flow that is stale according to `check`. Does nothing if `check` is of the other family.
    pub fn clean(&mut self, check: &Check) -> Result<Report, Error> {
        self.clean_unless(check, &mut |_| false)
    }

    /// Runs [`clean`](Self::clean), but calls `spare` for each stale flow just before its deletion, and keeps the
    /// flow if that returns true.
    pub fn clean_unless(
        &mut self,
        check: &Check,
        spare: &mut dyn FnMut(&Flow) -> bool,
    ) -> Result<Report, Error> {
        let mut report = Report::default();
        if check.family() != self.family {
            return Ok(report);
        }
        for filter in &check.filters() {
            let seen = attempts(|| {
                let sweep = Sweep::new(&mut self.delete, check, spare, &mut report);
                sweep.run(&mut self.list, filter)
            })?;
            report.partial |= seen == Seen::Some;
        }
        Ok(report)
    }
}

impl Report {
    fn count(&mut self, sent: usize, mut refusals: Vec<Refusal>) {
        refusals.retain(|refusal| refusal.errno != Errno::ENOENT);
        self.refused = self.refused.saturating_add(refusals.len());
        self.deleted = self.deleted.saturating_add(sent.saturating_sub(refusals.len()));
        self.refusal = self.refusal.take().or_else(|| refusals.into_iter().next());
    }
}

/// Runs `list` until a listing is complete or the attempts are used up.
fn attempts(mut list: impl FnMut() -> Result<Seen, Error>) -> Result<Seen, Error> {
    for _ in 0..ATTEMPTS {
        if list()? == Seen::All {
            return Ok(Seen::All);
        }
    }
    Ok(Seen::Some)
}

/// How much of the table a listing showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    All,
    Some,
}

/// One listing, and the deletions of the stale flows in it.
struct Sweep<'a> {
    socket: &'a mut Socket,
    check: &'a Check,
    spare: &'a mut dyn FnMut(&Flow) -> bool,
    report: &'a mut Report,
    stale: Vec<Flow>,
    lost: bool,
    failure: Option<SocketError>,
}

impl<'a> Sweep<'a> {
    fn new(
        socket: &'a mut Socket,
        check: &'a Check,
        spare: &'a mut dyn FnMut(&Flow) -> bool,
        report: &'a mut Report,
    ) -> Self {
        Self { socket, check, spare, report, stale: Vec::new(), lost: false, failure: None }
    }

    fn run(mut self, list: &mut Socket, filter: &Filter) -> Result<Seen, Error> {
        let outcome = list.dump(&mut conntrack::list(filter), |frame| {
            self.see(frame);
            Ok(())
        });
        self.delete_stale();
        if let Some(failure) = self.failure {
            return Err(Error::Delete(failure));
        }
        match outcome {
            Ok(()) if self.lost => Ok(Seen::Some),
            Ok(()) => Ok(Seen::All),
            Err(SocketError::Interrupted | SocketError::Overrun) => Ok(Seen::Some),
            Err(error) => Err(Error::List(error)),
        }
    }

    /// Checks one message of the listing. A flow that cannot be read must not keep others from being cleaned up.
    fn see(&mut self, frame: &Frame<'_>) {
        match ConntrackEvent::decode(frame) {
            Ok(ConntrackEvent::New(flow)) => self.judge(flow),
            Ok(_) => {}
            Err(error) => self.skip(&error),
        }
    }

    fn judge(&mut self, flow: Flow) {
        self.report.listed = self.report.listed.saturating_add(1);
        if self.failure.is_some() || !self.check.is_stale(&flow) {
            return;
        }
        self.stale.push(flow);
        if self.stale.len() >= BATCH {
            self.delete_stale();
        }
    }

    fn skip(&mut self, error: &DecodeError) {
        self.report.partial = true;
        tracing::debug!(%error, "a conntrack entry was passed over because it cannot be read");
    }

    /// Deletes the collected flows by their reply tuple and their id. So a client's new flow to another endpoint is
    /// not deleted.
    fn delete_stale(&mut self) {
        let mut stale = std::mem::take(&mut self.stale);
        stale.retain(|flow| !(self.spare)(flow));
        let mut batch = Batch::new(self.socket.next_sequence(u32::try_from(stale.len()).unwrap_or(u32::MAX)));
        for flow in &stale {
            conntrack::delete(&mut batch, flow);
        }
        if !batch.is_empty() {
            match self.socket.submit(&batch) {
                Ok(replies) => {
                    self.lost |= replies.lost;
                    self.report.count(stale.len(), replies.refusals);
                }
                Err(error) => self.failure = Some(error),
            }
        }
        stale.clear();
        self.stale = stale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(sequence: u32, errno: Errno) -> Refusal {
        Refusal { sequence, errno, text: None, offset: None, missing: None }
    }

    #[test]
    fn a_list_that_changed_is_asked_for_five_times() {
        let mut lists = 0;
        let mut changing_until = |last| {
            lists = 0;
            attempts(|| {
                lists += 1;
                Ok(if lists > last { Seen::All } else { Seen::Some })
            })
            .unwrap()
        };
        assert_eq!(changing_until(0), Seen::All);
        assert_eq!(changing_until(4), Seen::All);
        assert_eq!(changing_until(5), Seen::Some);
        assert_eq!(lists, 5);
    }

    #[test]
    fn a_failed_list_is_not_asked_for_again() {
        let mut lists = 0;
        let outcome = attempts(|| {
            lists += 1;
            Err(Error::List(SocketError::Timeout))
        });
        assert!(matches!(outcome, Err(Error::List(SocketError::Timeout))));
        assert_eq!(lists, 1);
    }

    #[test]
    fn a_flow_that_is_gone_already_counts_as_deleted_and_one_that_is_kept_does_not() {
        let mut report = Report::default();
        report.count(10, vec![refusal(2, Errno::ENOENT), refusal(4, Errno::EBUSY), refusal(5, Errno::EPERM)]);
        report.count(3, vec![refusal(12, Errno::EPERM)]);
        let first = Some(refusal(4, Errno::EBUSY));
        let want = Report { deleted: 10, refused: 3, refusal: first, ..Report::default() };
        assert_eq!(report, want);
    }
}
