//! A mode that writes to no kernel: it records what it would do. Its "kernel" is a list of lines that tests share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_engine::dataplane::TRANSIT_TIME;
use portolan_engine::{
    About, Changes, Collection, Commit, Condition, Dataplane, Error, Refusal, Removal, Table, Takeover,
};
use portolan_model::{Forwarding, Frontend, Protocol, ServicePortName};

/// What stands in for the kernel: a line for each frontend, with the endpoints, and whether packets are led to them.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) lines: BTreeMap<String, String>,
    pub(crate) leads_in: bool,
    /// Every message, in order.
    pub(crate) messages: Vec<String>,
    /// How many of the next messages are refused.
    pub(crate) refuses: usize,
}

/// The data plane of one family. It knows where its kernel is, and nothing else.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recording {
    kernel: Arc<Mutex<Kernel>>,
    has_left: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the kernel refused {0:?}")]
pub(crate) struct Refused(String);

/// Returns the lines that a Service port needs. It is pure: the same Service port always needs the same lines.
fn lines(name: &ServicePortName, forwarding: &Forwarding) -> Vec<(String, String)> {
    let endpoints: Vec<String> =
        forwarding.cluster.iter().map(|backend| backend.socket().to_string()).collect();
    let endpoints = format!("{name} {}", endpoints.join(" "));
    let line = |frontend: &Frontend| (format!("{frontend:?}/{}", forwarding.protocol), endpoints.clone());
    forwarding.frontends.iter().map(line).collect()
}

/// Returns true if the mode can program the Service port.
fn is_carried(forwarding: &Forwarding) -> bool {
    forwarding.protocol != Protocol::Sctp
}

impl Recording {
    pub(crate) fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the messages that lead from the lines `old` to the lines `new`: first what is added, then what is removed.
    fn commit(
        &self,
        old: &BTreeMap<String, String>,
        new: &BTreeMap<String, String>,
    ) -> Result<Commit, Error> {
        let mut commit = Commit::default();
        let added = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
        for (key, value) in added {
            self.send(&mut commit, format!("put {key} {value}"))?;
            self.kernel().lines.insert(key.clone(), value.clone());
        }
        for key in old.keys().filter(|key| !new.contains_key(*key)) {
            self.send(&mut commit, format!("remove {key}"))?;
            self.kernel().lines.remove(key);
        }
        Ok(commit)
    }

    fn send(&self, commit: &mut Commit, message: String) -> Result<(), Error> {
        let mut kernel = self.kernel();
        if kernel.refuses > 0 {
            kernel.refuses -= 1;
            return Err(Error::of_mode(Refused(message)));
        }
        commit.elements += 1;
        commit.bytes += message.len();
        kernel.messages.push(message);
        Ok(())
    }
}

impl Dataplane for Recording {
    fn about(&self) -> About {
        // Nothing notifies of changes to a list, so it is checked periodically.
        About { is_notified: false, ..About::of("recording") }
    }

    /// In sync, the kernel has the lines of the former state of each changed Service port.
    fn apply(&mut self, _table: &Table, changes: &Changes) -> Result<Commit, Error> {
        let (mut old, mut new, mut refused) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for change in &changes.forwardings {
            if let Some(forwarding) = change.old.as_ref().filter(|old| is_carried(old)) {
                old.extend(lines(&change.name, forwarding));
            }
            match &change.new {
                Some(forwarding) if is_carried(forwarding) => new.extend(lines(&change.name, forwarding)),
                Some(_) => refused.push(Refusal::whole(change.name.clone(), "SCTP is not recorded")),
                None => {}
            }
        }
        Ok(Commit { refused, ..self.commit(&old, &new)? })
    }

    /// Reads every line, also those of other programs. So it needs no memory of earlier calls, and ignores `changes`.
    fn compare(&mut self, table: &Table, _changes: &Changes) -> Result<Commit, Error> {
        let (carried, others): (Vec<_>, Vec<_>) =
            table.iter().partition(|(_, forwarding)| is_carried(forwarding));
        let new = carried.iter().flat_map(|(name, forwarding)| lines(name, forwarding)).collect();
        let old = self.kernel().lines.clone();
        let mut commit = self.commit(&old, &new)?;
        // What leads packets in comes last, so that everything takes effect at once.
        if !self.kernel().leads_in {
            self.send(&mut commit, "lead in".to_owned())?;
            self.kernel().leads_in = true;
        }
        let refusal =
            |(name, _): (&Arc<ServicePortName>, _)| Refusal::whole(name.clone(), "SCTP is not recorded");
        Ok(Commit { full: true, refused: others.into_iter().map(refusal).collect(), ..commit })
    }

    /// A quick look at the keys. What endpoints they have is seen at the next comparison.
    fn check(&mut self, table: &Table) -> Result<Condition, Error> {
        let carried = table.iter().filter(|(_, forwarding)| is_carried(forwarding));
        let keys: BTreeSet<String> =
            carried.flat_map(|(name, forwarding)| lines(name, &forwarding)).map(|(key, _)| key).collect();
        let kernel = self.kernel();
        let is_there = kernel.leads_in && kernel.lines.keys().eq(&keys);
        Ok(if is_there { Condition::Intact } else { Condition::Changed })
    }

    /// `apply` leaves nothing over.
    fn collect(&mut self) -> Result<Collection, Error> {
        Ok(Collection::Done)
    }

    /// First what leads packets in, and the rest when these packets are through.
    fn remove_part(&mut self, _takeover: &Takeover<'_>) -> Result<Removal, Error> {
        if !std::mem::replace(&mut self.has_left, true) {
            self.send(&mut Commit::default(), "lead nothing in".to_owned())?;
            self.kernel().leads_in = false;
            return Ok(Removal::Continues(TRANSIT_TIME));
        }
        let old = self.kernel().lines.clone();
        self.commit(&old, &BTreeMap::new()).map(|_| Removal::Done)
    }
}
