//! Carries connections and datagrams from clients to backends in user space, and tries the next backend when one fails.
//!
//! Input: changes of the forwarding table through a [`Handle`], and captured connections and datagrams through the
//! listeners, to which the kernel's rules bring them. Output: connections and datagrams to backends, and [`Counters`].
//!
//! The original destination identifies the Service port. If the kernel translated it, the kernel is queried for it
//! (`SO_ORIGINAL_DST` for connections, [`Translations`] for datagrams). Each family and protocol has two listeners: one
//! for the cluster's endpoints, one for this node's. The kernel's rules choose between them.
//!
//! Must not know: rules, netlink, how packets are captured, the API server.
//!
//! # Structure
//!
//! ```text
//!             listeners          client sockets           backend sockets, flows
//!                 |                    |                             |
//!                 +---------- one thread, one epoll instance --------+
//!                                      |
//!   decisions without I/O: table -> rotation, attempts, affinity; share; deadlines; flows
//! ```
//!
//! One thread does all of the I/O, so a Service costs no thread, and no byte waits for a lock. The modules that decide do
//! no I/O:
//!
//! - [`table`]: the Service ports by their frontends. Each knows its connections, so a change of its endpoints costs no
//!   work for the connections of other Service ports.
//! - [`rotation`]: round robin, and back-off of failed backends. [`attempts`]: the backends that one connection tries,
//!   and for how long.
//! - [`affinity`]: session affinity. [`flows`]: UDP flows, their idle time, and which of them ends if places are short.
//! - [`share`]: admission. A Service port that holds four times the free places gets no more.
//! - [`deadlines`]: deadlines of attempts.
//!
//! # Connections
//!
//! - **Attempts.** Nothing is read from the client until a backend has accepted the connection. So an attempt can fail in
//!   any way, and another backend can still get the connection.
//! - **Few packets**, which are the main cost of a short connection. Data that the client has already sent goes to the
//!   backend with the last packet of the handshake. The last data waits for the end of the stream (`MSG_MORE`) if that is
//!   known to follow, and is sent with it. Socket options that only longer connections need are set once a connection
//!   lasts.
//! - **Bytes.** Small messages go through a buffer of the thread. A direction that fills the buffer goes on with `splice`
//!   through a pipe, and returns the pipe when it is empty. An idle connection costs two sockets and some 300 bytes.
//!
//! # Datagrams
//!
//! Each flow has a socket that is connected to its backend, so that answers and ICMP errors reach the flow (`IP_RECVERR`
//! reports all of them; errors about the length of a datagram do not end the flow). Answers leave through a socket of the
//! port where the client's datagrams arrive, one for each port in use, with the virtual address as their source
//! (`IP_PKTINFO`). The socket itself is bound to an address to which no packet is sent, and receives nothing. If capture
//! translates packets, answers leave through the listener.
//!
//! Many clients ask each question from another port, so each question is a flow. If a new flow finds no free place, a flow
//! that was answered ends in its favour, so the rate of questions is not limited by the idle time.
//!
//! # End
//!
//! A relay that drains accepts for a second, closes its listeners, and goes on until its connections have ended or a
//! deadline has passed. It also waits for answers to datagrams until none has come from a client for some seconds; an
//! idle flow does not keep it. If capture translates packets, no answer can leave without the listener, so it does not
//! wait. Listeners are shared by `SO_REUSEPORT`, so another process can open them before this one closes them. New
//! connections go to the one that serves until the other one has a table, and then only to that one.

pub mod affinity;
pub mod attempts;
pub mod deadlines;
pub mod flows;
pub mod options;
pub mod rotation;
pub mod share;
pub mod table;

mod commands;
mod destination;
mod handle;
mod listener;
mod log_limit;
mod poll;
mod relay;
mod slots;
mod source_ports;
mod stream;
mod udp;

pub use destination::Translations;
pub use handle::{Capturing, Handle, spawn, spawn_with};
pub use listener::{Error, LISTENERS, OWN_MARK};
pub use options::{Counters, Ports, RelayOptions, raise_descriptors};
pub use table::{Relayed, Scope};
pub use udp::can_answer_from_every_port;
