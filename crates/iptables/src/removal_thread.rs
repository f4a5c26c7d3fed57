//! A removal that another thread carries out, and that can be suspended.
//!
//! The thread reads a save, which takes seconds in a large cluster, and then writes one restore. Other data planes may write
//! meanwhile. So the thread asks for permission directly before its restore. Permission that is withdrawn once is not given
//! again: what the thread has read is out of date then.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Whether a thread may write.
#[derive(Debug)]
pub(super) struct Permit(Mutex<bool>);

impl Default for Permit {
    fn default() -> Self {
        Self(Mutex::new(true))
    }
}

impl Permit {
    /// Writes if that is still permitted. Otherwise returns `None`.
    pub(super) fn write<T>(&self, write: impl FnOnce() -> T) -> Option<T> {
        let may_write = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        may_write.then(write)
    }

    /// Withdraws the permission. If the thread is writing, waits until it has written.
    fn withdraw(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// How a removal ended without a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Removed,
    /// Nothing was written, because the permission was withdrawn.
    Withdrawn,
}

/// A thread that removes rules.
#[derive(Debug)]
pub(super) struct RemovalThread<E> {
    thread: JoinHandle<Result<Outcome, E>>,
    permit: Arc<Permit>,
}

impl<E: Send + 'static> RemovalThread<E> {
    /// Starts a thread in the network namespace of this one.
    pub(super) fn start(
        remove: impl FnOnce(&Permit) -> Result<Outcome, E> + Send + 'static,
    ) -> io::Result<Self> {
        let permit = Arc::<Permit>::default();
        let of_thread = permit.clone();
        let thread = Builder::new().name("removal".into()).spawn(move || remove(&of_thread))?;
        Ok(Self { thread, permit })
    }

    /// Ensures that the thread writes nothing from now on. Waits for a restore that has begun, and for nothing else.
    pub(super) fn withdraw(&self) {
        self.permit.withdraw();
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of the thread.
    pub(super) fn join(self) -> Result<Outcome, E> {
        // After a panic nothing is known, so the removal begins anew.
        self.thread.join().unwrap_or(Ok(Outcome::Withdrawn))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_that_writes_is_waited_for_and_one_that_reads_writes_nothing() {
        let (entered, entries) = channel();
        let (release, released) = channel::<()>();
        let write = move |permit: &Permit| {
            let written = permit.write(|| {
                entered.send(()).unwrap();
                released.recv().unwrap();
            });
            Ok::<_, ()>(written.map_or(Outcome::Withdrawn, |()| Outcome::Removed))
        };
        let writing = RemovalThread::start(write).unwrap();
        entries.recv().unwrap();
        assert!(writing.permit.0.try_lock().is_err(), "a withdrawal waits");
        release.send(()).unwrap();
        writing.withdraw();
        assert_eq!(writing.join(), Ok(Outcome::Removed));

        let (release, released) = channel::<()>();
        let reading = RemovalThread::start(move |permit| {
            released.recv().unwrap();
            Ok::<_, ()>(permit.write(|| ()).map_or(Outcome::Withdrawn, |()| Outcome::Removed))
        });
        let reading = reading.unwrap();
        reading.withdraw();
        release.send(()).unwrap();
        assert_eq!(reading.join(), Ok(Outcome::Withdrawn));
    }
}
