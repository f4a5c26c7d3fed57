//! The original destinations of captured connections and datagrams.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use portolan_model::Capture;
use rustix::net::{getsockname, sockopt};

/// Looks up original destinations of translated datagrams.
pub trait Translations: fmt::Debug + Send {
    /// Returns the original destination of datagrams that come from `client` and arrive at `here`; `None` if they were
    /// not translated.
    fn destination(&mut self, client: SocketAddr, here: SocketAddr) -> Option<SocketAddr>;
}

/// Looks up original destinations.
#[derive(Debug)]
pub(crate) struct Destinations {
    capture: Capture,
    translations: Option<Box<dyn Translations>>,
}

impl Destinations {
    pub(crate) fn new(capture: Capture, translations: Option<Box<dyn Translations>>) -> Self {
        Self { capture, translations }
    }

    /// Returns the original destination of an accepted connection.
    pub(crate) fn of_connection(&self, fd: &OwnedFd) -> Option<SocketAddr> {
        let here = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
        match (self.capture, here) {
            (Capture::Tproxy, _) => Some(here),
            (Capture::Redirect, SocketAddr::V4(_)) => sockopt::ip_original_dst(fd).ok().map(Into::into),
            (Capture::Redirect, SocketAddr::V6(_)) => sockopt::ipv6_original_dst(fd).ok().map(Into::into),
        }
    }

    /// Returns the original destination of a datagram that arrived at `here`.
    pub(crate) fn of_datagram(&mut self, client: SocketAddr, here: SocketAddr) -> Option<SocketAddr> {
        match self.capture {
            Capture::Tproxy => Some(here),
            Capture::Redirect => self.translations.as_mut()?.destination(client, here),
        }
    }
}
