#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::*;

/// Both ends of a connection.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (near, far)
}

fn client(stream: TcpStream) -> End {
    End::client(stream.into())
}

fn backend(stream: TcpStream) -> End {
    let mut end = End::backend(stream.into());
    end.writable = true;
    end
}

/// Waits for the event that the poller would report.
fn wait_for(fd: &OwnedFd, what: PollFlags) {
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    loop {
        let mut polled = [PollFd::new(fd, what)];
        match poll(&mut polled, Some(&limit)) {
            Ok(count) => {
                assert_eq!(count, 1, "{what:?} did not come");
                return assert!(polled.iter().any(|polled| polled.revents().contains(what)), "{polled:?}");
            }
            Err(errno) => assert_eq!(errno, Errno::INTR),
        }
    }
}

#[test]
fn early_data_is_detected_and_stays_in_the_socket() {
    let (near, mut far) = connection();
    let (mut source, mut direction, mut tools) = (client(near), Direction::default(), Tools::new(0));
    assert!(!direction.has_first_words(&mut source));
    far.write_all(b"question").unwrap();
    wait_for(&source.fd, PollFlags::IN);
    assert!(direction.has_first_words(&mut source));
    assert_eq!((source.readable, direction.has_carried(), tools.waiting), (true, false, 0));

    let (target, mut other) = connection();
    assert_eq!(direction.pump(&mut source, &mut backend(target), &mut tools), Progress::Waiting);
    let mut read = [0; 8];
    other.read_exact(&mut read).unwrap();
    assert_eq!((&read, direction.has_carried()), (b"question", true));
}

#[test]
fn an_urgent_byte_is_no_early_data() {
    let (near, far) = connection();
    let mut source = client(near);
    rustix::net::send(&far, b"!", SendFlags::OOB).unwrap();
    wait_for(&source.fd, PollFlags::PRI);
    assert!(!Direction::default().has_first_words(&mut source));
}

/// A source whose peer has sent its last data and its end, with the state after that event.
fn ended_source() -> End {
    let (near, mut far) = connection();
    let mut source = backend(near);
    far.write_all(b"answer").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    wait_for(&source.fd, PollFlags::RDHUP);
    (source.readable, source.ended, source.is_last) = (true, true, true);
    source
}

#[test]
fn last_data_is_sent_with_the_end() {
    let (near, mut far) = connection();
    let (mut target, mut direction) = (client(near), Direction::default());
    let mut source = ended_source();
    let begun = Instant::now();
    assert_eq!(direction.pump(&mut source, &mut target, &mut Tools::new(0)), Progress::End);
    far.set_nonblocking(true).unwrap();
    let early = far.peek(&mut [0; 16]).map_err(|error| error.kind());
    // After 200 ms without an end the kernel sends the data alone.
    if begun.elapsed() < Duration::from_millis(150) {
        assert_eq!(early, Err(std::io::ErrorKind::WouldBlock), "sent without the end");
    }
    rustix::net::shutdown(&target.fd, rustix::net::Shutdown::Write).unwrap();
    far.set_nonblocking(false).unwrap();
    let mut read = Vec::new();
    far.read_to_end(&mut read).unwrap();
    assert_eq!(read, b"answer");
}

#[test]
fn last_data_is_sent_before_a_reset() {
    let (near, mut far) = connection();
    let (mut target, mut direction) = (client(near), Direction::default());
    assert_eq!(direction.pump(&mut ended_source(), &mut target, &mut Tools::new(0)), Progress::End);
    direction.let_go(&target);
    reset(&target.fd);
    drop(target);
    let mut read = [0; 6];
    far.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"answer");
}

#[test]
fn the_second_send_sets_tcp_nodelay() {
    let (near, mut far) = connection();
    let (target, _other) = connection();
    let (mut source, mut target) = (client(near), backend(target));
    let (mut direction, mut tools) = (Direction::default(), Tools::new(0));
    for is_prompt in [false, true] {
        far.write_all(b"question").unwrap();
        wait_for(&source.fd, PollFlags::IN);
        source.readable = true;
        assert_eq!(direction.pump(&mut source, &mut target, &mut tools), Progress::Waiting);
        assert_eq!(sockopt::tcp_nodelay(&target.fd).unwrap(), is_prompt);
    }
}
