//! Backends that accept connections and do not answer: how long they count as failed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use portolan_model::{Family, Protocol};
use portolan_relay::RelayOptions;
use portolan_testkit::eventually_some;

use crate::support::{Bed, PATIENCE, name, serve};

/// A bed with two backends. Both read a byte. One answers, the other leaves its connections to the test.
struct Trial {
    bed: Bed,
    silent: Receiver<TcpStream>,
}

impl Trial {
    /// Sets up the bed. The silent backend has failed once. No attempt is longer than `limit`.
    fn new(limit: Duration) -> Self {
        let options = RelayOptions { connect_limits: vec![limit], ..RelayOptions::default() };
        let mut bed = Bed::new(Protocol::Tcp, options);
        let (sender, silent) = sync_channel(100);
        let taking = serve(bed.listen(), move |mut stream| {
            if stream.read_exact(&mut [0]).is_ok() {
                let _ = sender.send(stream);
            }
        });
        let answering = serve(bed.listen(), |mut stream| {
            let _ = stream.read_exact(&mut [0]).and_then(|()| stream.write_all(b"a"));
        });
        bed.backends(&[taking, answering]);
        let trial = Self { bed, silent };
        trial.fail();
        trial
    }

    /// Makes connections until the silent backend has one. Returns the client's end and the backend's.
    fn reach(&self) -> (TcpStream, TcpStream) {
        let reached = eventually_some(PATIENCE, "a connection to the silent backend", || {
            let mut client = self.bed.connect();
            client.write_all(b"x").unwrap();
            client.set_nonblocking(true).unwrap();
            let backend = eventually_some(PATIENCE, "one of the two", || match self.silent.try_recv() {
                Ok(backend) => Some(Some(backend)),
                Err(_) => client.peek(&mut [0]).is_ok().then_some(None),
            });
            client.set_nonblocking(false).unwrap();
            backend.unwrap().map(|backend| (client, backend))
        });
        // The relay answers after it has handled everything that came before, and has set its counters.
        self.bed.relay.snapshot(Family::Ipv4).unwrap();
        reached.unwrap()
    }

    /// Lets the silent backend reset a connection.
    fn fail(&self) {
        let (mut client, backend) = self.reach();
        rustix::net::sockopt::set_socket_linger(&backend, Some(Duration::ZERO)).unwrap();
        drop(backend);
        assert_eq!(name(&mut client).unwrap_err().kind(), ErrorKind::ConnectionReset);
        self.has_failing(1);
    }

    fn has_failing(&self, count: u64) {
        self.bed.wait_for("failing backends", |counters| &counters.failing, count);
    }

    fn failing(&self) -> u64 {
        self.bed.counters().failing.load(Ordering::Relaxed)
    }
}

#[test]
fn a_backend_counts_as_failed_until_its_first_byte() {
    let trial = Trial::new(PATIENCE);
    let (mut client, mut backend) = trial.reach();
    assert_eq!(trial.failing(), 1, "it has accepted, which is no answer");
    backend.write_all(b"s").unwrap();
    assert_eq!(name(&mut client).unwrap(), b's');
    trial.has_failing(0);
}

#[test]
fn a_backend_counts_as_failed_until_it_ends_a_connection_in_order() {
    let trial = Trial::new(PATIENCE);
    let (mut client, backend) = trial.reach();
    assert_eq!(trial.failing(), 1, "it has accepted, which is no answer");
    drop(backend);
    assert_eq!(name(&mut client).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    trial.has_failing(0);
}

#[test]
fn a_backend_counts_as_failed_until_a_connection_has_lasted() {
    let trial = Trial::new(Duration::from_secs(1));
    let _held = trial.reach();
    trial.has_failing(0);
}
