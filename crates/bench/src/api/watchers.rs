//! Measures one change with many watchers: the time until the last watcher has received it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_testkit::HttpClient;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::process::{Host, PATIENCE};
use crate::statistics::Sample;

const WATCHERS: usize = 1_000;
const CHANGES: usize = 21;
const SLICES: &str = "/apis/discovery.k8s.io/v1";

/// Measures the time from sending the change until the last watcher has read the last byte of its event.
pub(super) fn measure(host: &Host, slice: &str) -> anyhow::Result<Sample> {
    host.namespace.run(|| {
        let path = format!("{SLICES}/{slice}");
        let mut watchers = Watchers::connect()?;
        let mut writer = Host::client();
        let mut times = Vec::new();
        for round in 0..=CHANGES {
            let body = format!(r#"{{"metadata":{{"annotations":{{"round":"{round}"}}}}}}"#);
            let headers = [("content-type", "application/merge-patch+json")];
            let request = HttpClient::prepare("PATCH", &path, &headers, body.as_bytes());
            let begin = Instant::now();
            let answer = writer.send(&request)?;
            ensure!(answer.status == 200, "a patch was answered with {}", answer.status);
            watchers.wait_for_all()?;
            times.push(begin.elapsed());
        }
        // The first change is slower because the connections are cold.
        Ok(times.into_iter().skip(1).collect())
    })?
}

struct Watchers {
    streams: Vec<TcpStream>,
    epoll: rustix::fd::OwnedFd,
}

impl Watchers {
    fn connect() -> anyhow::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let revision = revision()?;
        let path = format!("{SLICES}/endpointslices?watch=1&resourceVersion={revision}");
        let mut streams = Vec::new();
        for index in 0..WATCHERS {
            let mut stream = TcpStream::connect_timeout(&Host::address(), PATIENCE)?;
            stream.write_all(&HttpClient::prepare("GET", &path, &[], b""))?;
            let mut head = [0; 4096];
            let count = stream.read(&mut head)?;
            ensure!(
                head.get(..count).is_some_and(|head| head.starts_with(b"HTTP/1.1 200 ")),
                "a watch was refused"
            );
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, &stream, EventData::new_u64(index as u64), EventFlags::IN)?;
            streams.push(stream);
        }
        Ok(Self { streams, epoll })
    }

    /// Reads until each watcher has received a whole event.
    fn wait_for_all(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut left = self.streams.len();
        let mut buffer = vec![0; 64 << 10];
        let mut events: Vec<Event> = Vec::with_capacity(256);
        while left > 0 {
            ensure!(Instant::now() < deadline, "{left} watchers did not see the change");
            events.clear();
            let second = Duration::from_secs(1).try_into()?;
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&second))?;
            for event in &events {
                let stream =
                    usize::try_from(event.data.u64()).ok().and_then(|index| self.streams.get_mut(index));
                match stream.context("a watcher")?.read(&mut buffer) {
                    Ok(0) => anyhow::bail!("a watch ended"),
                    // The event's line ends before the end of its chunk.
                    Ok(count) if buffer.get(..count).is_some_and(|part| part.ends_with(b"\n\r\n")) => {
                        left -= 1;
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

fn revision() -> anyhow::Result<String> {
    let answer = Host::client().request("GET", &format!("{SLICES}/endpointslices?limit=1"), &[], b"")?;
    let list: serde_json::Value = serde_json::from_slice(&answer.body)?;
    let revision = list.pointer("/metadata/resourceVersion").and_then(serde_json::Value::as_str);
    Ok(revision.context("the list's revision")?.to_owned())
}
