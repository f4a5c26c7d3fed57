//! Reads the whole table on a thread of its own, while it is not known yet what the table should have.
//!
//! A start needs both, and each takes a second if the table is large. The data plane takes the reading over at its first
//! comparison, also if it has not ended. From then on, its pauses are those of the comparison: in each of them the thread lends
//! the [`View`].
//!
//! ```text
//!  thread:      read ── read ── ... ── read ──view──┐    ┌── read ── ... ── end
//!  data plane:           (start)   taken over       └ pause ┘                └─view──> comparison
//! ```
//!
//! Another program may have committed since. So the view counts only if the ruleset has the same generation, and otherwise the
//! table is read again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_engine::drift::generation;
use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};

use super::chain::FamilyTable;
use super::layout::TRANSLATE;
use super::readback::{self, Large, Pause, SavedElements, View};

/// A reading of a family's table that is under way or has ended. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Reading {
    /// Never waited for: the lock only lets threads share the data plane that has the reading.
    progress: Mutex<Receiver<Progress>>,
    /// Gives the view of a pause back, with the outcome of the pause.
    returns: Sender<(View, Result<(), SocketError>)>,
    state: Arc<State>,
}

#[derive(Debug)]
enum Progress {
    Paused(Box<View>),
    Ended(Box<Result<View, SocketError>>),
}

#[derive(Debug, Default)]
struct State {
    /// True if the data plane waits for the end.
    is_taken_over: AtomicBool,
    /// True if nothing needs the reading.
    is_given_up: AtomicBool,
}

impl State {
    /// Returns true if the data plane has not taken over yet, but will.
    fn is_ahead(&self) -> bool {
        !self.is_given_up.load(Ordering::Acquire) && !self.is_taken_over.load(Ordering::Acquire)
    }
}

impl Reading {
    /// Begins to read the table of the nftables mode, in the network namespace of this thread. `saved` are the elements of the
    /// last run.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn begin(family: Family, saved: Option<SavedElements>) -> io::Result<Self> {
        Self::spawn(TRANSLATE.place(family), readback::LARGE, saved, |_| {})
    }

    fn spawn(
        place: FamilyTable,
        large: u32,
        saved: Option<SavedElements>,
        before: impl FnOnce(&State) + Send + 'static,
    ) -> io::Result<Self> {
        let state = Arc::new(State::default());
        let (sender, progress) = channel();
        let (returns, returned) = channel();
        let reader = Reader { place, large, saved, sender, returned, state: Arc::clone(&state) };
        std::thread::Builder::new().name("table reader".to_owned()).spawn(move || {
            before(&reader.state);
            let outcome = reader.read();
            // The send fails if nothing needs the reading.
            let _ = reader.sender.send(Progress::Ended(Box::new(outcome)));
        })?;
        Ok(Self { progress: Mutex::new(progress), returns, state })
    }

    /// Begins a reading that reads nothing before it is taken over.
    #[cfg(test)]
    pub(super) fn when_taken_over(place: FamilyTable, large: u32, saved: Option<SavedElements>) -> Self {
        let wait = |state: &State| {
            while state.is_ahead() {
                std::thread::yield_now();
            }
        };
        Self::spawn(place, large, saved, wait).unwrap()
    }

    /// Takes the reading over and returns what it has read, after the pauses that are left. `socket` is that of the data plane.
    /// Returns [`SocketError::Interrupted`] if another program has committed meanwhile.
    pub(super) fn finish(mut self, socket: &mut Socket, pause: Pause<'_>) -> Result<View, SocketError> {
        self.state.is_taken_over.store(true, Ordering::Release);
        let progress = self.progress.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut is_lent = false;
        let view = loop {
            match progress.recv() {
                Ok(Progress::Paused(mut view)) => {
                    is_lent = true;
                    let outcome = pause(&mut view, socket);
                    // If the send fails, the thread has ended, and the next turn ends this loop.
                    let _ = self.returns.send((*view, outcome));
                }
                Ok(Progress::Ended(outcome)) => match *outcome {
                    Ok(view) => break view,
                    Err(error) if is_lent => return Err(error),
                    // What was wrong may be long ago.
                    Err(error) => {
                        tracing::debug!(%error, "the reading of the table has failed; it is read again");
                        return Err(SocketError::Interrupted);
                    }
                },
                // The thread has panicked.
                Err(_) => return Err(SocketError::Interrupted),
            }
        };
        if generation(socket)? == view.generation {
            return Ok(view);
        }
        tracing::debug!("another program has committed since the table was read; it is read again");
        Err(SocketError::Interrupted)
    }

    /// Waits until the thread has ended.
    #[cfg(test)]
    fn wait_for_end(&self) {
        while Arc::strong_count(&self.state) > 1 {
            std::thread::yield_now();
        }
    }

    /// Returns a function that tells whether this was taken over.
    #[cfg(test)]
    pub(super) fn is_taken_over(&self) -> impl Fn() -> bool + use<> {
        let state = Arc::clone(&self.state);
        move || state.is_taken_over.load(Ordering::Acquire)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.state.is_given_up.store(true, Ordering::Release);
    }
}

/// What the thread owns.
struct Reader {
    place: FamilyTable,
    large: u32,
    saved: Option<SavedElements>,
    sender: Sender<Progress>,
    returned: Receiver<(View, Result<(), SocketError>)>,
    state: Arc<State>,
}

impl Reader {
    fn read(&self) -> Result<View, SocketError> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        let mut attempt = 0;
        let large = Large { from: self.large, saved: self.saved.as_ref() };
        loop {
            let outcome =
                readback::read_with_pauses(&mut socket, self.place, large, &mut |view, _| self.pause(view));
            let is_disturbed = matches!(outcome, Err(SocketError::Interrupted | SocketError::Overrun));
            if !is_disturbed || attempt == readback::ATTEMPTS || !self.waits(1 << attempt) {
                return outcome;
            }
            attempt += 1;
        }
    }

    /// Waits for some times 2 ms. Returns false if the data plane has taken over, which makes further attempts itself, or if
    /// nothing needs the reading.
    fn waits(&self, times: u32) -> bool {
        (0..times).all(|_| {
            std::thread::sleep(Duration::from_millis(2));
            self.state.is_ahead()
        })
    }

    /// Lends the view to the data plane, if it has taken over.
    fn pause(&self, view: &mut View) -> Result<(), SocketError> {
        if self.state.is_given_up.load(Ordering::Acquire) {
            return Err(SocketError::Interrupted);
        }
        if !self.state.is_taken_over.load(Ordering::Acquire) {
            return Ok(());
        }
        let lent = Progress::Paused(Box::new(std::mem::take(view)));
        self.sender.send(lent).map_err(|_| SocketError::Interrupted)?;
        let (returned, outcome) = self.returned.recv().map_err(|_| SocketError::Interrupted)?;
        *view = returned;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use portolan_engine::Driven;
    use portolan_engine::drift::DriftWatch;
    use portolan_model::world::Edited;
    use portolan_model::{Change, Settings};
    use portolan_sock::namespace::in_new_network_namespace;
    use portolan_wire::nftables::{Family as WireFamily, IfExists, NftTable, Transaction};

    use super::super::dataplane::Nftables;
    use super::super::element::Set;
    use super::*;

    /// Returns a socket in a namespace where the table has no Service.
    fn with_empty_table() -> Socket {
        let settings = Settings::plain(Family::Ipv4);
        let mut nftables = Driven::new(settings.clone(), Nftables::open(settings).unwrap());
        nftables.resync().unwrap();
        Socket::open(Protocol::Netfilter).unwrap()
    }

    /// Another program's commit, to a table of its own.
    fn commit_elsewhere(socket: &mut Socket) {
        let mut transaction = Transaction::begin(socket.next_sequence(16), None);
        let family = WireFamily::IPV4;
        transaction.new_table(&NftTable::new(family, "other"), IfExists::Fail);
        transaction.delete_table(family, "other");
        socket.commit(&transaction.finish().unwrap()).unwrap();
    }

    #[test]
    fn a_reading_has_what_a_listing_shows_and_counts_until_others_commit() {
        in_new_network_namespace(|| {
            let settings = Settings::plain(Family::Ipv4);
            let mut nftables = Driven::new(settings.clone(), Nftables::open(settings).unwrap());
            let of_family = |change: &Change| change.family == Family::Ipv4;
            let changes: Vec<Change> =
                Edited::new(7, 40).first().changes.into_iter().filter(of_family).collect();
            nftables.apply(&changes).unwrap();
            nftables.resync().unwrap();

            let place = TRANSLATE.place(Family::Ipv4);
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            let listed = readback::read(&mut socket, place).unwrap();
            let mut pauses = 0;
            for large in [0, u32::MAX] {
                let reading = Reading::when_taken_over(place, large, None);
                let read = reading.finish(&mut socket, &mut |view, _| {
                    pauses += 1;
                    assert!(view.table.is_some());
                    Ok(())
                });
                let read = read.unwrap();
                for set in Set::ALL {
                    let rows = |view: &View| -> Vec<_> {
                        view.rows_of(set)
                            .map(|row| (row.key, row.data.as_slice().to_vec(), row.comment))
                            .collect()
                    };
                    assert_eq!(rows(&read), rows(&listed), "{set:?}");
                }
                assert_eq!((read.classes, read.ranges), (listed.classes.clone(), listed.ranges.clone()));
            }
            assert!(pauses > 10, "{pauses}");

            let reading = Reading::when_taken_over(place, 0, None);
            let outcome = reading.finish(&mut socket, &mut |_, socket| {
                commit_elsewhere(socket);
                Ok(())
            });
            assert!(matches!(outcome, Err(SocketError::Interrupted)), "{outcome:?}");
        })
        .expect("this test needs root");
    }

    #[test]
    fn a_reading_that_ended_long_ago_counts_until_others_commit() {
        in_new_network_namespace(|| {
            let mut socket = with_empty_table();
            for others_commit in [false, true] {
                let reading = Reading::begin(Family::Ipv4, None).unwrap();
                reading.wait_for_end();
                if others_commit {
                    commit_elsewhere(&mut socket);
                }
                let outcome = reading.finish(&mut socket, &mut |_, _| panic!("the thread has ended"));
                match outcome {
                    Ok(view) => assert!(!others_commit && view.table.is_some() && !view.rules.is_empty()),
                    Err(error) => assert!(others_commit && matches!(error, SocketError::Interrupted)),
                }
            }
        })
        .expect("this test needs root");
    }

    #[test]
    fn changes_are_reported_up_to_the_last_commit_that_was_read() {
        in_new_network_namespace(|| {
            let settings = Settings::plain(Family::Ipv4);
            let mut nftables = Driven::new(settings.clone(), Nftables::open(settings.clone()).unwrap());
            nftables.resync().unwrap();
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            let own = Nftables::open(settings).unwrap().own();
            let mut watch = DriftWatch::open(vec![own]).unwrap();
            let first = generation(&mut socket).unwrap();
            assert_eq!(watch.generation(), first);
            commit_elsewhere(&mut socket);
            assert_eq!((watch.generation(), generation(&mut socket).unwrap()), (first, first + 1));
            assert_eq!((watch.drifted().unwrap(), watch.generation()), (Vec::new(), first + 1));
            // A commit of the table's own process counts, too, and so does one that is drift.
            nftables.remove().unwrap();
            assert_eq!(watch.drifted().unwrap(), [Family::Ipv4]);
            assert_eq!(watch.generation(), generation(&mut socket).unwrap());
        })
        .expect("this test needs root");
    }

    #[test]
    fn what_others_delete_after_a_reading_is_written_again() {
        in_new_network_namespace(|| {
            let mut socket = with_empty_table();
            let reading = Reading::begin(Family::Ipv4, None).unwrap();
            reading.wait_for_end();
            let is_taken_over = reading.is_taken_over();
            let mut transaction = Transaction::begin(socket.next_sequence(16), None);
            transaction.delete_table(WireFamily::IPV4, super::super::layout::TABLE);
            socket.commit(&transaction.finish().unwrap()).unwrap();
            let settings = Settings::plain(Family::Ipv4);
            let nftables = Nftables::open(settings.clone()).unwrap().with_reading(Some(reading));
            let commit = Driven::new(settings, nftables).resync().unwrap();
            assert!(is_taken_over() && commit.objects > 0);
            assert!(readback::table(&mut socket, TRANSLATE.place(Family::Ipv4)).unwrap().is_some());
        })
        .expect("this test needs root");
    }

    #[test]
    fn a_pause_that_fails_ends_the_reading() {
        in_new_network_namespace(|| {
            let mut socket = with_empty_table();
            let reading = Reading::when_taken_over(TRANSLATE.place(Family::Ipv4), 0, None);
            let outcome = reading.finish(&mut socket, &mut |_, _| Err(SocketError::Overrun));
            assert!(matches!(outcome, Err(SocketError::Overrun)), "{outcome:?}");
        })
        .expect("this test needs root");
    }

    #[test]
    fn a_reading_that_nothing_needs_ends_at_its_next_pause() {
        let (sender, progress) = channel();
        let (returns, returned) = channel();
        let state = Arc::new(State::default());
        let place = TRANSLATE.place(Family::Ipv4);
        let reader = Reader { place, large: 0, saved: None, sender, returned, state: Arc::clone(&state) };
        assert!(reader.pause(&mut View::default()).is_ok(), "nothing waits for it yet");
        drop(Reading { progress: Mutex::new(progress), returns, state });
        assert!(matches!(reader.pause(&mut View::default()), Err(SocketError::Interrupted)));
        assert!(!reader.waits(1));
    }
}
