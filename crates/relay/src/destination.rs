//! Where clients meant their packets to go.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{getsockname, sockopt};

use crate::Arrival;

/// Knows of translated datagrams what the client had written on them.
pub trait Translations: fmt::Debug + Send {
    /// The destination of datagrams that come from `client` and arrive at `here`; `None` where they were not translated.
    fn destination(&mut self, client: SocketAddr, here: SocketAddr) -> Option<SocketAddr>;
}

/// Finds destinations of captured connections and datagrams.
#[derive(Debug)]
pub(crate) struct Destinations {
    arrival: Arrival,
    translations: Option<Box<dyn Translations>>,
}

impl Destinations {
    pub(crate) fn new(arrival: Arrival, translations: Option<Box<dyn Translations>>) -> Self {
        Self { arrival, translations }
    }

    /// That of a connection which was taken in.
    pub(crate) fn of_connection(&self, fd: &OwnedFd) -> Option<SocketAddr> {
        let here = SocketAddr::try_from(getsockname(fd).ok()?).ok()?;
        match (self.arrival, here) {
            (Arrival::Untouched, _) => Some(here),
            (Arrival::Translated { .. }, SocketAddr::V4(_)) => {
                sockopt::ip_original_dst(fd).ok().map(Into::into)
            }
            (Arrival::Translated { .. }, SocketAddr::V6(_)) => {
                sockopt::ipv6_original_dst(fd).ok().map(Into::into)
            }
        }
    }

    /// That of a datagram which arrived `here`.
    pub(crate) fn of_datagram(&mut self, client: SocketAddr, here: SocketAddr) -> Option<SocketAddr> {
        match self.arrival {
            Arrival::Untouched => Some(here),
            Arrival::Translated { .. } => self.translations.as_mut()?.destination(client, here),
        }
    }
}
