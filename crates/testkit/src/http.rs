//! A plain HTTP/1.1 client over TCP: one keep-alive connection, requests and answers as bytes, and line streams.
//!
//! It returns the bytes from the wire and uses few resources, so that many clients can run beside the server that they
//! load. If a connection breaks, the current request fails; the next request opens a new connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Maximum bytes of one read.
const CHUNK: usize = 64 << 10;
/// Maximum bytes that are reserved for a body before any of it has come.
const MOST_RESERVED: usize = 64 << 20;
/// Maximum bytes of a head.
const LONGEST_HEAD: usize = 64 << 10;

/// A client of one server, with one connection at a time.
#[derive(Debug)]
pub struct HttpClient {
    address: SocketAddr,
    patience: Duration,
    connection: Option<Connection>,
    spare: Vec<u8>,
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status code.
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    /// The body, without any framing.
    pub body: Vec<u8>,
}

/// A response body that is read line by line, such as a watch.
#[derive(Debug)]
pub struct HttpLines {
    /// The status code.
    pub status: u16,
    connection: Connection,
    framing: Framing,
    pending: Vec<u8>,
    searched: usize,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    used: usize,
}

#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(usize),
    Chunks,
    ToTheEnd,
    Ended,
}

impl HttpClient {
    /// Creates a client, which connects before it sends. A connection without data for `patience` counts as broken.
    pub fn new(address: SocketAddr, patience: Duration) -> Self {
        Self { address, patience, connection: None, spare: Vec::new() }
    }

    /// Returns the bytes of a request, for [`HttpClient::send`].
    pub fn prepare(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n").into_bytes();
        for (name, value) in headers {
            bytes.extend([name, ": ", value, "\r\n"].concat().bytes());
        }
        if !body.is_empty() || method != "GET" {
            bytes.extend(format!("content-length: {}\r\n", body.len()).bytes());
        }
        bytes.extend(b"\r\n");
        bytes.extend(body);
        bytes
    }

    /// Sends a request and reads the whole response.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<HttpAnswer> {
        self.send(&Self::prepare(method, path, headers, body))
    }

    /// Sends the bytes of one request and reads the whole response.
    pub fn send(&mut self, request: &[u8]) -> io::Result<HttpAnswer> {
        let mut connection = self.connected()?;
        // A server that has already refused the request may close early. Its response takes precedence over the error.
        let sent = connection.stream.write_all(request);
        let (answer, framing) = match connection.answer(std::mem::take(&mut self.spare)) {
            Ok(answer) => answer,
            Err(error) => return Err(sent.err().unwrap_or(error)),
        };
        let is_over = matches!(framing, Framing::ToTheEnd)
            || sent.is_err()
            || answer.head.contains("\r\nconnection: close");
        if !is_over {
            self.connection = Some(connection);
        }
        Ok(answer)
    }

    /// Sends a GET and returns after the head of the response. The stream has its own connection.
    pub fn lines(&mut self, path: &str) -> io::Result<HttpLines> {
        let mut connection = self.connected()?;
        connection.stream.write_all(&Self::prepare("GET", path, &[], b""))?;
        let (status, _, framing) = connection.head()?;
        Ok(HttpLines { status, connection, framing, pending: Vec::new(), searched: 0 })
    }

    /// Uses the memory of this body for the next response. Then the time of a long response is that of the server and of the
    /// transfer: new memory takes about as long, because the kernel has to clear each page.
    pub fn reuse(&mut self, body: Vec<u8>) {
        self.spare = body;
    }

    /// Closes the connection.
    pub fn close(&mut self) {
        self.connection = None;
    }

    fn connected(&mut self) -> io::Result<Connection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let stream = TcpStream::connect_timeout(&self.address, self.patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        Ok(Connection { stream, received: Vec::new(), used: 0 })
    }
}

impl HttpLines {
    /// Returns the next line without its end; `None` after the regular end of the body.
    pub fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let fresh = self.pending.get(self.searched..).unwrap_or_default();
            if let Some(position) = fresh.iter().position(|byte| *byte == b'\n') {
                let end = self.searched.saturating_add(position);
                let mut line: Vec<u8> = self.pending.drain(..=end).collect();
                line.pop();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.pending.len();
            let Some(part) = self.connection.part(&mut self.framing)? else { return Ok(None) };
            self.pending.extend(part);
        }
    }

    /// Returns the rest of the body.
    pub fn rest(mut self) -> io::Result<Vec<u8>> {
        while let Some(part) = self.connection.part(&mut self.framing)? {
            self.pending.extend(part);
        }
        Ok(self.pending)
    }
}

impl Connection {
    /// Reads a response. Its body is put into `body`, whose content is lost.
    fn answer(&mut self, mut body: Vec<u8>) -> io::Result<(HttpAnswer, Framing)> {
        let (status, head, framing) = self.head()?;
        let mut left = framing;
        body.clear();
        if let Framing::Length(length) = framing {
            self.exactly(length, &mut body)?;
            left = Framing::Ended;
        }
        while let Some(part) = self.part(&mut left)? {
            body.extend(part);
        }
        Ok((HttpAnswer { status, head, body }, framing))
    }

    /// Appends the next `length` bytes. Reads them without another copy, so that a long response takes little time here.
    fn exactly(&mut self, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
        let come = self.take(length);
        let left = length.saturating_sub(come.len());
        body.reserve_exact(length.min(MOST_RESERVED));
        body.extend(come);
        let read = (&self.stream).take(left as u64).read_to_end(body)?;
        if read == left { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn head(&mut self) -> io::Result<(u16, String, Framing)> {
        let end = self.find(b"\r\n\r\n", LONGEST_HEAD)?;
        let head = String::from_utf8_lossy(&self.take(end)).to_ascii_lowercase();
        self.take(4);
        let status = head.split(' ').nth(1).and_then(|text| text.parse().ok()).ok_or(bad("status line"))?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let framing = match length {
            Some(length) => Framing::Length(length.trim().parse().map_err(|_| bad("content-length"))?),
            None if head.contains("\r\ntransfer-encoding: chunked") => Framing::Chunks,
            None => Framing::ToTheEnd,
        };
        Ok((status, head, framing))
    }

    /// Returns the next part of a body; `None` after its end.
    fn part(&mut self, framing: &mut Framing) -> io::Result<Option<Vec<u8>>> {
        match framing {
            Framing::Length(0) => *framing = Framing::Ended,
            Framing::Ended => {}
            Framing::Length(left) => {
                if self.available().is_empty() {
                    self.receive()?;
                }
                let part = self.take(*left);
                *left = left.saturating_sub(part.len());
                return Ok(Some(part));
            }
            Framing::Chunks => {
                let end = self.find(b"\r\n", LONGEST_HEAD)?;
                let line = self.take(end);
                let size =
                    std::str::from_utf8(&line).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
                let size = size.ok_or(bad("chunk"))?;
                self.take(2);
                let whole = size.saturating_add(2);
                while self.available().len() < whole {
                    self.receive()?;
                }
                let part = self.take(size);
                self.take(2);
                if size > 0 {
                    return Ok(Some(part));
                }
                *framing = Framing::Ended;
            }
            Framing::ToTheEnd => {
                if self.available().is_empty()
                    && let Err(error) = self.receive()
                {
                    *framing = Framing::Ended;
                    return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
                }
                let all = self.available().len();
                return Ok(Some(self.take(all)));
            }
        }
        Ok(None)
    }

    fn find(&mut self, what: &[u8], within: usize) -> io::Result<usize> {
        let mut searched = 0_usize;
        loop {
            let fresh = self.available().get(searched..).unwrap_or_default();
            if let Some(position) = fresh.windows(what.len()).position(|window| window == what) {
                return Ok(searched.saturating_add(position));
            }
            searched = self.available().len().saturating_sub(what.len());
            if searched > within {
                return Err(bad("head"));
            }
            self.receive()?;
        }
    }

    fn available(&self) -> &[u8] {
        self.received.get(self.used..).unwrap_or_default()
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        let part = self.available().get(..most).unwrap_or_else(|| self.available()).to_vec();
        self.used = self.used.saturating_add(part.len());
        part
    }

    fn receive(&mut self) -> io::Result<()> {
        self.received.drain(..self.used);
        self.used = 0;
        let before = self.received.len();
        self.received.resize(before.saturating_add(CHUNK), 0);
        let room = self.received.get_mut(before..).unwrap_or_default();
        let count = self.stream.read(room);
        self.received.truncate(before.saturating_add(*count.as_ref().unwrap_or(&0)));
        if count? == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the {what} of the answer cannot be read"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Returns a client of a server that sends these bytes, one element for each connection, and closes the connection.
    fn client(answers: &'static [&'static [u8]]) -> HttpClient {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer).unwrap();
            }
        });
        HttpClient::new(address, PATIENCE)
    }

    #[test]
    fn every_framing_is_decoded() {
        let mut client = client(&[
            b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbodyrest",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\n\r\nbody",
        ]);
        for status in [201, 200, 404] {
            let answer = client.request("POST", "/", &[("a", "b")], b"x").unwrap();
            assert_eq!((answer.status, answer.body.as_slice()), (status, b"body".as_slice()));
        }
    }

    #[test]
    fn a_broken_connection_is_an_error_and_the_next_request_makes_another() {
        let mut client = client(&[
            b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nbody",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ]);
        let broken = client.request("GET", "/", &[], b"").unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(client.request("GET", "/", &[], b"").unwrap().status, 200);
    }

    #[test]
    fn lines_come_whole_wherever_chunks_end() {
        let mut client = client(&[
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n5\r\n\ntwo\n\r\n0\r\n\r\n",
        ]);
        let mut lines = client.lines("/").unwrap();
        assert_eq!(lines.status, 200);
        let all: Vec<Vec<u8>> = std::iter::from_fn(|| lines.next_line().unwrap()).collect();
        assert_eq!(all, [b"one", b"two"]);
    }
}
